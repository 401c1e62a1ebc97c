// The products with some tens of rows against double: formats, sizes, several at once, bits.
#include <gtest/gtest.h>

#include "dense/linear/linear_cases_sm90.cuh"
#include "dense/linear/linear_rows_sm90.h"

namespace triax::dense {
namespace {

using namespace sm90_cases;
using testing::GpuArray;
using testing::random_floats;

// Weights and inputs are exact, sums are float32.
constexpr double kBound = 2e-6;

struct Inputs {
  std::vector<float> values;
  std::vector<uint16_t> bits;

  Inputs(int64_t count, uint64_t seed) : values(random_floats(static_cast<size_t>(count), seed)) {
    for (float& x : values) {
      const __nv_bfloat16 rounded = __float2bfloat16(x);
      x = __bfloat162float(rounded);
      uint16_t b;
      std::memcpy(&b, &rounded, 2);
      bits.push_back(b);
    }
  }
};

/// The products of all matrices with the first `tokens` rows of `in`, one launch.
std::vector<std::vector<float>> run(const std::vector<const PackedMatrix*>& matrices,
                                    const Inputs& in, int64_t tokens) {
  const int64_t cols = matrices.front()->cols;
  const GpuArray<uint16_t> in_d(
      std::vector<uint16_t>(in.bits.begin(), in.bits.begin() + tokens * cols));
  std::vector<GpuArray<float>> out;
  LinearRowsSm90 args;
  for (const PackedMatrix* m : matrices) {
    out.emplace_back(static_cast<size_t>(tokens * m->rows));
    args.parts[args.count++] = {.weight = m->view(),
                                .in = in_d.data(),
                                .in_stride = cols,
                                .out = out.back().data(),
                                .out_stride = m->rows};
  }
  args.tokens = tokens;
  args.overlap = true;
  EXPECT_EQ(triax_cuda_linear_rows_sm90(&args, nullptr), 0);
  testing::gpu_check(cudaDeviceSynchronize(), "linear_rows");
  std::vector<std::vector<float>> results;
  for (const GpuArray<float>& array : out) {
    EXPECT_TRUE(array.guards_intact());
    results.push_back(array.get());
  }
  return results;
}

/// Of a matrix of either format: agreement with double, equal bits in two runs and in any batch.
void expect_products(int64_t rows, int64_t cols) {
  for (const MatrixFormat format : {MatrixFormat::kBf16, MatrixFormat::kInt8}) {
    const PackedMatrix m(format, rows, cols, 1);
    const Inputs in(64 * cols, 2);
    const auto truth = m.multiply_double(in.values, 64);
    const auto all = run({&m}, in, 64)[0];
    EXPECT_LT(testing::relative_rms(all, truth), kBound)
        << matrix_format_name(format) << " " << rows << " x " << cols;
    EXPECT_EQ(run({&m}, in, 64)[0], all) << "two runs";
    for (const int64_t tokens : {1, 5, 8, 9, 16, 31, 33}) {
      EXPECT_EQ(run({&m}, in, tokens)[0],
                std::vector<float>(all.begin(), all.begin() + tokens * rows))
          << tokens << " of 64 tokens, " << matrix_format_name(format) << " " << rows << " x "
          << cols;
    }
  }
}

TEST(LinearRowsGpu, AgreesWithDouble) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  const std::pair<int64_t, int64_t> sizes[] = {{1, 128},    {63, 256},    {64, 384},
                                               {65, 1152},  {2304, 1024}, {4300, 512},
                                               {257, 7168}, {13000, 256}, {3000, 512}};
  for (const auto& [rows, cols] : sizes) {
    expect_products(rows, cols);
  }
}

TEST(LinearRowsGpu, Small) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  expect_products(65, 1152);
  expect_products(300, 256);
}

TEST(LinearRowsGpu, SeveralMatricesAtOnce) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  constexpr int64_t kCols = 2304;
  const PackedMatrix a(MatrixFormat::kInt8, 12544, kCols, 1);
  const PackedMatrix b(MatrixFormat::kBf16, 32, kCols, 2);
  const PackedMatrix c(MatrixFormat::kInt8, 576, kCols, 3);
  const Inputs in(32 * kCols, 2);
  const auto wide = run({&a, &b, &c}, in, 32);
  const auto narrow = run({&b, &c}, in, 32);
  EXPECT_LT(testing::relative_rms(wide[0], a.multiply_double(in.values, 32)), kBound);
  for (const auto& result : {wide[1], narrow[0]}) {
    EXPECT_LT(testing::relative_rms(result, b.multiply_double(in.values, 32)), kBound);
  }
  for (const auto& result : {wide[2], narrow[1]}) {
    EXPECT_LT(testing::relative_rms(result, c.multiply_double(in.values, 32)), kBound);
  }
}

TEST(LinearRowsGpu, RefusesWhatItCannotDo) {
  MatrixView m{.format = MatrixFormat::kBf16, .rows = 100, .cols = 256};
  EXPECT_TRUE(linear_rows_sm90_supports(m, 64));
  EXPECT_FALSE(linear_rows_sm90_supports(m, 65));
  m.cols = 192;
  EXPECT_FALSE(linear_rows_sm90_supports(m, 8));
  m.cols = 256;
  m.format = MatrixFormat::kMxfp4;
  EXPECT_FALSE(linear_rows_sm90_supports(m, 8));
}

}  // namespace
}  // namespace triax::dense
