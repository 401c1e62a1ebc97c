// Time and bytes of products with 8 to 64 rows, Kimi Linear's and K3's dense shapes.
#include "dense/linear/linear_cases_sm90.cuh"
#include "dense/linear/linear_rows_sm90.h"

namespace triax::dense {
namespace {

using namespace sm90_cases;
using testing::GpuArray;

constexpr double kCopyGbps = 4231.0;

LinearRowsSm90 call(const MatrixView& m, const uint16_t* in, int64_t tokens, float* out) {
  LinearRowsSm90 args;
  args.parts[0] = {.weight = m, .in = in, .in_stride = m.cols, .out = out, .out_stride = m.rows};
  args.count = 1;
  args.tokens = tokens;
  args.overlap = true;
  return args;
}

/// Random bf16 numbers near 1, and the same as floats.
std::vector<uint16_t> random_tokens(int64_t count, std::vector<float>* values) {
  std::vector<uint16_t> bits;
  for (const float x : testing::random_floats(static_cast<size_t>(count), 3)) {
    const __nv_bfloat16 rounded = __float2bfloat16(x);
    uint16_t b;
    std::memcpy(&b, &rounded, 2);
    bits.push_back(b);
    values->push_back(__bfloat162float(rounded));
  }
  return bits;
}

bool gate() {
  bool good = true;
  for (const MatrixFormat format : {MatrixFormat::kBf16, MatrixFormat::kInt8}) {
    const PackedMatrix m(format, 300, 1152, 1);
    std::vector<float> values;
    const GpuArray<uint16_t> in(random_tokens(20 * 1152, &values));
    const GpuArray<float> out(20 * 300);
    const LinearRowsSm90 args = call(m.view(), in.data(), 20, out.data());
    testing::gpu_check(static_cast<cudaError_t>(triax_cuda_linear_rows_sm90(&args, nullptr)),
                       "launch");
    const double error = testing::relative_rms(out.get(), m.multiply_double(values, 20));
    std::fprintf(stderr, "gate %s: relative rms %.2e\n",
                 std::string(matrix_format_name(format)).c_str(), error);
    good = good && error < 2e-6;
  }
  return good;
}

// Matrices in turn, more than the L2 holds.
void run(MatrixFormat format, int64_t rows, int64_t cols, int64_t tokens) {
  std::vector<PackedMatrix> matrices;
  const MatrixView shape{.format = format, .rows = rows, .cols = cols};
  const int64_t count = 400'000'000 / shape.bytes() + 2;
  for (int64_t i = 0; i < count; ++i) {
    matrices.emplace_back(format, rows, cols, 10 * i);
  }
  std::vector<float> values;
  const GpuArray<uint16_t> in(random_tokens(tokens * cols, &values));
  const GpuArray<float> out(static_cast<size_t>(tokens * rows));
  size_t turn = 0;
  const testing::GpuTime time = testing::time_gpu(
      [&](cudaStream_t stream) {
        const LinearRowsSm90 args =
            call(matrices[turn++ % matrices.size()].view(), in.data(), tokens, out.data());
        testing::gpu_check(static_cast<cudaError_t>(triax_cuda_linear_rows_sm90(&args, stream)),
                           "launch");
      },
      static_cast<int>(std::max<int64_t>(count, 10)), 11);
  const auto bytes = static_cast<double>(shape.bytes());
  const double gbps = bytes / time.median_us * 1e-3;
  std::printf(
      "{\"bench\":\"linear_rows\",\"shape\":\"%s %dx%d T=%d\",\"us\":%.2f,\"p10\":%.2f,"
      "\"p90\":%.2f,\"bytes\":%.0f,\"flops\":%.0f,\"gbps\":%.0f,\"share\":%.3f}\n",
      std::string(matrix_format_name(format)).c_str(), static_cast<int>(rows),
      static_cast<int>(cols), static_cast<int>(tokens), time.median_us, time.p10_us, time.p90_us,
      bytes, 2.0 * static_cast<double>(rows * cols * tokens), gbps, gbps / kCopyGbps);
}

int run_all(bool quick) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (!gate()) {
    std::fprintf(stderr, "gate failed\n");
    return 1;
  }
  const std::pair<int64_t, int64_t> sizes[] = {{12544, 2304}, {2304, 4096},   {2304, 1024},
                                               {2048, 2304},  {163840, 2304}, {7168, 7168}};
  for (const MatrixFormat format : {MatrixFormat::kInt8, MatrixFormat::kBf16}) {
    for (const auto& [rows, cols] : sizes) {
      for (const int64_t tokens : {8, 32, 64}) {
        run(format, rows, cols, tokens);
      }
      if (quick) {
        break;
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace triax::dense

int main(int argc, char** argv) {
  return triax::dense::run_all(argc > 1 && std::string(argv[1]) == "--quick");
}
