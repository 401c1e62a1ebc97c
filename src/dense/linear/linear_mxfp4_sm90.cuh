// MXFP4 weights as operands of bf16 tensor-core products: unpacking in registers, the order of
// columns that goes with it, and the few instructions that need assembly.
//
// A thread of a warp holds, of each group of 128 columns, the 32 that share one scale: lane % 4
// names them. So one 16-byte load and one scale feed eight steps of 16 columns. Step 2i + h of a
// group takes from lane t the columns 32 t + 8 i + {2h, 2h + 4} and {2h + 1, 2h + 5}; the other
// operand lies in that order (permuted_octet).
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "device/cuda/barrier.cuh"

namespace triax::dense::sm90 {

using namespace cuda;  // copies and barriers, which all that unpack weights need

/// Columns that one step of a warp's four-lane groups covers.
constexpr int kGroupColumns = 128;

/// Unpacked weights come out 2^kWeightExponent times their value: both ends of the range of E8M0
/// that checkpoints use stay exact in bf16.
constexpr int kWeightExponent = -32;

/// The pair (s, s) of bf16, s = 2^(scale - 127 + kWeightExponent + 126): what turns the bits that
/// unpack_mxfp4_half arranges into weights. Infinite for scales above 2^33.
__device__ __forceinline__ uint32_t mxfp4_multiplier(uint32_t scale) {
  const uint32_t exponent = min(scale + (126 + kWeightExponent), 255u);
  return exponent * 0x00800080u;
}

__device__ __forceinline__ uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

/// Four of a word's eight weights: `first` = (column 2h, column 2h + 4), `second` = (2h + 1, 2h +
/// 5), the even one of each pair in the low half. A nibble's sign goes to bit 15 and its exponent
/// and mantissa to bits 8..6, a bf16 whose value is 2^-126 times the nibble's, subnormal nibbles
/// included; the product with the multiplier is exact. One integer product puts two copies of the
/// nibbles in place, of which a mask keeps the sign of one and the rest of the other.
template <int kHalf>
__device__ __forceinline__ void unpack_mxfp4_half(uint32_t word, uint32_t multiplier,
                                                  uint32_t& first, uint32_t& second) {
  constexpr uint32_t kKept = 0x81C081C0u;
  const uint32_t bytes = kHalf == 0 ? word : word >> 8;
  first = ((bytes & 0x000F000Fu) * ((1 << 12) + (1 << 6))) & kKept;
  second = ((bytes & 0x00F000F0u) * ((1 << 8) + (1 << 2))) & kKept;
  first = multiply_bf16x2(first, multiplier);
  second = multiply_bf16x2(second, multiplier);
}

/// (low, high) as two bf16 in a word.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

__device__ __forceinline__ uint4 octet_of(const float (&x)[8]) {
  return {pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]),
          pack_bf16(x[6], x[7])};
}

/// Columns 8 n .. 8 n + 7 as the pairs of unpack_mxfp4_half: (0, 4, 1, 5, 2, 6, 3, 7).
__device__ __forceinline__ uint4 permuted_octet(const float (&x)[8]) {
  return {pack_bf16(x[0], x[4]), pack_bf16(x[1], x[5]), pack_bf16(x[2], x[6]),
          pack_bf16(x[3], x[7])};
}

/// Where octet n of a group (0..15) lies, in 16-byte units: word by word, four lanes side by side.
__device__ __forceinline__ int octet_position(int n) { return (n % 4) * 4 + n / 4; }

/// c += a b, a [16, 16] row-major, b [16, 8] column-major fragments of bf16.
__device__ __forceinline__ void mma_bf16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                         uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

}  // namespace triax::dense::sm90
