// Time and bytes of products with few rows, K3's and Kimi Linear's dense shapes.
#include "dense/linear/linear_cases_sm90.cuh"

namespace triax::dense {
namespace {

using namespace sm90_cases;
using testing::GpuArray;
using testing::random_floats;

constexpr double kCopyGbps = 4231.0;

bool overlap = false;

LinearDecodeSm90 call(const MatrixView& m, const float* in, int64_t tokens, float* out) {
  LinearDecodeSm90 args;
  args.parts[0] = {
      .in = {.a = in, .a_stride = m.cols}, .weight = m, .out = out, .out_stride = m.rows};
  args.count = 1;
  args.tokens = tokens;
  args.overlap = overlap;
  return args;
}

bool gate() {
  bool good = true;
  for (const MatrixFormat format :
       {MatrixFormat::kBf16, MatrixFormat::kInt8, MatrixFormat::kMxfp4}) {
    const PackedMatrix m(format, 300, 1152, 1);
    const auto in = random_floats(3 * 1152, 2);
    const GpuArray<float> in_d(in), out_d(3 * 300);
    const LinearDecodeSm90 args = call(m.view(), in_d.data(), 3, out_d.data());
    testing::gpu_check(static_cast<cudaError_t>(triax_cuda_linear_decode_sm90(&args, nullptr)),
                       "launch");
    const double error = testing::relative_rms(out_d.get(), m.multiply_double(in, 3));
    std::fprintf(stderr, "gate %s: relative rms %.2e\n",
                 std::string(matrix_format_name(format)).c_str(), error);
    good = good && error < (format == MatrixFormat::kInt8 ? 4e-5 : 1e-5);
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
  const GpuArray<float> in(random_floats(static_cast<size_t>(tokens * cols), 2));
  const GpuArray<float> out(static_cast<size_t>(tokens * rows));
  size_t turn = 0;
  const testing::GpuTime time = testing::time_gpu(
      [&](cudaStream_t stream) {
        const LinearDecodeSm90 args =
            call(matrices[turn++ % matrices.size()].view(), in.data(), tokens, out.data());
        testing::gpu_check(static_cast<cudaError_t>(triax_cuda_linear_decode_sm90(&args, stream)),
                           "launch");
      },
      static_cast<int>(std::max<int64_t>(count, 10)), 11);
  const auto bytes = static_cast<double>(shape.bytes());
  const double gbps = bytes / time.median_us * 1e-3;
  std::printf(
      "{\"bench\":\"linear_decode\",\"shape\":\"%s %dx%d T=%d%s\",\"us\":%.2f,\"p10\":%.2f,"
      "\"p90\":%.2f,\"bytes\":%.0f,\"flops\":%.0f,\"gbps\":%.0f,\"share\":%.3f}\n",
      std::string(matrix_format_name(format)).c_str(), static_cast<int>(rows),
      static_cast<int>(cols), static_cast<int>(tokens), overlap ? " overlap" : "", time.median_us,
      time.p10_us, time.p90_us, bytes, 2.0 * static_cast<double>(rows * cols * tokens), gbps,
      gbps / kCopyGbps);
}

int run_all(bool quick) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (!gate()) {
    std::fprintf(stderr, "gate failed\n");
    return 1;
  }
  const std::pair<int64_t, int64_t> sizes[] = {{7168, 7168},  {12288, 7168}, {7168, 12288},
                                               {12544, 2304}, {2304, 4096},  {2304, 1024},
                                               {33792, 7168}, {163840, 2304}};
  for (const MatrixFormat format :
       {MatrixFormat::kBf16, MatrixFormat::kInt8, MatrixFormat::kMxfp4}) {
    for (const auto& [rows, cols] : sizes) {
      for (const int64_t tokens : {1, 4}) {
        overlap = true;
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
