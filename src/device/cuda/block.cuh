// Sums over warps and blocks in a fixed order, and the functions that plain kernels share. Knows no
// operation.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace triax::cuda {

constexpr int kWarp = 32;

__host__ __device__ constexpr int64_t blocks_for(int64_t count, int64_t per_block) {
  return (count + per_block - 1) / per_block;
}

/// The sum of all lanes, in all lanes. Order      fixed: a butterfly
template <typename T>
__device__ inline T warp_sum(T value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffU, value, offset);
  }
  return value;
}

__device__ inline float warp_max(float value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffU, value, offset));
  }
  return value;
}

/// The sum over a block of kThreads, in all threads; may be called again at once. All threads call.
template <int kThreads, typename T>
__device__ inline T block_sum(T value) {
  constexpr int kWarps = kThreads / kWarp;
  __shared__ T sums[kWarps];
  value = warp_sum(value);
  if (threadIdx.x % kWarp == 0) {
    sums[threadIdx.x / kWarp] = value;
  }
  __syncthreads();
  T total = sums[0];
  for (int i = 1; i < kWarps; ++i) {
    total += sums[i];
  }
  __syncthreads();
  return total;
}

/// Takes the exponential of a negative number only: exact down to subnormal results.
__device__ inline float sigmoid(float x) {
  const float e = expf(-fabsf(x));
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

/// x * sigmoid(x). Below -200 sigmoid is 0; the bound keeps minus infinity from infinity * 0.
__device__ inline float silu(float x) { return (x < -200.0f ? -200.0f : x) * sigmoid(x); }

/// Which group holds entry `index`: the largest n with offsets[n] <= index, among groups that are
/// not empty. offsets [count + 1] ascend; index in [offsets[0], offsets[count]).
__device__ inline int64_t group_of(const int64_t* offsets, int64_t count, int64_t index) {
  int64_t low = 0;
  int64_t high = count;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    if (offsets[middle] <= index) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace triax::cuda
