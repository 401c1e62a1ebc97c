// MXFP4 and int8: code tables, rounding at every boundary, the scale rule, and what comes back.
#include "tensor/quantize.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "testing/testing.h"

namespace triax {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::array<float, 7> kBoundaries = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};

// An MXFP4 matrix of one block, each of its values being `code`.
OwnedMatrix one_block(uint8_t code, uint8_t scale) {
  OwnedMatrix m = make_matrix(MatrixFormat::kMxfp4, 1, 32);
  std::memset(m.data.data<uint8_t>(), code | code << 4, 16);
  m.scales.data<uint8_t>()[0] = scale;
  return m;
}

std::vector<float> dequantized(const MatrixView& matrix, int64_t row = 0) {
  std::vector<float> out(static_cast<size_t>(matrix.cols));
  dequantize_row(matrix, row, out.data());
  return out;
}

TEST(Mxfp4, EveryCodeTimesEveryScaleHasItsValue) {
  constexpr double kMagnitudes[8] = {0, .5, 1, 1.5, 2, 3, 4, 6};
  for (int code = 0; code < 16; ++code) {
    for (int scale = 0; scale < 255; ++scale) {
      const float found =
          dequantized(one_block(static_cast<uint8_t>(code), static_cast<uint8_t>(scale)).view)[0];
      const double sign = code >= 8 ? -1.0 : 1.0;
      const double expected = sign * std::ldexp(kMagnitudes[code % 8], scale - 127);
      // Above the largest float the product is infinite, as IEEE rounds it.
      const bool too_large = std::fabs(expected) > std::numeric_limits<float>::max();
      ASSERT_EQ(static_cast<double>(found), too_large ? sign * HUGE_VAL : expected)
          << code << " * 2^(" << scale << " - 127)";
      ASSERT_EQ(std::signbit(found), code >= 8);
    }
    EXPECT_TRUE(std::isnan(dequantized(one_block(static_cast<uint8_t>(code), 255).view)[0]));
  }
}

TEST(Mxfp4, TheEvenColumnIsTheLowNibble) {
  OwnedMatrix m = make_matrix(MatrixFormat::kMxfp4, 1, 32);
  m.data.data<uint8_t>()[3] = 0x2f;
  m.scales.data<uint8_t>()[0] = 127;
  const std::vector<float> values = dequantized(m.view);
  EXPECT_EQ(values[6], -6.0f);
  EXPECT_EQ(values[7], 1.0f);
}

TEST(Mxfp4, RoundsToTheNearestCodeAndTiesToTheEvenOne) {
  for (uint8_t low = 0; low < 7; ++low) {
    const float boundary = kBoundaries[low];
    const uint8_t high = static_cast<uint8_t>(low + 1);
    const uint8_t even = low % 2 == 0 ? low : high;
    EXPECT_EQ(to_e2m1(boundary), even) << boundary;
    EXPECT_EQ(to_e2m1(std::nextafter(boundary, 0.0f)), low) << boundary;
    EXPECT_EQ(to_e2m1(std::nextafter(boundary, kInfinity)), high) << boundary;
    EXPECT_EQ(to_e2m1(-boundary), even | 8);
    EXPECT_EQ(to_e2m1(-std::nextafter(boundary, 0.0f)), low | 8);
    EXPECT_EQ(to_e2m1(-std::nextafter(boundary, kInfinity)), high | 8);
  }
}

TEST(Mxfp4, CodesComeBackAndLargeValuesSaturate) {
  for (uint8_t code = 0; code < 8; ++code) {
    EXPECT_EQ(to_e2m1(kE2m1[code]), code);
    EXPECT_EQ(to_e2m1(-kE2m1[code]), code | 8);
  }
  EXPECT_EQ(to_e2m1(6.001f), 7);
  EXPECT_EQ(to_e2m1(1e30f), 7);
  EXPECT_EQ(to_e2m1(-kInfinity), 15);
}

TEST(Mxfp4, TheScaleFollowsTheEvenRule) {
  const auto exponent = [](float amax) { return static_cast<int>(mxfp4_even_scale(amax)) - 127; };
  EXPECT_EQ(exponent(1.0f), -2);
  EXPECT_EQ(exponent(1.5f), -2);
  EXPECT_EQ(exponent(std::nextafter(1.75f, 0.0f)), -2);
  EXPECT_EQ(exponent(1.75f), -1);
  EXPECT_EQ(exponent(std::nextafter(2.0f, 0.0f)), -1);
  EXPECT_EQ(exponent(4.0f), 0);
  EXPECT_EQ(exponent(6.0f), 0);
  EXPECT_EQ(exponent(std::nextafter(7.0f, 0.0f)), 0);
  EXPECT_EQ(exponent(7.0f), 1);
  EXPECT_EQ(exponent(std::numeric_limits<float>::max()), 126);
  EXPECT_EQ(mxfp4_even_scale(0.0f), 0);
  EXPECT_EQ(mxfp4_even_scale(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(mxfp4_even_scale(0x1.0p-126f), 0);
  EXPECT_EQ(mxfp4_even_scale(0x1.0p-124f), 1);
}

TEST(Mxfp4, TheScaleRuleIsRoundTheMantissaThenFloor) {
  Rng rng(11);
  for (int i = 0; i < 100000; ++i) {
    const float amax = std::ldexp(static_cast<float>(rng.uniform(1.0, 2.0)),
                                  static_cast<int>(rng.below(200)) - 100);
    int exponent = 0;
    const double mantissa = 2.0 * std::frexp(static_cast<double>(amax), &exponent);
    const int floored = (mantissa >= 1.75 ? exponent : exponent - 1) - 2;
    ASSERT_EQ(static_cast<int>(mxfp4_even_scale(amax)) - 127, floored) << amax;
  }
}

// The start of a row of a released K3 expert: on the grid, so that it survives unchanged.
TEST(Mxfp4, PublishedValuesSurviveRequantisation) {
  constexpr std::array<float, 16> kPublished = {0.0625f,     0.0078125f,  -0.0078125f, -0.0234375f,
                                                -0.0625f,    -0.03125f,   0.0234375f,  0.015625f,
                                                0.046875f,   -0.0f,       -0.0234375f, -0.015625f,
                                                -0.0234375f, -0.0078125f, 0.015625f,   -0.015625f};
  Tensor values = Tensor::f32({1, 32});
  std::copy(kPublished.begin(), kPublished.end(), values.data<float>());
  const OwnedMatrix m = quantize_matrix(MatrixFormat::kMxfp4, values);
  const std::vector<float> back = dequantized(m.view);
  EXPECT_EQ(std::memcmp(back.data(), values.data<float>(), 32 * sizeof(float)), 0);
  EXPECT_EQ(m.scales.data<uint8_t>()[0], 127 - 6);
  constexpr std::array<uint8_t, 4> kBytes = {0x16, 0xb9, 0xce, 0x23};
  EXPECT_EQ(std::memcmp(m.data.data<uint8_t>(), kBytes.data(), kBytes.size()), 0);
}

TEST(Mxfp4, WhatWasQuantisedOnceStaysTheSame) {
  const Tensor values = testing::random_tensor({8, 320}, 21, 0.02);
  const OwnedMatrix once = quantize_matrix(MatrixFormat::kMxfp4, values);
  for (int64_t r = 0; r < 8; ++r) {
    Tensor row = Tensor::f32({1, 320});
    dequantize_row(once.view, r, row.data<float>());
    const OwnedMatrix twice = quantize_matrix(MatrixFormat::kMxfp4, row);
    EXPECT_EQ(dequantized(twice.view), dequantized(once.view, r));
  }
}

// Documented for normal weights: 0.01251 for this rule, 0.01322 and 0.01332 for its rivals.
TEST(Mxfp4, ErrorOnNormalWeightsIsThatOfTheEvenRule) {
  const Tensor values = testing::random_tensor({256, 1024}, 22);
  const OwnedMatrix m = quantize_matrix(MatrixFormat::kMxfp4, values);
  double error = 0.0, norm = 0.0;
  for (int64_t r = 0; r < 256; ++r) {
    const std::vector<float> row = dequantized(m.view, r);
    for (size_t c = 0; c < row.size(); ++c) {
      const double x = static_cast<double>(values.data<float>()[static_cast<size_t>(r) * 1024 + c]);
      error += (x - static_cast<double>(row[c])) * (x - static_cast<double>(row[c]));
      norm += x * x;
    }
  }
  EXPECT_NEAR(error / norm, 0.01251, 0.0001);
}

TEST(Mxfp4, ZerosAndTinyValuesStayFinite) {
  for (float tiny : {0.0f, std::numeric_limits<float>::denorm_min(), 0x1.0p-126f, 0x1.0p-120f}) {
    Tensor values = Tensor::f32({1, 32});
    std::fill_n(values.data<float>(), 32, tiny);
    const OwnedMatrix m = quantize_matrix(MatrixFormat::kMxfp4, values);
    for (float x : dequantized(m.view)) {
      // Half a step of the smallest scale.
      EXPECT_NEAR(x, tiny, 0x1.0p-129f + tiny / 4);
    }
  }
}

TEST(E8m0, EveryScaleIsAPowerOfTwo) {
  for (int scale = 0; scale < 255; ++scale) {
    EXPECT_EQ(static_cast<double>(e8m0_to_float(static_cast<uint8_t>(scale))),
              std::ldexp(1.0, scale - 127));
  }
  EXPECT_TRUE(std::isnan(e8m0_to_float(255)));
}

TEST(Int8, EachValueIsWithinHalfAStepOfItsBlock) {
  const Tensor values = testing::random_tensor({16, 320}, 31, 0.05);
  const OwnedMatrix m = quantize_matrix(MatrixFormat::kInt8, values);
  for (int64_t r = 0; r < 16; ++r) {
    const std::vector<float> row = dequantized(m.view, r);
    const auto* scales =
        reinterpret_cast<const Bf16*>(m.scales.data<uint8_t>() + r * m.view.scale_row_bytes());
    for (int64_t c = 0; c < 320; ++c) {
      const float* block = values.data<float>() + r * 320 + c / 32 * 32;
      float amax = 0.0f;
      for (int i = 0; i < 32; ++i) {
        amax = std::max(amax, std::fabs(block[i]));
      }
      const float scale = to_float(scales[c / 32]);
      EXPECT_EQ(scales[c / 32].bits, to_bf16(amax / 127.0f).bits);
      // A scale that was rounded down clamps the largest value: by at most half a bf16 ulp.
      const float bound = std::max(scale * 0.5f * 1.0001f, amax - 127.0f * scale);
      EXPECT_NEAR(row[static_cast<size_t>(c)], block[c % 32], bound);
    }
  }
}

TEST(Int8, TiesGoToEvenAndTheRangeIsSymmetric) {
  Tensor values = Tensor::f32({1, 32});
  float* x = values.data<float>();
  x[0] = 127.0f;
  x[1] = -127.0f;
  x[2] = 0.5f;
  x[3] = 1.5f;
  x[4] = -2.5f;
  x[5] = 2.51f;
  const OwnedMatrix m = quantize_matrix(MatrixFormat::kInt8, values);
  const auto* q = reinterpret_cast<const int8_t*>(m.data.data<uint8_t>());
  EXPECT_EQ(std::vector<int8_t>(q, q + 7), (std::vector<int8_t>{127, -127, 0, 2, -2, 3, 0}));
}

TEST(Int8, TinyBlocksGiveNoNan) {
  for (float tiny : {0.0f, std::numeric_limits<float>::denorm_min(), 1e-40f, 1e-38f, 3e-37f}) {
    Tensor values = Tensor::f32({1, 32});
    values.data<float>()[0] = tiny;
    values.data<float>()[1] = -tiny;
    const OwnedMatrix m = quantize_matrix(MatrixFormat::kInt8, values);
    const std::vector<float> back = dequantized(m.view);
    EXPECT_NEAR(back[0], tiny, tiny * 0.01f + 128 * 0x1.0p-134f);
    EXPECT_EQ(back[1], -back[0]);
    EXPECT_EQ(back[2], 0.0f);
  }
}

TEST(Matrix, PlainFormatsComeBackRounded) {
  const Tensor values = testing::random_tensor({3, 50}, 41);
  for (MatrixFormat format : {MatrixFormat::kF32, MatrixFormat::kF16, MatrixFormat::kBf16}) {
    const OwnedMatrix m = quantize_matrix(format, values);
    EXPECT_EQ(m.view.bytes(), 150 * (format == MatrixFormat::kF32 ? 4 : 2));
    for (int64_t r = 0; r < 3; ++r) {
      const std::vector<float> row = dequantized(m.view, r);
      for (int64_t c = 0; c < 50; ++c) {
        const float x = values.data<float>()[r * 50 + c];
        const float expected = format == MatrixFormat::kF32   ? x
                               : format == MatrixFormat::kF16 ? to_float(to_f16(x))
                                                              : to_float(to_bf16(x));
        EXPECT_EQ(row[static_cast<size_t>(c)], expected);
      }
    }
  }
}

TEST(Matrix, RowsOfAStridedSourceAreTaken) {
  const Tensor wide = testing::random_tensor({4, 100}, 42);
  const OwnedMatrix m = quantize_matrix(MatrixFormat::kF32, wide.view().slice(1, 20, 84));
  EXPECT_EQ(m.view.cols, 64);
  EXPECT_EQ(dequantized(m.view, 3)[5], wide.data<float>()[3 * 100 + 25]);
}

TEST(Matrix, RowRangeIsTheSameMatrixFurtherDown) {
  for (MatrixFormat format : {MatrixFormat::kF32, MatrixFormat::kF16, MatrixFormat::kBf16,
                              MatrixFormat::kMxfp4, MatrixFormat::kInt8}) {
    const OwnedMatrix m = testing::random_matrix(format, 7, 96, 43);
    const MatrixView part = m.view.row_range(2, 6);
    EXPECT_EQ(part.rows, 4);
    for (int64_t r = 0; r < 4; ++r) {
      EXPECT_EQ(dequantized(part, r), dequantized(m.view, r + 2)) << matrix_format_name(format);
    }
  }
}

TEST(Matrix, BytesCountDataAndScales) {
  EXPECT_EQ(make_matrix(MatrixFormat::kMxfp4, 4, 64).view.bytes(), 4 * (32 + 2));
  EXPECT_EQ(make_matrix(MatrixFormat::kInt8, 4, 64).view.bytes(), 4 * (64 + 4));
  EXPECT_EQ(make_matrix(MatrixFormat::kBf16, 4, 63).view.bytes(), 4 * 126);
}

TEST(MatrixDeathTest, BlockFormatsNeedWholeBlocks) {
  EXPECT_DEATH(make_matrix(MatrixFormat::kMxfp4, 4, 48), "whole blocks of 32");
  EXPECT_DEATH(make_matrix(MatrixFormat::kInt8, 4, 1), "whole blocks of 32");
}

}  // namespace
}  // namespace triax
