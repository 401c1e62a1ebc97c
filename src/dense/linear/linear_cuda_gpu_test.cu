#include <gtest/gtest.h>

#include "dense/linear/linear_cuda.h"
#include "dense/linear/weights_testing.h"
#include "testing/gpu.h"

namespace triax::dense {
namespace {

using testing::GpuArray;

struct Shape {
  int64_t tokens, rows, cols;
  bool misaligned;
};

// Against sums in double; the bound follows from the operands' sizes.
void expect_product(MatrixFormat format, const Shape& shape) {
  const GpuMatrix weight(format, shape.rows, shape.cols, 1, shape.misaligned);
  const int64_t in_stride = shape.cols + (shape.misaligned ? 3 : 8);
  const int64_t out_stride = shape.rows + 2;
  const auto x = testing::random_floats(static_cast<size_t>(shape.tokens * in_stride), 2);
  GpuArray<float> in(x);
  GpuArray<float> out(static_cast<size_t>(shape.tokens * out_stride));
  const LinearCuda args = {in.data(),     in_stride,  shape.tokens,
                           weight.view(), out.data(), out_stride};
  ASSERT_EQ(triax_cuda_linear(&args, nullptr), 0);
  testing::gpu_check(cudaDeviceSynchronize(), "linear");
  const std::vector<float> found = out.get();
  for (int64_t t = 0; t < shape.tokens; ++t) {
    for (int64_t r = 0; r < out_stride; ++r) {
      const float y = found[static_cast<size_t>(t * out_stride + r)];
      if (r >= shape.rows) {
        ASSERT_TRUE(std::isnan(y));
        continue;
      }
      double sum = 0.0;
      double size = 0.0;
      for (int64_t c = 0; c < shape.cols; ++c) {
        const double product = weight.at(r, c) * x[static_cast<size_t>(t * in_stride + c)];
        sum += product;
        size += std::fabs(product);
      }
      const double bound = 0x1.0p-23 * (2.0 + std::sqrt(static_cast<double>(shape.cols))) * size;
      ASSERT_NEAR(y, sum, bound) << matrix_format_name(format) << " " << t << " " << r;
    }
  }
  EXPECT_TRUE(out.guards_intact());
  out.poison();
  ASSERT_EQ(triax_cuda_linear(&args, nullptr), 0);
  const std::vector<float> again = out.get();
  EXPECT_EQ(std::memcmp(again.data(), found.data(), out.bytes()), 0);
}

TEST(LinearCuda, MultipliesEveryFormatInBothForms) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  for (const MatrixFormat format : kAllFormats) {
    for (const int64_t tokens : {0, 1, 2, 3, 4, 5, 63, 64, 65}) {
      expect_product(format, {tokens, 67, 96, false});
      expect_product(format, {tokens, 1, 32, true});
    }
    expect_product(format, {1, 300, 2304, false});
    expect_product(format, {70, 130, 2304, false});
    expect_product(format, {130, 5600, 64, false});  // large tiles
  }
  for (const MatrixFormat format : {MatrixFormat::kF32, MatrixFormat::kF16, MatrixFormat::kBf16}) {
    for (const int64_t cols : {1, 7, 40, 257}) {
      expect_product(format, {3, 9, cols, false});
      expect_product(format, {66, 9, cols, true});
    }
  }
}

// Rows of a product do not depend on their number, within a form.
TEST(LinearCuda, IsInvariantToTheOtherTokens) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  const GpuMatrix weight(MatrixFormat::kMxfp4, 100, 256, 1);
  GpuArray<float> in(testing::random_floats(100 * 256, 2));
  const auto run = [&](int64_t first, int64_t tokens) {
    GpuArray<float> out(static_cast<size_t>(tokens * 100));
    const LinearCuda args = {in.data() + first * 256, 256, tokens, weight.view(), out.data(), 100};
    EXPECT_EQ(triax_cuda_linear(&args, nullptr), 0);
    return out.get();
  };
  const std::vector<float> all = run(0, 100);
  const std::vector<float> part = run(90, 10);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + 90 * 100));
  const GpuMatrix tall(MatrixFormat::kInt8, 9000, 96,
                       3);  // many large tiles against few small ones
  GpuArray<float> many_out(100 * 9000), few_out(7 * 9000);
  const LinearCuda many = {in.data(), 256, 100, tall.view(), many_out.data(), 9000};
  const LinearCuda few_rows = {in.data(), 256, 7, tall.view(), few_out.data(), 9000};
  EXPECT_EQ(triax_cuda_linear(&many, nullptr), 0);
  EXPECT_EQ(triax_cuda_linear(&few_rows, nullptr), 0);
  const std::vector<float> large = many_out.get();
  const std::vector<float> small = few_out.get();
  EXPECT_TRUE(std::equal(small.begin(), small.end(), large.begin()));
  const std::vector<float> four = run(0, 4);
  for (const int64_t tokens : {1, 2, 3}) {
    const std::vector<float> few = run(4 - tokens, tokens);
    EXPECT_TRUE(std::equal(few.begin(), few.end(), four.end() - tokens * 100));
  }
}

// Rows of the input more than 2^31 elements apart, in both forms.
TEST(LinearCuda, AddressesRowsBeyond32Bits) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  const int64_t stride = (int64_t{1} << 31) + 64;
  const GpuMatrix weight(MatrixFormat::kBf16, 9, 64, 1);
  const auto x = testing::random_floats(5 * 64, 2);
  GpuArray<float> near(x), far(static_cast<size_t>(4 * stride + 64)), out(5 * 9);
  for (int64_t t = 0; t < 5; ++t) {
    testing::gpu_check(cudaMemcpy(far.data() + t * stride, near.data() + t * 64, 64 * sizeof(float),
                                  cudaMemcpyDeviceToDevice),
                       "copy");
  }
  for (const int64_t tokens : {2, 5}) {
    LinearCuda args = {near.data(), 64, tokens, weight.view(), out.data(), 9};
    ASSERT_EQ(triax_cuda_linear(&args, nullptr), 0);
    const std::vector<float> expected = out.get();
    out.poison();
    args.in = far.data();
    args.in_stride = stride;
    ASSERT_EQ(triax_cuda_linear(&args, nullptr), 0);
    const std::vector<float> found = out.get();
    EXPECT_TRUE(std::equal(found.begin(), found.begin() + tokens * 9, expected.begin()));
  }
}

}  // namespace
}  // namespace triax::dense
