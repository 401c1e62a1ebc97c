// What enters products with few rows: norm or gate on the way into shared memory, in the form that
// the products of each format take.
#pragma once

#include "dense/linear/gating.cuh"
#include "dense/linear/linear_decode_products_sm90.cuh"
#include "dense/linear/linear_decode_sm90.h"
#include "device/cuda/overlap.cuh"

namespace triax::dense::sm90 {

constexpr int kSets = 2;
constexpr int kSetWarps = 6;
constexpr int kWarps = kSets * kSetWarps;  // that multiply; the first threads of a block
constexpr int kWorkers = 32 * kWarps;
constexpr int kThreads = kWorkers + 32;

/// A barrier of the warps that multiply.
__device__ __forceinline__ void sync_workers() {
  asm volatile("bar.sync 1, %0;" ::"n"(kWorkers) : "memory");
}

// Eight columns of a token's input before its norm; what other kernels wrote comes from the L2.
__device__ __forceinline__ void load8(const float* from, float (&x)[8]) {
  const float4 a = __ldcg(reinterpret_cast<const float4*>(from));
  const float4 b = __ldcg(reinterpret_cast<const float4*>(from) + 1);
  x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
  x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}

__device__ __forceinline__ void store8(float* to, const float (&x)[8]) {
  reinterpret_cast<float4*>(to)[0] = make_float4(x[0], x[1], x[2], x[3]);
  reinterpret_cast<float4*>(to)[1] = make_float4(x[4], x[5], x[6], x[7]);
}

__device__ __forceinline__ void load_sum(const DecodeInputSm90& in, int token, int octet,
                                         float (&x)[8]) {
  load8(in.a + token * in.a_stride + 8 * octet, x);
  if (in.kind == DecodeInputSm90::Kind::kPlain || in.b == nullptr) {
    return;
  }
  float b[8];
  load8(in.b + token * in.b_stride + 8 * octet, b);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    x[j] = in.kind == DecodeInputSm90::Kind::kGated ? gated(in.gating, x[j], b[j]) : x[j] + b[j];
  }
}

// 1 / sqrt(mean square) of each token, in all threads; sums in one order.
template <int kTokens>
__device__ void norm_factors(const DecodeInputSm90& in, int cols, int tokens,
                             float (&factor)[kTokens]) {
  __shared__ float squares[kTokens][kWarps];
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    float sum = 0.0f;
    for (int octet = threadIdx.x; t < tokens && octet < cols / 8; octet += kWorkers) {
      float x[8];
      load_sum(in, t, octet, x);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        sum += x[j] * x[j];
      }
    }
    sum = cuda::warp_sum(sum);
    if (threadIdx.x % 32 == 0) {
      squares[t][threadIdx.x / 32] = sum;
    }
  }
  sync_workers();
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      sum += squares[t][w];
    }
    factor[t] = 1.0f / sqrtf(sum / static_cast<float>(cols) + in.eps);
  }
}

// The part's input into the planes of its format; block 0 also stores the by-products.
template <MatrixFormat kFormat, int kTokens>
__device__ void prepare_input(const LinearDecodeSm90& args, const DecodeInputSm90& in, int cols,
                              unsigned char* planes) {
  const int tokens = static_cast<int>(args.tokens);
  const bool normed = in.kind == DecodeInputSm90::Kind::kNormed;
  float factor[kTokens];
  if (normed) {
    norm_factors<kTokens>(in, cols, tokens, factor);
  }
  const int octets = cols / 8;
  const int count = tokens * octets;
  for (int first = 0; first < count; first += kWorkers) {
    const bool active = first + static_cast<int>(threadIdx.x) < count;
    const int i = active ? first + static_cast<int>(threadIdx.x) : count - 1;
    const int token = tokens == 1 ? 0 : i / octets;
    const int octet = i - token * octets;
    float x[8];
    load_sum(in, token, octet, x);
    const int64_t at = static_cast<int64_t>(token) * cols + 8 * octet;
    if (blockIdx.x == 0 && active && args.sum != nullptr) {
      store8(args.sum + at, x);
    }
    if (normed) {
      float f = factor[0];
#pragma unroll
      for (int t = 1; t < kTokens; ++t) {
        f = token == t ? factor[t] : f;
      }
      float weight[8];
      load8(in.norm_weight + 8 * octet, weight);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        x[j] = x[j] * f * weight[j];
      }
    }
    if (blockIdx.x == 0 && active && args.x != nullptr) {
      store8(args.x + at, x);
    }
    Products<kFormat, kTokens>::put(planes, cols, tokens, token, octet, x, active);
  }
}

/// The same for one normed token that has no more octets than there are workers: everything is read
/// once, and the norm's weights before the kernel in front has ended.
template <MatrixFormat kFormat, int kTokens>
__device__ void prepare_one(const LinearDecodeSm90& args, const DecodeInputSm90& in, int cols,
                            unsigned char* planes) {
  __shared__ float squares[kWarps];
  const bool active = static_cast<int>(threadIdx.x) < cols / 8;
  const int octet = active ? static_cast<int>(threadIdx.x) : 0;
  float weight[8];
  load8(in.norm_weight + 8 * octet, weight);
  cuda::wait_for_previous();
  float x[8];
  load_sum(in, 0, octet, x);
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    sum += active ? x[j] * x[j] : 0.0f;
  }
  sum = cuda::warp_sum(sum);
  if (threadIdx.x % 32 == 0) {
    squares[threadIdx.x / 32] = sum;
  }
  sync_workers();
  sum = 0.0f;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    sum += squares[w];
  }
  const float factor = 1.0f / sqrtf(sum / static_cast<float>(cols) + in.eps);
  const bool stores = blockIdx.x == 0 && active;
  if (stores && args.sum != nullptr) {
    store8(args.sum + 8 * octet, x);
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    x[j] = x[j] * factor * weight[j];
  }
  if (stores && args.x != nullptr) {
    store8(args.x + 8 * octet, x);
  }
  Products<kFormat, kTokens>::put(planes, cols, 1, 0, octet, x, active);
}

}  // namespace triax::dense::sm90
