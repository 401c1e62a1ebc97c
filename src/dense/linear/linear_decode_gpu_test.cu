// The streaming products with few rows against double: formats, sizes, bits, poison.
#include <gtest/gtest.h>

#include "dense/linear/linear_cases_sm90.cuh"

namespace triax::dense {
namespace {

using namespace sm90_cases;
using testing::GpuArray;
using testing::random_floats;

// Inputs are exact to 2^-17, with int8 weights to 2^-15 of the largest of 32; sums are float32.
constexpr double kBound = 1e-5;
constexpr double kInt8Bound = 4e-5;

double bound_of(MatrixFormat format) { return format == MatrixFormat::kInt8 ? kInt8Bound : kBound; }

std::vector<float> run(const PackedMatrix& m, const std::vector<float>& in, int64_t tokens) {
  constexpr int64_t kPad = 3;
  const GpuArray<float> in_d(in);
  const GpuArray<float> out_d(static_cast<size_t>(tokens * (m.rows + kPad)));
  LinearDecodeSm90 args;
  args.parts[0] = {.in = {.a = in_d.data(), .a_stride = m.cols},
                   .weight = m.view(),
                   .out = out_d.data(),
                   .out_stride = m.rows + kPad};
  args.count = 1;
  args.tokens = tokens;
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

/// Of a matrix of every format: agreement with double, equal bits in two runs and in any batch.
void expect_products(int64_t rows, int64_t cols) {
  for (const MatrixFormat format :
       {MatrixFormat::kBf16, MatrixFormat::kInt8, MatrixFormat::kMxfp4}) {
    const PackedMatrix m(format, rows, cols, 1);
    const auto in = random_floats(static_cast<size_t>(4 * cols), 2);
    const auto truth = m.multiply_double(in, 4);
    const auto all = run(m, in, 4);
    EXPECT_LT(testing::relative_rms(all, truth), bound_of(format))
        << matrix_format_name(format) << " " << rows << " x " << cols;
    EXPECT_EQ(run(m, in, 4), all) << "two runs";
    for (int64_t tokens = 1; tokens < 4; ++tokens) {
      EXPECT_EQ(run(m, {in.begin(), in.begin() + tokens * cols}, tokens),
                std::vector<float>(all.begin(), all.begin() + tokens * rows))
          << "the first of four tokens alone";
    }
  }
}

TEST(LinearDecodeGpu, AgreesWithDouble) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  const std::pair<int64_t, int64_t> sizes[] = {{1, 128},     {63, 256},   {64, 384},
                                               {65, 1152},   {1000, 640}, {4500, 896},
                                               {40000, 128}, {60, 20480}, {257, 7168}};
  for (const auto& [rows, cols] : sizes) {
    expect_products(rows, cols);
  }
}

TEST(LinearDecodeGpu, Small) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  expect_products(65, 1152);
  expect_products(2500, 256);
}

/// One launch as a layer uses it: the sum of two inputs, normed, into three matrices of two
/// formats.
TEST(LinearDecodeGpu, NormedInputForSeveralMatrices) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  constexpr int64_t kCols = 2304;
  constexpr float kEps = 1e-5f;
  const PackedMatrix m[] = {{MatrixFormat::kInt8, 3000, kCols, 1},
                            {MatrixFormat::kBf16, 32, kCols, 2},
                            {MatrixFormat::kMxfp4, 100, kCols, 3}};
  for (int64_t tokens = 1; tokens <= 4; ++tokens) {
    const auto count = static_cast<size_t>(tokens * kCols);
    const auto a = random_floats(count, 5);
    const auto b = random_floats(count, 6);
    const auto w = random_floats(kCols, 7);
    std::vector<float> sum(count), x(count);
    for (int64_t t = 0; t < tokens; ++t) {
      double squares = 0.0;
      for (int64_t c = t * kCols; c < (t + 1) * kCols; ++c) {
        sum[c] = a[c] + b[c];
        squares += static_cast<double>(sum[c]) * static_cast<double>(sum[c]);
      }
      const double factor = 1.0 / std::sqrt(squares / kCols + static_cast<double>(kEps));
      for (int64_t c = t * kCols; c < (t + 1) * kCols; ++c) {
        x[c] = static_cast<float>(factor * static_cast<double>(sum[c])) * w[c - t * kCols];
      }
    }
    const GpuArray<float> a_d(a), b_d(b), w_d(w), sum_d(count), x_d(count);
    const GpuArray<float> add_d(random_floats(static_cast<size_t>(tokens * 100), 8));
    std::vector<GpuArray<float>> out;
    LinearDecodeSm90 args;
    for (const PackedMatrix& matrix : m) {
      out.emplace_back(static_cast<size_t>(tokens * matrix.rows));
      args.parts[args.count++] = {.in = {.kind = DecodeInputSm90::Kind::kNormed,
                                         .a = a_d.data(),
                                         .a_stride = kCols,
                                         .b = b_d.data(),
                                         .b_stride = kCols,
                                         .norm_weight = w_d.data(),
                                         .eps = kEps},
                                  .weight = matrix.view(),
                                  .out = out.back().data(),
                                  .out_stride = matrix.rows};
    }
    args.parts[2].add = add_d.data();
    args.parts[2].add_stride = 100;
    args.tokens = tokens;
    args.sum = sum_d.data();
    args.x = x_d.data();
    args.overlap = true;
    ASSERT_EQ(triax_cuda_linear_decode_sm90(&args, nullptr), 0);
    testing::gpu_check(cudaDeviceSynchronize(), "linear_decode");
    EXPECT_EQ(sum_d.get(), sum);
    EXPECT_LT(testing::relative_rms(x_d.get(), std::vector<double>(x.begin(), x.end())), 1e-6);
    for (int i = 0; i < 3; ++i) {
      auto truth = m[i].multiply_double(x, tokens);
      if (i == 2) {
        const auto add = add_d.get();
        for (size_t j = 0; j < truth.size(); ++j) {
          truth[j] += static_cast<double>(add[j]);
        }
      }
      EXPECT_TRUE(out[i].guards_intact());
      EXPECT_LT(testing::relative_rms(out[i].get(), truth), bound_of(m[i].format)) << i;
    }
  }
}

TEST(LinearDecodeGpu, GatedInput) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  constexpr int64_t kCols = 1024;
  constexpr int64_t kTokens = 3;
  const PackedMatrix m(MatrixFormat::kInt8, 500, kCols, 1);
  const auto gate = random_floats(kTokens * kCols, 2);
  const auto up = random_floats(kTokens * kCols, 3);
  std::vector<float> x;
  for (size_t i = 0; i < gate.size(); ++i) {
    const double g = static_cast<double>(gate[i]);
    x.push_back(static_cast<float>(g / (1.0 + std::exp(-g)) * static_cast<double>(up[i])));
  }
  const GpuArray<float> gate_d(gate), up_d(up), out_d(static_cast<size_t>(kTokens * m.rows));
  LinearDecodeSm90 args;
  args.parts[0] = {.in = {.kind = DecodeInputSm90::Kind::kGated,
                          .a = gate_d.data(),
                          .a_stride = kCols,
                          .b = up_d.data(),
                          .b_stride = kCols},
                   .weight = m.view(),
                   .out = out_d.data(),
                   .out_stride = m.rows};
  args.count = 1;
  args.tokens = kTokens;
  ASSERT_EQ(triax_cuda_linear_decode_sm90(&args, nullptr), 0);
  testing::gpu_check(cudaDeviceSynchronize(), "linear_decode");
  EXPECT_LT(testing::relative_rms(out_d.get(), m.multiply_double(x, kTokens)), kInt8Bound);
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
