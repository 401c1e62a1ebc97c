// The streaming products with few rows against double: formats, sizes, bits, poison.
#include <gtest/gtest.h>

#include "dense/linear/linear_cases_sm90.cuh"

namespace triax::dense {
namespace {

using namespace sm90_cases;
using testing::GpuArray;
using testing::random_floats;

// Inputs are exact to 2^-17, sums are float32.
constexpr double kBound = 1e-5;

std::vector<float> run(const PackedMatrix& m, const std::vector<float>& in, int64_t tokens) {
  constexpr int64_t kPad = 3;
  const GpuArray<float> in_d(in);
  const GpuArray<float> out_d(static_cast<size_t>(tokens * (m.rows + kPad)));
  const LinearDecodeSm90 args{.weight = m.view(),
                              .in = in_d.data(),
                              .in_stride = m.cols,
                              .tokens = tokens,
                              .out = out_d.data(),
                              .out_stride = m.rows + kPad};
  EXPECT_EQ(triax_cuda_linear_decode_sm90(&args, nullptr), 0);
  testing::gpu_check(cudaDeviceSynchronize(), "linear_decode");
  EXPECT_TRUE(out_d.guards_intact());
  const std::vector<float> padded = out_d.get();
  std::vector<float> out;
  for (int64_t t = 0; t < tokens; ++t) {
    const auto row = padded.begin() + t * (m.rows + kPad);
    out.insert(out.end(), row, row + m.rows);
    EXPECT_TRUE(std::isnan(row[m.rows]));
  }
  return out;
}

TEST(LinearDecodeGpu, AgreesWithDouble) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  const std::pair<int64_t, int64_t> sizes[] = {{1, 128},    {63, 256},   {64, 384},  {65, 1152},
                                               {1000, 640}, {4500, 896}, {257, 7168}};
  for (const auto& [rows, cols] : sizes) {
    for (const MatrixFormat format :
         {MatrixFormat::kBf16, MatrixFormat::kInt8, MatrixFormat::kMxfp4}) {
      const PackedMatrix m(format, rows, cols, 1);
      const auto in = random_floats(static_cast<size_t>(4 * cols), 2);
      const auto truth = m.multiply_double(in, 4);
      const auto all = run(m, in, 4);
      EXPECT_LT(testing::relative_rms(all, truth), kBound)
          << matrix_format_name(format) << " " << rows << " x " << cols;
      EXPECT_EQ(run(m, in, 4), all) << "two runs";
      for (int64_t tokens = 1; tokens < 4; ++tokens) {
        EXPECT_EQ(run(m, {in.begin(), in.begin() + tokens * cols}, tokens),
                  std::vector<float>(all.begin(), all.begin() + tokens * rows))
            << "the first of four tokens alone";
      }
    }
  }
}

TEST(LinearDecodeGpu, RefusesWhatItCannotDo) {
  MatrixView m{.format = MatrixFormat::kBf16, .rows = 100, .cols = 256};
  EXPECT_TRUE(linear_decode_sm90_supports(m, 4));
  EXPECT_FALSE(linear_decode_sm90_supports(m, 5));
  m.cols = 192;
  EXPECT_FALSE(linear_decode_sm90_supports(m, 1));
  m.cols = 256;
  m.format = MatrixFormat::kF32;
  EXPECT_FALSE(linear_decode_sm90_supports(m, 1));
}

}  // namespace
}  // namespace triax::dense
