// The loops themselves, plain C++ that the compiler makes vectors of. Each file that includes this
// is compiled for one instruction set and gets copies of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "store/state_codec_kernels.h"

namespace triax::store::internal {
namespace {

constexpr int64_t kColumns = 128;  // of a block

// No library functions here: of one that is not inlined the linker keeps any copy.
int64_t columns_from(int64_t begin, int64_t k) {
  return k - begin < kColumns ? k - begin : kColumns;
}

void to_bf16(const float* in, int64_t count, std::byte* out) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, in[i]);
    const bool is_nan = (bits & 0x7fffffffU) > 0x7f800000U;
    const uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
    const uint16_t half = static_cast<uint16_t>(is_nan ? (bits >> 16) | 0x40U : rounded);
    std::memcpy(out + 2 * i, &half, 2);
  }
}

void from_bf16(const std::byte* in, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    uint16_t half;
    std::memcpy(&half, in + 2 * i, 2);
    out[i] = __builtin_bit_cast(float, static_cast<uint32_t>(half) << 16);
  }
}

// The scale of a column whose largest |x| has these bits: a / 127, rounded up to 16 significant
// bits. 127 times it is then exact, so that encoding what was decoded finds the same scale. Columns
// below 2^-100 become zeros.
float scale_of(uint32_t bits) {
  const float largest = __builtin_bit_cast(float, bits);
  if (largest < 0x1.0p-100f) {
    return 0.0f;
  }
  const uint32_t up = (__builtin_bit_cast(uint32_t, largest / 127.0f) + 0xffU) & ~0xffU;
  return __builtin_bit_cast(float, up);
}

bool to_int8_block(const float* in, int64_t v, int64_t stride, int64_t columns, std::byte* scales,
                   std::byte* out) {
  uint32_t largest[kColumns] = {};
  for (int64_t row = 0; row < v; ++row) {
    for (int64_t c = 0; c < columns; ++c) {
      const uint32_t bits = __builtin_bit_cast(uint32_t, in[row * stride + c]) & 0x7fffffffU;
      largest[c] = bits > largest[c] ? bits : largest[c];
    }
  }
  float inverse[kColumns] = {};
  for (int64_t c = 0; c < columns; ++c) {
    if (largest[c] >= __builtin_bit_cast(uint32_t, 0x1.0p126f)) {
      return false;  // NaN and infinity are larger still
    }
    const float scale = scale_of(largest[c]);
    inverse[c] = scale > 0.0f ? 1.0f / scale : 0.0f;
    std::memcpy(scales + 4 * c, &scale, 4);
  }
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: its last bit is worth 1
  for (int64_t row = 0; row < v; ++row) {
    for (int64_t c = 0; c < columns; ++c) {
      const float rounded = in[row * stride + c] * inverse[c] + kRounder;
      const int32_t q =
          __builtin_bit_cast(int32_t, rounded) - __builtin_bit_cast(int32_t, kRounder);
      out[row * stride + c] = static_cast<std::byte>(static_cast<uint8_t>(q));
    }
  }
  return true;
}

bool to_int8(const float* in, int64_t v, int64_t k, std::byte* scales, std::byte* out) {
  for (int64_t c = 0; c < k; c += kColumns) {
    if (!to_int8_block(in + c, v, k, columns_from(c, k), scales + 4 * c, out + c)) {
      return false;
    }
  }
  return true;
}

void from_int8(const std::byte* in, const std::byte* scales, int64_t v, int64_t k, float* out) {
  for (int64_t begin = 0; begin < k; begin += kColumns) {
    const int64_t columns = columns_from(begin, k);
    float scale[kColumns] = {};
    std::memcpy(scale, scales + 4 * begin, static_cast<size_t>(4 * columns));
    for (int64_t row = 0; row < v; ++row) {
      const std::byte* q = in + row * k + begin;
      float* x = out + row * k + begin;
      for (int64_t c = 0; c < columns; ++c) {
        x[c] = static_cast<float>(static_cast<int8_t>(q[c])) * scale[c];
      }
    }
  }
}

constexpr StateCodecKernels kKernels = {to_bf16, from_bf16, to_int8, from_int8};

}  // namespace
}  // namespace triax::store::internal
