// Conversions of bf16 and fp16 against their definition in double, over every bit pattern.
#include "tensor/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

namespace triax {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Format {
  int exponent_bits;
  int mantissa_bits;
};

// What the pattern means: (-1)^s 2^(e - bias) (1 + m), subnormal where e is 0.
double value_of(Format format, uint32_t bits) {
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const uint32_t mantissa_mask = (1U << format.mantissa_bits) - 1;
  const int exponent_max = (1 << format.exponent_bits) - 1;
  const int exponent = static_cast<int>(bits >> format.mantissa_bits) & exponent_max;
  const double fraction = std::ldexp(bits & mantissa_mask, -format.mantissa_bits);
  const double sign = (bits & 0x8000U) != 0 ? -1.0 : 1.0;
  if (exponent == exponent_max) {
    return fraction == 0.0 ? sign * std::numeric_limits<double>::infinity()
                           : std::numeric_limits<double>::quiet_NaN();
  }
  return exponent == 0 ? sign * std::ldexp(fraction, 1 - bias)
                       : sign * std::ldexp(1.0 + fraction, exponent - bias);
}

struct Bf16Format {
  using Type = Bf16;
  static constexpr Format kFormat{8, 7};
  static Bf16 round(float x) { return to_bf16(x); }
};
struct F16Format {
  using Type = F16;
  static constexpr Format kFormat{5, 10};
  static F16 round(float x) { return to_f16(x); }
};

template <typename T>
class HalfFormat : public ::testing::Test {};
using Formats = ::testing::Types<Bf16Format, F16Format>;
TYPED_TEST_SUITE(HalfFormat, Formats);

TYPED_TEST(HalfFormat, EveryPatternHasItsValueAndComesBack) {
  for (uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const typename TypeParam::Type x{static_cast<uint16_t>(bits)};
    const double expected = value_of(TypeParam::kFormat, bits);
    const float value = to_float(x);
    const uint16_t back = TypeParam::round(value).bits;
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
      ASSERT_TRUE(std::isnan(value_of(TypeParam::kFormat, back))) << bits;
    } else {
      ASSERT_EQ(static_cast<double>(value), expected) << bits;
      ASSERT_EQ(std::signbit(value), (bits & 0x8000U) != 0) << bits;
      ASSERT_EQ(back, bits);
    }
  }
}

// Rounding is monotonic, so it is right everywhere if it is right beside every midpoint. The
// midpoint behind the largest finite value is where infinity begins.
TYPED_TEST(HalfFormat, RoundsToNearestWithTiesToEven) {
  const Format format = TypeParam::kFormat;
  const uint32_t infinity = ((1U << format.exponent_bits) - 1) << format.mantissa_bits;
  for (uint32_t bits = 0; bits < infinity; ++bits) {
    const double low = value_of(format, bits);
    const double high = bits + 1 == infinity ? low + (low - value_of(format, bits - 1))
                                             : value_of(format, bits + 1);
    const float middle = static_cast<float>((low + high) / 2);
    ASSERT_EQ(static_cast<double>(middle), (low + high) / 2);
    const uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    for (const float sign : {1.0f, -1.0f}) {
      const uint32_t sign_bit = sign < 0.0f ? 0x8000U : 0U;
      ASSERT_EQ(TypeParam::round(sign * middle).bits, even | sign_bit);
      ASSERT_EQ(TypeParam::round(sign * std::nextafter(middle, 0.0f)).bits, bits | sign_bit);
      ASSERT_EQ(TypeParam::round(sign * std::nextafter(middle, kInfinity)).bits,
                (bits + 1) | sign_bit);
    }
  }
}

TYPED_TEST(HalfFormat, ExtremesGoToInfinityZeroAndNan) {
  const Format format = TypeParam::kFormat;
  const uint32_t infinity = ((1U << format.exponent_bits) - 1) << format.mantissa_bits;
  EXPECT_EQ(TypeParam::round(kInfinity).bits, infinity);
  EXPECT_EQ(TypeParam::round(-kInfinity).bits, infinity | 0x8000U);
  EXPECT_EQ(TypeParam::round(std::numeric_limits<float>::max()).bits, infinity);
  EXPECT_EQ(TypeParam::round(std::numeric_limits<float>::denorm_min()).bits, 0U);
  EXPECT_EQ(TypeParam::round(-std::numeric_limits<float>::denorm_min()).bits, 0x8000U);
  for (uint32_t pattern : {0x7fc00000U, 0xffc00000U, 0x7f800001U, 0x7fffffffU}) {
    const float nan = std::bit_cast<float>(pattern);
    EXPECT_TRUE(std::isnan(to_float(TypeParam::round(nan)))) << pattern;
  }
}

TEST(DType, NamesAndSizesAreThoseOfSafetensors) {
  EXPECT_EQ(dtype_name(DType::kBf16), "BF16");
  EXPECT_EQ(dtype_name(DType::kF32), "F32");
  EXPECT_EQ(dtype_bytes(DType::kF32), 4);
  EXPECT_EQ(dtype_bytes(DType::kI32), 4);
  EXPECT_EQ(dtype_bytes(DType::kF16), 2);
  EXPECT_EQ(dtype_bytes(DType::kBf16), 2);
  EXPECT_EQ(dtype_bytes(DType::kI8), 1);
  EXPECT_EQ(dtype_bytes(DType::kU8), 1);
  EXPECT_EQ(dtype_bytes(DType::kI64), 8);
}

}  // namespace
}  // namespace triax
