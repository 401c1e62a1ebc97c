// linear on every backend against sums in double, with bounds computed from the inputs.
#include "dense/linear/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "dense/linear/linear_reference.h"
#include "testing/mirror.h"
#include "testing/testing.h"

namespace triax::dense {
namespace {

using testing::GuardedOutput;
using testing::TestDevice;

Status mirrored(const Device& device, std::span<const Product> products,
                Activations activations = Activations::kF32) {
  testing::Mirror mirror(device);
  std::vector<Product> list(products.begin(), products.end());
  for (Product& product : list) {
    mirror.in(&product.in).in(&product.weight).out(&product.out);
  }
  return mirror.run([&] { return linear(device, list, activations); });
}
Status mirrored(const Device& device, const Product& product,
                Activations activations = Activations::kF32) {
  return mirrored(device, std::span(&product, 1), activations);
}

constexpr MatrixFormat kFormats[] = {MatrixFormat::kF32, MatrixFormat::kF16, MatrixFormat::kBf16,
                                     MatrixFormat::kMxfp4, MatrixFormat::kInt8};
constexpr double kRounding = 0x1.0p-24;

bool is_blocked(MatrixFormat format) {
  return format == MatrixFormat::kMxfp4 || format == MatrixFormat::kInt8;
}

// A random matrix at the worst alignment its format allows, in memory that ends where it ends.
class PackedMatrix {
 public:
  PackedMatrix(MatrixFormat format, int64_t rows, int64_t cols, uint64_t seed)
      : PackedMatrix(testing::random_matrix(format, rows, cols, seed, 0.1)) {}
  explicit PackedMatrix(const OwnedMatrix& source) {
    view_ = source.view;
    const MatrixFormat format = view_.format;
    const size_t element =
        format == MatrixFormat::kF32 ? 4 : (is_blocked(format) ? size_t{1} : size_t{2});
    data_ = copy(source.view.data, view_.rows * view_.row_bytes(), element);
    view_.data = data_.data() + element;
    if (is_blocked(format)) {
      scales_ = copy(source.view.scales, view_.rows * view_.scale_row_bytes(), 2);
      view_.scales = scales_.data() + 2;
    }
  }
  PackedMatrix(const PackedMatrix&) = delete;
  PackedMatrix& operator=(const PackedMatrix&) = delete;
  const MatrixView& view() const { return view_; }
  uint8_t* data() { return data_.data() + (data_.size() - data_bytes()); }
  uint8_t* scales() { return scales_.data() + 2; }

 private:
  size_t data_bytes() const { return static_cast<size_t>(view_.rows * view_.row_bytes()); }
  static std::vector<uint8_t> copy(const void* source, int64_t bytes, size_t offset) {
    std::vector<uint8_t> memory(offset + static_cast<size_t>(bytes));
    if (bytes > 0) {
      std::memcpy(memory.data() + offset, source, static_cast<size_t>(bytes));
    }
    return memory;
  }
  std::vector<uint8_t> data_;
  std::vector<uint8_t> scales_;
  MatrixView view_;
};

// in [T, C] strided by C + 3, first element one float past a 64-byte boundary.
class Input {
 public:
  Input(int64_t tokens, int64_t cols, uint64_t seed)
      : tokens_(tokens), cols_(cols), tensor_(testing::random_tensor({tokens, cols + 3}, seed)) {}
  ConstTensorView view() const {
    return ConstTensorView(tensor_.data<float>() + 1, {tokens_, cols_}).with_stride(0, cols_ + 3);
  }
  float* row(int64_t t) { return tensor_.data<float>() + 1 + t * (cols_ + 3); }

 private:
  int64_t tokens_, cols_;
  Tensor tensor_;
};

// What a result may be off by, for one element.
//   kF32: at most C + 8 roundings of partial sums of |x| |w|.
//   kInt8: additionally amax / 254 for an activation of a block (README.md).
struct Expected {
  double value;
  double bound;
};

Expected expect(const float* x, const MatrixView& weight, int64_t row, Activations activations) {
  std::vector<float> w(static_cast<size_t>(weight.cols));
  dequantize_row(weight, row, w.data());
  const bool rounded = activations == Activations::kInt8 && is_blocked(weight.format);
  Expected expected = {0.0, std::numeric_limits<float>::min()};
  double amax = 0.0;
  for (int64_t c = 0; c < weight.cols; ++c) {
    if (c % kScaleBlock == 0) {
      amax = 0.0;
      for (int64_t i = c; i < std::min(weight.cols, c + kScaleBlock); ++i) {
        amax = std::max(amax, std::fabs(static_cast<double>(x[i])));
      }
    }
    const double wc = static_cast<double>(w[static_cast<size_t>(c)]);
    const double xc = static_cast<double>(x[c]);
    expected.value += xc * wc;
    expected.bound +=
        static_cast<double>(weight.cols + 8) * kRounding * std::fabs(rounded ? amax * wc : xc * wc);
    if (rounded) {
      expected.bound += amax / 254.0 * (1.0 + 0x1.0p-13) * std::fabs(wc);
    }
  }
  return expected;
}

void expect_close(const Product& product, Activations activations) {
  for (int64_t t = 0; t < product.in.size(0); ++t) {
    const float* x = product.in.data<float>() + t * product.in.stride(0);
    for (int64_t r = 0; r < product.weight.rows; ++r) {
      const Expected expected = expect(x, product.weight, r, activations);
      const float found = product.out.data<float>()[t * product.out.stride(0) + r];
      ASSERT_LE(std::fabs(static_cast<double>(found) - expected.value), expected.bound)
          << "t=" << t << " r=" << r << " found " << found << " expected " << expected.value;
    }
  }
}

class LinearTest : public ::testing::TestWithParam<TestDevice> {
 protected:
  OwnedDevice device_ = GetParam().open();
};

INSTANTIATE_TEST_SUITE_P(Devices, LinearTest, ::testing::ValuesIn(testing::test_devices()),
                         [](const auto& param_info) { return param_info.param.name(); });

struct Shape {
  int64_t tokens, rows, cols;
};

// Each operand is within 2^-9 of itself, a sum's terms within 2^-8 and a little.
TEST_P(LinearTest, Bf16OperandsOfAGpuStayWithinTheirBound) {
  if (GetParam().backend != Backend::kCuda) {
    GTEST_SKIP() << "a CPU takes activations as they are";
  }
  for (MatrixFormat format : kFormats) {
    for (const Shape& shape : {Shape{1, 40, 256}, Shape{4, 33, 128}, Shape{5, 64, 96},
                               Shape{33, 128, 256}, Shape{200, 72, 1024}, Shape{9, 31, 64}}) {
      const OwnedMatrix weight = testing::random_matrix(format, shape.rows, shape.cols, 81, 0.1);
      const Tensor in = testing::random_tensor({shape.tokens, shape.cols}, 82);
      Tensor out = Tensor::f32({shape.tokens, shape.rows});
      ASSERT_TRUE(mirrored(device_, {in.view(), weight.view, out.view()}, Activations::kBf16).ok());
      std::vector<float> w(static_cast<size_t>(shape.cols));
      for (int64_t i = 0; i < shape.tokens * shape.rows; ++i) {
        dequantize_row(weight.view, i % shape.rows, w.data());
        const float* x = in.data<float>() + i / shape.rows * shape.cols;
        double sum = 0.0;
        double size = 0.0;
        for (size_t c = 0; c < w.size(); ++c) {
          sum += static_cast<double>(x[c]) * static_cast<double>(w[c]);
          size += std::fabs(static_cast<double>(x[c]) * static_cast<double>(w[c]));
        }
        ASSERT_LE(std::fabs(static_cast<double>(out.data<float>()[i]) - sum),
                  size * (0x1.01p-8 + static_cast<double>(shape.cols) * kRounding))
            << matrix_format_name(format) << " T=" << shape.tokens << " at " << i;
      }
    }
  }
}

constexpr Shape kPlainShapes[] = {{1, 1, 1},    {1, 5, 63},   {2, 63, 100},   {3, 33, 257},
                                  {4, 17, 64},  {5, 1, 1},    {5, 31, 7},     {6, 33, 100},
                                  {7, 63, 255}, {12, 16, 63}, {13, 100, 300}, {63, 65, 513}};
constexpr Shape kBlockedShapes[] = {
    {1, 1, 32},   {1, 9, 64},    {1, 66, 96},   {2, 63, 128},  {3, 33, 160},   {4, 17, 544},
    {4, 100, 96}, {5, 1, 32},    {5, 31, 64},   {6, 33, 288},  {7, 63, 256},   {8, 15, 544},
    {9, 8, 128},  {12, 16, 512}, {13, 100, 96}, {25, 130, 64}, {63, 65, 1056}, {100, 7, 32}};

TEST_P(LinearTest, MatchesSumsInDoubleForEveryFormatShapeStrideAndAlignment) {
  for (MatrixFormat format : kFormats) {
    for (Activations activations : {Activations::kF32, Activations::kInt8}) {
      const std::span<const Shape> shapes = is_blocked(format)
                                                ? std::span<const Shape>(kBlockedShapes)
                                                : std::span<const Shape>(kPlainShapes);
      for (const Shape& shape : shapes) {
        SCOPED_TRACE(std::string(matrix_format_name(format)) +
                     " T=" + std::to_string(shape.tokens) + " R=" + std::to_string(shape.rows) +
                     " C=" + std::to_string(shape.cols));
        const PackedMatrix weight(format, shape.rows, shape.cols, 1);
        const Input in(shape.tokens, shape.cols, 2);
        GuardedOutput out(shape.tokens, shape.rows, shape.rows + 5, 3);
        const Product product = {in.view(), weight.view(), out.view()};
        ASSERT_TRUE(mirrored(device_, product, activations).ok());
        expect_close(product, activations);
        EXPECT_TRUE(out.guards_intact());
      }
    }
  }
}

// A unit vector picks one weight, so that every layout shows its mistakes. 127 is its own int8.
TEST_P(LinearTest, UnitVectorsGiveTheDequantisedWeightsExactly) {
  constexpr int64_t kRows = 37;
  for (MatrixFormat format : kFormats) {
    const int64_t cols = is_blocked(format) ? 160 : 77;
    const PackedMatrix weight(format, kRows, cols, 3);
    std::vector<float> expected(static_cast<size_t>(cols));
    for (Activations activations : {Activations::kF32, Activations::kInt8}) {
      for (int64_t tokens : {int64_t{1}, int64_t{4}, cols}) {
        Tensor in = Tensor::f32({cols, cols});
        for (int64_t c = 0; c < cols; ++c) {
          in.data<float>()[c * cols + c] = 127.0f;
        }
        Tensor out = Tensor::f32({cols, kRows});
        for (int64_t t = 0; t < cols; t += tokens) {
          const int64_t end = std::min(cols, t + tokens);
          ASSERT_TRUE(mirrored(device_,
                               {in.view().rows(t, end), weight.view(), out.view().rows(t, end)},
                               activations)
                          .ok());
        }
        for (int64_t r = 0; r < kRows; ++r) {
          dequantize_row(weight.view(), r, expected.data());
          for (int64_t c = 0; c < cols; ++c) {
            ASSERT_EQ(out.data<float>()[c * kRows + r], 127.0f * expected[static_cast<size_t>(c)])
                << matrix_format_name(format) << " r=" << r << " c=" << c;
          }
        }
      }
    }
  }
}

TEST_P(LinearTest, EveryNibbleAtEveryOrdinaryScaleIsExact) {
  constexpr int64_t kCols = 127 * 32;
  OwnedMatrix source = make_matrix(MatrixFormat::kMxfp4, 2, kCols);
  for (int64_t i = 0; i < kCols; ++i) {
    source.data.data<uint8_t>()[i] = static_cast<uint8_t>(i * 7);
  }
  for (int64_t b = 0; b < 2 * kCols / 32; ++b) {
    source.scales.data<uint8_t>()[b] = static_cast<uint8_t>(64 + b % 127);
  }
  const PackedMatrix weight(source);
  std::vector<float> expected(kCols);
  for (int64_t tokens : {1, 5}) {
    // One column of a block at a time; other blocks are zero.
    for (int64_t c = 0; c < kCols; c += 61) {
      Tensor in = Tensor::f32({tokens, kCols});
      for (int64_t t = 0; t < tokens; ++t) {
        in.data<float>()[t * kCols + c] = 1.0f;
      }
      Tensor out = Tensor::f32({tokens, 2});
      ASSERT_TRUE(mirrored(device_, {in.view(), weight.view(), out.view()}).ok());
      for (int64_t r = 0; r < 2; ++r) {
        dequantize_row(weight.view(), r, expected.data());
        ASSERT_EQ(out.data<float>()[(tokens - 1) * 2 + r], expected[static_cast<size_t>(c)]);
      }
    }
  }
}

TEST_P(LinearTest, RoundedActivationsMatchTheReferenceUpToTheOrderOfSums) {
  if (GetParam().backend == Backend::kCuda) {
    GTEST_SKIP() << "a GPU takes activations as they are";
  }
  const OwnedDevice reference(Backend::kReference, Isa::kPortable, 1);
  for (MatrixFormat format : {MatrixFormat::kMxfp4, MatrixFormat::kInt8}) {
    for (int64_t tokens : {3, 21}) {
      constexpr int64_t kRows = 40;
      constexpr int64_t kCols = 608;
      const PackedMatrix weight(format, kRows, kCols, 5);
      const Input in(tokens, kCols, 6);
      Tensor expected = Tensor::f32({tokens, kRows});
      Tensor out = Tensor::f32({tokens, kRows});
      ASSERT_TRUE(
          mirrored(reference, {in.view(), weight.view(), expected.view()}, Activations::kInt8)
              .ok());
      ASSERT_TRUE(
          mirrored(device_, {in.view(), weight.view(), out.view()}, Activations::kInt8).ok());
      std::vector<float> w(kCols);
      std::vector<float> x(kCols);
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t c = 0; c < kCols; c += kScaleBlock) {
          linear_internal::round_block(in.view().data<float>() + t * in.view().stride(0) + c,
                                       kScaleBlock, x.data() + c);
        }
        for (int64_t r = 0; r < kRows; ++r) {
          dequantize_row(weight.view(), r, w.data());
          double magnitude = 0.0;
          for (size_t c = 0; c < kCols; ++c) {
            magnitude += std::fabs(static_cast<double>(x[c]) * static_cast<double>(w[c]));
          }
          // Integer sums of a block are exact; a few roundings a block remain.
          const double bound = (kCols / 32 + 8) * kRounding * magnitude;
          const float a = out.data<float>()[t * kRows + r];
          const float b = expected.data<float>()[t * kRows + r];
          ASSERT_LE(std::fabs(static_cast<double>(a) - static_cast<double>(b)), bound)
              << matrix_format_name(format) << " t=" << t << " r=" << r;
        }
      }
    }
  }
}

TEST(LinearRounding, AnActivationIsOffByAtMostTheLargestOfItsBlockOver254) {
  Rng rng(7);
  double worst = 0.0;
  for (int i = 0; i < 20000; ++i) {
    float x[kScaleBlock];
    float rounded[kScaleBlock];
    const double scale = std::ldexp(1.0, static_cast<int>(rng.below(160)) - 90);
    double amax = 0.0;
    for (float& v : x) {
      v = static_cast<float>(scale * rng.uniform(-1.0, 1.0));
      amax = std::max(amax, std::fabs(static_cast<double>(v)));
    }
    linear_internal::round_block(x, kScaleBlock, rounded);
    for (int64_t c = 0; c < kScaleBlock; ++c) {
      worst = std::max(
          worst, std::fabs(static_cast<double>(x[c]) - static_cast<double>(rounded[c])) / amax);
    }
  }
  EXPECT_LE(worst, 1.0 / 254.0 * (1.0 + 0x1.0p-13));
  EXPECT_GT(worst, 1.0 / 254.0 * 0.99);  // the bound is sharp
}

// A list of products of every format and size, some sharing their input.
struct ProductList {
  explicit ProductList(uint64_t seed) {
    const int64_t tokens[] = {1, 4, 5, 17, 0, 30, 2};
    for (size_t i = 0; i < 21; ++i) {
      const MatrixFormat format = kFormats[i % 5];
      const int64_t rows = 1 + static_cast<int64_t>(i * 37 % 150);
      weights.push_back(std::make_unique<PackedMatrix>(format, rows, 192, seed + i));
      if (i % 3 != 1) {
        inputs.push_back(std::make_unique<Input>(tokens[i % 7], 192, seed + 100 + i));
      }
      in.push_back(inputs.back()->view());
      out.push_back(Tensor::f32({in.back().size(0), rows}));
    }
  }
  std::vector<Product> products(bool reversed = false) {
    std::vector<Product> list;
    for (size_t i = 0; i < weights.size(); ++i) {
      const size_t j = reversed ? weights.size() - 1 - i : i;
      list.push_back({in[j], weights[j]->view(), out[j].view()});
    }
    return list;
  }
  std::vector<std::unique_ptr<PackedMatrix>> weights;
  std::vector<std::unique_ptr<Input>> inputs;
  std::vector<ConstTensorView> in;
  std::vector<Tensor> out;
};

TEST_P(LinearTest, AListGivesTheBitsOfItsProductsOneByOneInAnyOrderAndThreadCount) {
  for (Activations activations : {Activations::kF32, Activations::kInt8}) {
    ProductList together(11);
    ProductList alone(11);
    ProductList reversed(11);
    ASSERT_TRUE(mirrored(device_, together.products(), activations).ok());
    for (const Product& product : together.products()) {
      expect_close(product, activations);
    }
    const OwnedDevice other = GetParam().open(5);
    for (const Product& product : alone.products()) {
      ASSERT_TRUE(mirrored(other, product, activations).ok());
    }
    ASSERT_TRUE(mirrored(device_, reversed.products(true), activations).ok());
    for (size_t i = 0; i < together.out.size(); ++i) {
      EXPECT_TRUE(testing::bitwise_equal(together.out[i], alone.out[i])) << i;
      EXPECT_TRUE(testing::bitwise_equal(together.out[i], reversed.out[i])) << i;
    }
  }
}

TEST_P(LinearTest, ARowsBitsDoNotDependOnTheOtherRowsOnItsSideOfTheDecodeLimit) {
  constexpr int64_t kTokens = 210;
  constexpr int64_t kRows = 150;
  for (MatrixFormat format : kFormats) {
    const int64_t cols = is_blocked(format) ? 352 : 301;
    const PackedMatrix weight(format, kRows, cols, 21);
    const Input in(kTokens, cols, 22);
    for (Activations activations : {Activations::kF32, Activations::kInt8}) {
      Tensor whole = Tensor::f32({kTokens, kRows});
      Tensor ones = Tensor::f32({kTokens, kRows});
      Tensor part = Tensor::f32({kTokens, kRows});
      const auto run = [&](int64_t begin, int64_t end, Tensor& out) {
        return mirrored(device_,
                        {in.view().rows(begin, end), weight.view(), out.view().rows(begin, end)},
                        activations)
            .ok();
      };
      ASSERT_TRUE(run(0, kTokens, whole));
      for (int64_t step : {5, 7, 13, 18}) {
        for (int64_t t = 0; t + step <= kTokens; t += step) {
          ASSERT_TRUE(run(t, t + step, part));
          ASSERT_TRUE(
              testing::bitwise_equal(whole.view().rows(t, t + step), part.view().rows(t, t + step)))
              << matrix_format_name(format) << " step=" << step << " t=" << t;
        }
      }
      for (int64_t t = 0; t < 24; ++t) {
        ASSERT_TRUE(run(t, t + 1, ones));
      }
      for (int64_t step : {2, 3, 4}) {
        for (int64_t t = 0; t < 24; t += step) {
          ASSERT_TRUE(run(t, t + step, part));
        }
        ASSERT_TRUE(testing::bitwise_equal(ones.view().rows(0, 24), part.view().rows(0, 24)))
            << matrix_format_name(format) << " step=" << step;
      }
      // Outputs do not depend on how many rows of W the product has.
      const MatrixView few = weight.view().row_range(41, 60);
      Tensor narrow = Tensor::f32({kTokens, 19});
      ASSERT_TRUE(mirrored(device_, {in.view(), few, narrow.view()}, activations).ok());
      ASSERT_TRUE(testing::bitwise_equal(whole.view().slice(1, 41, 60), narrow));
    }
  }
}

TEST_P(LinearTest, EmptySizesAreFine) {
  for (const Shape& shape : {Shape{0, 5, 32}, Shape{3, 0, 32}, Shape{0, 0, 0}}) {
    const OwnedMatrix weight = make_matrix(MatrixFormat::kInt8, shape.rows, shape.cols);
    Tensor in = Tensor::f32({shape.tokens, shape.cols});
    Tensor out = Tensor::f32({shape.tokens, shape.rows});
    EXPECT_TRUE(mirrored(device_, {in.view(), weight.view, out.view()}).ok());
  }
  EXPECT_TRUE(mirrored(device_, std::span<const Product>()).ok());
  const OwnedMatrix weight = make_matrix(MatrixFormat::kF32, 6, 0);
  for (int64_t tokens : {2, 9}) {
    Tensor in = Tensor::f32({tokens, 0});
    GuardedOutput out(tokens, 6, 8);
    EXPECT_TRUE(mirrored(device_, {in.view(), weight.view, out.view()}).ok());
    EXPECT_TRUE(out.guards_intact());
    for (int64_t i = 0; i < tokens * 6; ++i) {
      EXPECT_EQ(out.view().data<float>()[i / 6 * 8 + i % 6], 0.0f);
    }
  }
}

TEST_P(LinearTest, ExtremeIntegersDoNotSaturate) {
  constexpr int64_t kCols = 96;
  for (MatrixFormat format : {MatrixFormat::kMxfp4, MatrixFormat::kInt8}) {
    for (int sign : {-1, 1}) {
      OwnedMatrix source = make_matrix(format, 33, kCols);
      const bool mxfp4 = format == MatrixFormat::kMxfp4;
      std::memset(source.data.data<uint8_t>(), mxfp4 ? (sign < 0 ? 0xff : 0x77) : 0x80,
                  static_cast<size_t>(source.data.bytes()));
      for (int64_t i = 0; i < source.scales.bytes(); ++i) {  // 1.0: e8m0 127, bf16 0x3f80
        source.scales.data<uint8_t>()[i] =
            static_cast<uint8_t>(mxfp4 ? 127 : (i % 2 == 0 ? 0x80 : 0x3f));
      }
      const double weight = mxfp4 ? 6.0 * sign : -128.0;
      for (int64_t tokens : {1, 4, 5, 16}) {
        Tensor in = Tensor::f32({tokens, kCols});
        std::fill_n(in.data<float>(), tokens * kCols, 127.0f * static_cast<float>(sign));
        Tensor out = Tensor::f32({tokens, 33});
        for (Activations activations : {Activations::kF32, Activations::kInt8}) {
          ASSERT_TRUE(mirrored(device_, {in.view(), source.view, out.view()}, activations).ok());
          for (int64_t i = 0; i < tokens * 33; ++i) {
            ASSERT_EQ(static_cast<double>(out.data<float>()[i]), weight * 127.0 * sign * kCols);
          }
        }
      }
    }
  }
}

TEST_P(LinearTest, NotANumberStaysInItsRowAndExtremeScalesStayFiniteOrNaN) {
  constexpr int64_t kCols = 128;
  constexpr int64_t kRows = 20;
  for (int64_t tokens : {2, 4, 9}) {
    for (Activations activations : {Activations::kF32, Activations::kInt8}) {
      PackedMatrix weight(MatrixFormat::kMxfp4, kRows, kCols, 31);
      weight.scales()[3 * kCols / 32 + 1] = 255;  // row 3
      weight.scales()[4 * kCols / 32 + 1] = 0;    // row 4
      weight.scales()[5 * kCols / 32 + 1] = 254;  // row 5
      weight.data()[5 * kCols / 2 + 20] = 0x22;
      Input in(tokens, kCols, 32);
      in.row(1)[70] = std::numeric_limits<float>::quiet_NaN();
      Tensor out = Tensor::f32({tokens, kRows});
      ASSERT_TRUE(mirrored(device_, {in.view(), weight.view(), out.view()}, activations).ok());
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t r = 0; r < kRows; ++r) {
          const float found = out.data<float>()[t * kRows + r];
          if (t == 1 || r == 3) {
            EXPECT_TRUE(std::isnan(found)) << t << " " << r;
          } else if (r != 5) {
            const Expected expected = expect(in.row(t), weight.view(), r, activations);
            // Scale 0 may count as zero: 32 products of at most 6 * 2^-127 |x|.
            EXPECT_LE(std::fabs(static_cast<double>(found) - expected.value),
                      expected.bound + 0x1.0p-110)
                << t << " " << r;
          }
        }
      }
    }
  }
}

TEST_P(LinearTest, InfiniteActivationsGiveNoFiniteResult) {
  const PackedMatrix weight(MatrixFormat::kInt8, 7, 64, 41);
  for (int64_t tokens : {1, 6}) {
    Input in(tokens, 64, 42);
    in.row(0)[40] = std::numeric_limits<float>::infinity();
    Tensor out = Tensor::f32({tokens, 7});
    for (Activations activations : {Activations::kF32, Activations::kInt8}) {
      ASSERT_TRUE(mirrored(device_, {in.view(), weight.view(), out.view()}, activations).ok());
      for (int64_t r = 0; r < 7; ++r) {
        EXPECT_FALSE(std::isfinite(out.data<float>()[r]));
      }
    }
  }
}

TEST_P(LinearTest, ZeroAndTinyActivationsAreFinite) {
  const PackedMatrix weight(MatrixFormat::kMxfp4, 9, 96, 51);
  for (int64_t tokens : {1, 6}) {
    for (float magnitude : {0.0f, 1e-38f, std::numeric_limits<float>::denorm_min()}) {
      Tensor in = Tensor::f32({tokens, 96});
      std::fill_n(in.data<float>(), tokens * 96, magnitude);
      Tensor out = Tensor::f32({tokens, 9});
      ASSERT_TRUE(
          mirrored(device_, {in.view(), weight.view(), out.view()}, Activations::kInt8).ok());
      for (int64_t i = 0; i < tokens * 9; ++i) {
        EXPECT_LE(std::fabs(out.data<float>()[i]), 1e-30f);
      }
    }
  }
}

// Large terms that cancel leave an error that is small against the terms, not the sum.
TEST_P(LinearTest, IllConditionedSumsStayWithinTheirBound) {
  for (MatrixFormat format : kFormats) {
    const PackedMatrix weight(format, 21, 256, 61);
    for (int64_t tokens : {2, 8}) {
      Input in(tokens, 256, 62);
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t c = 0; c < 256; ++c) {
          in.row(t)[c] *= c % 2 == 0 ? 1e12f : 1e-12f;
        }
      }
      Tensor out = Tensor::f32({tokens, 21});
      const Product product = {in.view(), weight.view(), out.view()};
      ASSERT_TRUE(mirrored(device_, product).ok());
      expect_close(product, Activations::kF32);
    }
  }
}

TEST_P(LinearTest, BadArgumentsAreNamedAndNothingIsWritten) {
  const OwnedMatrix weight = testing::random_matrix(MatrixFormat::kBf16, 6, 64, 71);
  Tensor in = testing::random_tensor({3, 64}, 72);
  const auto fails = [&](Product bad, const std::string& part) {
    GuardedOutput good(3, 6);
    const Product list[] = {{in.view(), weight.view, good.view()}, bad};
    const Status status = linear(device_, list);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("product 1 of 2"), std::string::npos) << status.message();
    EXPECT_TRUE(std::isnan(good.view().data<float>()[0]));
  };
  Tensor out = Tensor::f32({3, 6});
  Tensor wide = Tensor::f32({3, 7});
  Tensor integers(DType::kI32, {3, 64});
  fails({in.view().slice(1, 0, 63), weight.view, out.view()}, "'weight' has shape [6, 64]");
  fails({in.view(), weight.view, wide.view()}, "'out' has shape [3, 7]");
  fails({in.view(), weight.view, out.view().rows(0, 2)}, "'out' has shape [2, 6]");
  fails({integers.view(), weight.view, out.view()}, "'in' has type I32");
  fails({in.view(), {MatrixFormat::kBf16, 6, 64}, out.view()}, "'weight' has no data");
  MatrixView unscaled = weight.view;
  unscaled.format = MatrixFormat::kInt8;
  fails({in.view(), unscaled, out.view()}, "expected scales");
  fails({in.view(), weight.view, TensorView(static_cast<float*>(nullptr), {3, 6})},
        "'out' has no data");
}

}  // namespace
}  // namespace triax::dense
