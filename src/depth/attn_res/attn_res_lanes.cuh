// Pieces that the kernels of Attention Residuals share: rows of either type as float, sums over a
// warp in a fixed order.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "depth/attn_res/attn_res_slices.cuh"
#include "device/cuda/barrier.cuh"

namespace triax::depth::gpu {

/// A pair of bf16 in one word as floats, the lower half first.
__device__ inline float2 unpack(uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}

__device__ inline uint32_t pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

/// Four columns of a row of T (float or __nv_bfloat16), as loaded.
template <typename T>
struct Quad;

template <>
struct Quad<float> {
  float4 x;
  __device__ float4 floats() const { return x; }
  static __device__ Quad of(float4 v) { return {v}; }
};

template <>
struct Quad<__nv_bfloat16> {
  uint2 x;
  __device__ float4 floats() const {
    const float2 a = unpack(x.x);
    const float2 b = unpack(x.y);
    return {a.x, a.y, b.x, b.y};
  }
  static __device__ Quad of(float4 v) { return {{pack(v.x, v.y), pack(v.z, v.w)}}; }
};

template <typename T>
__device__ inline Quad<T> load_quad(const void* row, int64_t quad) {
  return {__ldcs(&static_cast<const Quad<T>*>(row)[quad].x)};
}

template <typename T>
__device__ inline void store_quad(void* row, int64_t quad, float4 v) {
  static_cast<Quad<T>*>(row)[quad].x = Quad<T>::of(v).x;
}

__device__ inline float4 load_quad_as(const void* row, int64_t quad, DType type) {
  return type == DType::kBf16 ? load_quad<__nv_bfloat16>(row, quad).floats()
                              : load_quad<float>(row, quad).floats();
}

__device__ inline void store_quad_as(void* row, int64_t quad, DType type, float4 v) {
  if (type == DType::kBf16) {
    store_quad<__nv_bfloat16>(row, quad, v);
  } else {
    store_quad<float>(row, quad, v);
  }
}

/// Row t of an array of either type, `stride` elements apart.
__device__ inline const void* row_of(const void* p, int64_t t, int64_t stride, DType type) {
  return static_cast<const char*>(p) + t * stride * (type == DType::kBf16 ? 2 : 4);
}

__device__ inline void* row_of(void* p, int64_t t, int64_t stride, DType type) {
  return static_cast<char*>(p) + t * stride * (type == DType::kBf16 ? 2 : 4);
}

__device__ inline float dot4(float4 a, float4 b, float sum) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

__device__ inline float4 fma4(float w, float4 v, float4 acc) {
  return {fmaf(w, v.x, acc.x), fmaf(w, v.y, acc.y), fmaf(w, v.z, acc.z), fmaf(w, v.w, acc.w)};
}

__device__ inline float4 add4(float4 a, float4 b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

/// a * factor * w
__device__ inline float4 scale4(float4 a, float factor, float4 w) {
  return {a.x * factor * w.x, a.y * factor * w.y, a.z * factor * w.z, a.w * factor * w.w};
}

__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, mask);
  }
  return x;
}

/// Sums of kCount values over lanes whose numbers differ in the bits of kCount - 1: lane l is left
/// with value l % kCount.
template <int kCount>
__device__ __forceinline__ float transpose_sum(float* x) {
  if constexpr (kCount == 1) {
    return x[0];
  } else {
    constexpr int kHalf = kCount / 2;
    const bool upper = (threadIdx.x & kHalf) != 0;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float give = upper ? x[i] : x[i + kHalf];
      const float keep = upper ? x[i + kHalf] : x[i];
      x[i] = keep + __shfl_xor_sync(0xffffffffu, give, kHalf);
    }
    return transpose_sum<kHalf>(x);
  }
}

__device__ inline void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

__device__ inline void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ inline uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

/// Numbers that the blocks of a cluster send to each other and to themselves, step by step. A
/// block's barrier counts the bytes that it gets, so that nobody waits for anything else: the
/// release of a cluster barrier would wait for all stores to device memory. Steps use two buffers
/// in turn; a block sends step n + 2 only after it has step n + 1 of all, so none is overwritten.
struct Exchange {
  uint64_t barriers[2];

  /// By one thread, before the cluster's first barrier.
  __device__ void init() {
    cuda::barrier_init(cuda::shared_address(&barriers[0]), 1);
    cuda::barrier_init(cuda::shared_address(&barriers[1]), 1);
    cuda::barrier_init_done();
  }
  /// By one thread in each step: how many floats will come from each block.
  __device__ void expect(int64_t step, int floats) {
    cuda::barrier_arrive_expecting(cuda::shared_address(&barriers[step % 2]),
                                   static_cast<uint32_t>(floats * 4 * kClusterBlocks));
  }
  /// x to the same place in every block.
  __device__ void send(int64_t step, float* place, float x) {
#pragma unroll
    for (int block = 0; block < kClusterBlocks; ++block) {
      asm volatile(
          "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
              in_block(place, block)),
          "r"(__float_as_uint(x)), "r"(in_block(&barriers[step % 2], block))
          : "memory");
    }
  }
  /// Until all that was expected is here.
  __device__ void wait(int64_t step) {
    cuda::barrier_wait(cuda::shared_address(&barriers[step % 2]),
                       static_cast<uint32_t>(step / 2 % 2));
  }

 private:
  static __device__ uint32_t in_block(const void* shared, int block) {
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(there)
        : "r"(cuda::shared_address(shared)), "r"(block));
    return there;
  }
};

inline bool is_float(DType type) { return type == DType::kF32 || type == DType::kBf16; }

/// Checks of the host on what both entry points take.
inline bool sources_valid(const AttnResSourcesCuda& s, int64_t dim) {
  if (s.count < 1 || s.count > kAttnResSourcesMax || !is_float(s.type) || dim % 32 != 0 ||
      dim > kAttnResDimMax) {
    return false;
  }
  for (int32_t i = 0; i < s.count; ++i) {
    if (s.rows[i] == nullptr || s.strides[i] % 8 != 0 ||
        reinterpret_cast<uintptr_t>(s.rows[i]) % 16 != 0) {
      return false;
    }
  }
  return true;
}

}  // namespace triax::depth::gpu
