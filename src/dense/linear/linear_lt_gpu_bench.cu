// cuBLASLt with bf16 matrices: few and many rows, K3's dense shapes.
#include "dense/linear/linear_cases_sm90.cuh"
#include "dense/linear/linear_lt_sm90.h"

namespace triax::dense {
namespace {

using namespace sm90_cases;
using testing::GpuArray;
using testing::random_floats;

void run(int64_t rows, int64_t cols, int64_t tokens) {
  const int64_t count = 400'000'000 / (2 * rows * cols) + 2;  // in turn, more than the L2 holds
  std::vector<PackedMatrix> matrices;
  for (int64_t i = 0; i < count; ++i) {
    matrices.emplace_back(MatrixFormat::kBf16, rows, cols, 10 * i);
  }
  std::vector<float> some = random_floats(1'000'003, 2);
  std::vector<float> in(static_cast<size_t>(tokens * cols));
  for (size_t i = 0; i < in.size(); ++i) {
    in[i] = some[i % some.size()];
  }
  const GpuArray<float> in_d(in), out_d(static_cast<size_t>(tokens * rows));
  LinearLtPlan* plan = nullptr;
  testing::gpu_check(
      static_cast<cudaError_t>(triax_cuda_linear_lt_create(tokens, rows, cols, &plan)), "plan");
  const GpuArray<uint8_t> scratch(static_cast<size_t>(triax_cuda_linear_lt_scratch_bytes(plan)));
  size_t turn = 0;
  const testing::GpuTime time = testing::time_gpu(
      [&](cudaStream_t stream) {
        const LinearLtSm90 args{
            plan, in_d.data(),   cols, matrices[turn++ % matrices.size()].data.data(), out_d.data(),
            rows, scratch.data()};
        testing::gpu_check(static_cast<cudaError_t>(triax_cuda_linear_lt_sm90(&args, stream)),
                           "launch");
      },
      static_cast<int>(count), 9);
  triax_cuda_linear_lt_destroy(plan);
  const auto bytes = static_cast<double>(2 * rows * cols);
  const double flops = bytes * static_cast<double>(tokens);
  const double gbps = bytes / time.median_us * 1e-3;
  const double tflops = flops / time.median_us * 1e-6;
  std::printf(
      "{\"bench\":\"linear_lt\",\"shape\":\"bf16 %dx%d T=%d\",\"us\":%.2f,\"p10\":%.2f,"
      "\"p90\":%.2f,\"bytes\":%.0f,\"flops\":%.0f,\"gbps\":%.0f,\"tflops\":%.1f,\"share\":%.3f}\n",
      static_cast<int>(rows), static_cast<int>(cols), static_cast<int>(tokens), time.median_us,
      time.p10_us, time.p90_us, bytes, flops, gbps, tflops,
      std::max(gbps / 4231.0, tflops / 769.0));
}

}  // namespace
}  // namespace triax::dense

int main() {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  for (const int64_t tokens : {1, 8, 16, 32, 64, 8192}) {
    triax::dense::run(7168, 7168, tokens);
  }
}
