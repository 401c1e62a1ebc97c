// How a warp multiplies 16 rows of packed weights, 128 columns at a time, with up to four tokens:
// the tokens as the products of each format take them, the products, and where their sums end.
//
// Lane (g, t) = (lane / 4, lane % 4) holds parts of rows g and g + 8. Weights come from shared
// memory, rows as they lie in global memory.
#pragma once

#include "dense/linear/linear_mxfp4_sm90.cuh"
#include "tensor/matrix.h"

namespace triax::dense::sm90 {

__device__ __forceinline__ uint4 plane16(const unsigned char* from) {
  return *reinterpret_cast<const uint4*>(from);
}

/// c += a b, a [16, 32] row-major, b [32, 8] column-major fragments of int8.
__device__ __forceinline__ void mma_int8(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                         uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// A lane's two rows of one group of 128 columns.
struct Rows {
  const unsigned char* upper;
  const unsigned char* lower;
  const unsigned char* upper_scales;
  const unsigned char* lower_scales;
};

/// kTokens (2 or 4) tokens at most. A format gives
///   kBytes, kScaleBytes        of a row's 128 columns
///   plane_bytes, scale_bytes   of one of the two planes of a token, and of its scales
///   put                        eight columns of a token into its planes; all 32 lanes call
///   multiply                   one group
///   finish                     adds up lanes: sums of rows [16] of each token at to[16 token]
template <MatrixFormat kFormat, int kTokens>
struct Products;

/// bf16 columns: token t's plane p is column 2 t + p of the products.
template <int kTokens>
struct Bf16Tokens {
  float sum[4] = {};

  /// 64 bytes off a multiple of 128: rows of two planes meet no bank twice.
  __host__ __device__ static constexpr int plane_bytes(int cols) { return cols * 2 + 64; }
  __host__ __device__ static constexpr int scale_bytes(int) { return 0; }

  __device__ __forceinline__ void finish(float* to, int tokens) {
    const int g = threadIdx.x % 32 / 4;
    const int t = threadIdx.x % 4;
    if (t < tokens) {
      to[16 * t + g] = sum[0] + sum[1];
      to[16 * t + g + 8] = sum[2] + sum[3];
    }
    sum[0] = sum[1] = sum[2] = sum[3] = 0.0f;
  }

 protected:
  __device__ static void split(const float (&x)[8], float (&low)[8]) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      low[j] = x[j] - __bfloat162float(__float2bfloat16_rn(x[j]));
    }
  }
  __device__ static const unsigned char* plane_of(const unsigned char* planes, int cols,
                                                  int tokens) {
    const int g = threadIdx.x % 32 / 4;
    return planes + min(g, 2 * tokens - 1) * plane_bytes(cols) + threadIdx.x % 4 * 16;
  }
};

template <int kTokens>
struct Products<MatrixFormat::kBf16, kTokens> : Bf16Tokens<kTokens> {
  static constexpr int kBytes = 256;
  static constexpr int kScaleBytes = 0;
  using Base = Bf16Tokens<kTokens>;

  __device__ static void put(unsigned char* planes, int cols, int, int token, int octet,
                             const float (&x)[8], bool active) {
    if (active) {
      float low[8];
      Base::split(x, low);
      unsigned char* to = planes + 2 * token * Base::plane_bytes(cols) + octet * 16;
      *reinterpret_cast<uint4*>(to) = octet_of(x);
      *reinterpret_cast<uint4*>(to + Base::plane_bytes(cols)) = octet_of(low);
    }
  }

  __device__ __forceinline__ void multiply(const Rows& rows, const unsigned char* planes, int cols,
                                           int tokens, int group) {
    const unsigned char* at = Base::plane_of(planes, cols, tokens) + group * 256;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 u = plane16(rows.upper + threadIdx.x % 4 * 16 + i * 64);
      const uint4 l = plane16(rows.lower + threadIdx.x % 4 * 16 + i * 64);
      const uint4 b = plane16(at + i * 64);
      mma_bf16(this->sum, u.x, l.x, u.y, l.y, b.x, b.y);
      mma_bf16(this->sum, u.z, l.z, u.w, l.w, b.z, b.w);
    }
  }
};

template <int kTokens>
struct Products<MatrixFormat::kMxfp4, kTokens> : Bf16Tokens<kTokens> {
  static constexpr int kBytes = 64;
  static constexpr int kScaleBytes = 4;
  using Base = Bf16Tokens<kTokens>;

  /// Columns in the order of unpack_mxfp4_half.
  __device__ static void put(unsigned char* planes, int cols, int, int token, int octet,
                             const float (&x)[8], bool active) {
    if (active) {
      float low[8];
      Base::split(x, low);
      unsigned char* to = planes + 2 * token * Base::plane_bytes(cols) + octet / 16 * 256 +
                          octet_position(octet % 16) * 16;
      *reinterpret_cast<uint4*>(to) = permuted_octet(x);
      *reinterpret_cast<uint4*>(to + Base::plane_bytes(cols)) = permuted_octet(low);
    }
  }

  __device__ __forceinline__ void multiply(const Rows& rows, const unsigned char* planes, int cols,
                                           int tokens, int group) {
    const int t = threadIdx.x % 4;
    const unsigned char* at = Base::plane_of(planes, cols, tokens) + group * 256;
    const uint4 upper = plane16(rows.upper + t * 16);
    const uint4 lower = plane16(rows.lower + t * 16);
    const uint32_t us = mxfp4_multiplier(rows.upper_scales[t]);
    const uint32_t ls = mxfp4_multiplier(rows.lower_scales[t]);
    const uint32_t u[4] = {upper.x, upper.y, upper.z, upper.w};
    const uint32_t l[4] = {lower.x, lower.y, lower.z, lower.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 b = plane16(at + i * 64);
      uint32_t a[4];
      unpack_mxfp4_half<0>(u[i], us, a[0], a[2]);
      unpack_mxfp4_half<0>(l[i], ls, a[1], a[3]);
      mma_bf16(this->sum, a[0], a[1], a[2], a[3], b.x, b.y);
      unpack_mxfp4_half<1>(u[i], us, a[0], a[2]);
      unpack_mxfp4_half<1>(l[i], ls, a[1], a[3]);
      mma_bf16(this->sum, a[0], a[1], a[2], a[3], b.z, b.w);
    }
  }

  __device__ __forceinline__ void finish(float* to, int tokens) {
#pragma unroll
    for (float& s : this->sum) {
      s *= static_cast<float>(1ull << -kWeightExponent);
    }
    Base::finish(to, tokens);
  }
};

/// Weights enter integer products as they are. A token's 32 columns are 16-bit integers times a
/// scale, in two planes of int8: 256 high + low. A lane's 16 bytes are of one block of 32, lanes
/// t < 2 hold the even blocks and the others the odd ones; so the products' columns 0 to 3 are
/// zero where odd blocks are and give sums of even ones, columns 4 to 7 the other way round:
/// column 4 h + 2 i + p is plane p of token i (of a pair) in blocks of parity h.
template <int kTokens>
struct Products<MatrixFormat::kInt8, kTokens> {
  static constexpr int kBytes = 128;
  static constexpr int kScaleBytes = 8;
  static constexpr int kPairs = kTokens / 2;
  float sum[kPairs][2] = {};

  __host__ __device__ static constexpr int plane_bytes(int cols) { return cols + 64; }
  __host__ __device__ static constexpr int scale_bytes(int cols) { return cols / 32 * 4; }

  __device__ static void put(unsigned char* planes, int cols, int tokens, int token, int octet,
                             const float (&x)[8], bool active) {
    uint32_t largest = 0;  // NaN is above infinity
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      largest = max(largest, __float_as_uint(x[j]) & 0x7fffffffu);
    }
    largest = max(largest, __shfl_xor_sync(~0u, largest, 1));
    largest = max(largest, __shfl_xor_sync(~0u, largest, 2));
    const float bound = __uint_as_float(largest);
    const float to_integer = bound < 0x1p-100f ? 0.0f : 32512.0f / bound;
    uint32_t high[2] = {};
    uint32_t low[2] = {};
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int value = __float2int_rn(x[j] * to_integer);
      const int upper = (value + 128) >> 8;
      high[j / 4] |= (static_cast<uint32_t>(upper) & 0xffu) << j % 4 * 8;
      low[j / 4] |= (static_cast<uint32_t>(value) & 0xffu) << j % 4 * 8;
    }
    if (active) {
      unsigned char* to = planes + 2 * token * plane_bytes(cols) + octet * 8;
      *reinterpret_cast<uint2*>(to) = make_uint2(high[0], high[1]);
      *reinterpret_cast<uint2*>(to + plane_bytes(cols)) = make_uint2(low[0], low[1]);
      if (octet % 4 == 0) {
        auto* scales = reinterpret_cast<float*>(planes + 2 * tokens * plane_bytes(cols));
        scales[token * (cols / 32) + octet / 4] = bound * (1.0f / 32512.0f);
      }
    }
  }

  __device__ __forceinline__ void multiply(const Rows& rows, const unsigned char* planes, int cols,
                                           int tokens, int group) {
    const int g = threadIdx.x % 32 / 4;
    const int t = threadIdx.x % 4;
    const bool own = g / 4 == t / 2;
    const auto* scales = reinterpret_cast<const float*>(planes + 2 * tokens * plane_bytes(cols));
    const uint2 us = *reinterpret_cast<const uint2*>(rows.upper_scales);
    const uint2 ls = *reinterpret_cast<const uint2*>(rows.lower_scales);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 u = plane16(rows.upper + i * 64 + t * 16);
      const uint4 l = plane16(rows.lower + i * 64 + t * 16);
      const float upper = scale_of(i == 0 ? us.x : us.y);
      const float lower = scale_of(i == 0 ? ls.x : ls.y);
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        const int from = min(2 * pair + g % 4 / 2, tokens - 1);
        const unsigned char* at =
            planes + (2 * from + g % 2) * plane_bytes(cols) + group * 128 + i * 64 + t * 16;
        const int token = min(2 * pair + t % 2, tokens - 1);
        const float x = scales[token * (cols / 32) + 4 * group + 2 * i + t / 2];
        const uint4 b = own ? plane16(at) : make_uint4(0, 0, 0, 0);
        int c[4] = {};
        mma_int8(c, u.x, l.x, u.y, l.y, b.x, b.y);
        mma_int8(c, u.z, l.z, u.w, l.w, b.z, b.w);
        sum[pair][0] += upper * x * static_cast<float>(c[0] * 256 + c[1]);
        sum[pair][1] += lower * x * static_cast<float>(c[2] * 256 + c[3]);
      }
    }
  }

  /// A lane has even or odd blocks of token t % 2 of each pair.
  __device__ __forceinline__ void finish(float* to, int tokens) {
    const int g = threadIdx.x % 32 / 4;
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const float upper = sum[i][0] + __shfl_xor_sync(~0u, sum[i][0], 2);
      const float lower = sum[i][1] + __shfl_xor_sync(~0u, sum[i][1], 2);
      const int token = 2 * i + t;
      if (t < 2 && token < tokens) {
        to[16 * token + g] = upper;
        to[16 * token + g + 8] = lower;
      }
      sum[i][0] = sum[i][1] = 0.0f;
    }
  }

 private:
  /// The scale of the block that this lane holds of two.
  __device__ static __forceinline__ float scale_of(uint32_t two) {
    return __uint_as_float(__byte_perm(two, 0, threadIdx.x % 4 < 2 ? 0x1044 : 0x3244));
  }
};

}  // namespace triax::dense::sm90
