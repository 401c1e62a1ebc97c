// Number formats and their conversions to and from float, exact where the format allows.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

namespace triax {

enum class DType { kF32, kF16, kBf16, kI8, kU8, kI32, kI64 };

/// Bytes of one element.
constexpr int64_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kF16:
    case DType::kBf16:
      return 2;
    case DType::kI8:
    case DType::kU8:
      return 1;
    case DType::kI64:
      return 8;
  }
  return 0;
}

/// "F32", "BF16", ...: the names of safetensors.
constexpr std::string_view dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kF16:
      return "F16";
    case DType::kBf16:
      return "BF16";
    case DType::kI8:
      return "I8";
    case DType::kU8:
      return "U8";
    case DType::kI32:
      return "I32";
    case DType::kI64:
      return "I64";
  }
  return "?";
}

/// bfloat16: the upper half of a float.
struct Bf16 {
  uint16_t bits;
};

/// IEEE binary16.
struct F16 {
  uint16_t bits;
};

inline float to_float(Bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

/// Round to nearest even; NaN stays NaN.
inline Bf16 to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffU) > 0x7f800000U) {
    return {static_cast<uint16_t>((bits >> 16) | 0x40U)};
  }
  return {static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16)};
}

inline float to_float(F16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000U) << 16;
  const uint32_t magnitude = x.bits & 0x7fffU;
  if (magnitude >= 0x7c00U) {  // infinity, NaN
    return std::bit_cast<float>(sign | 0x7f800000U | (magnitude << 13));
  }
  // Exponent rebias by one multiplication, which also makes subnormals exact.
  const float value = std::bit_cast<float>(magnitude << 13) * 0x1.0p112f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
}

/// Round to nearest even; overflow gives infinity, NaN stays NaN.
inline F16 to_f16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = (bits >> 16) & 0x8000U;
  const uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) {
    return {static_cast<uint16_t>(sign | 0x7e00U)};
  }
  if (magnitude >= 0x477ff000U) {  // rounds to 65520 and above
    return {static_cast<uint16_t>(sign | 0x7c00U)};
  }
  if (magnitude < 0x38800000U) {  // subnormal: adding 0.5 leaves its last bit at 2^-24
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000U))};
  }
  const uint32_t rounded = magnitude + 0xfffU + ((magnitude >> 13) & 1U);
  return {static_cast<uint16_t>(sign | ((rounded - 0x38000000U) >> 13))};
}

template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOf<F16> {
  static constexpr DType value = DType::kF16;
};
template <>
struct DTypeOf<Bf16> {
  static constexpr DType value = DType::kBf16;
};
template <>
struct DTypeOf<int8_t> {
  static constexpr DType value = DType::kI8;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::kU8;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::kI64;
};

}  // namespace triax
