// Hopper instructions that only the MLA kernels use: maps of tensors for the copy engine, groups of
// threads. One small function an instruction; it knows nothing of attention.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <initializer_list>

#include "device/cuda/barrier.cuh"
#include "device/cuda/wgmma.cuh"

namespace triax::sequence::sm90 {

/// A map of a dense bf16 tensor for load_box, dimensions innermost first; strides, in elements, of
/// all but the innermost. The function comes from the driver at run time: nothing links to it.
inline cudaError_t encode_bf16_map(CUtensorMap* map, const void* data,
                                   std::initializer_list<int64_t> sizes,
                                   std::initializer_list<int64_t> strides,
                                   std::initializer_list<int> box) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry,
                                                             12000, cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) {
    return error != cudaSuccess ? error : cudaErrorNotSupported;
  }
  cuuint64_t size[3] = {};
  cuuint64_t stride[3] = {};
  cuuint32_t part[3] = {};
  cuuint32_t step[3] = {1, 1, 1};
  const auto rank = static_cast<cuuint32_t>(sizes.size());
  for (cuuint32_t i = 0; i < rank; ++i) {
    size[i] = static_cast<cuuint64_t>(sizes.begin()[i]);
    part[i] = static_cast<cuuint32_t>(box.begin()[i]);
    if (i + 1 < rank) {
      stride[i] = static_cast<cuuint64_t>(strides.begin()[i]) * 2;
    }
  }
  const auto encode = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry);
  const CUresult result =
      encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, rank, const_cast<void*>(data), size, stride,
             part, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

using namespace cuda;

/// Meets the other threads of a group at one of the 16 hardware barriers (0 is __syncthreads).
__device__ __forceinline__ void group_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void group_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// As group_sync; true when any thread's value is.
__device__ __forceinline__ bool group_any(int id, int threads, bool value) {
  int any = 0;
  asm volatile(
      "{.reg .pred in, out; setp.ne.b32 in, %3, 0;"
      " barrier.cta.red.or.pred out, %1, %2, in; selp.b32 %0, 1, 0, out;}"
      : "=r"(any)
      : "r"(id), "r"(threads), "r"(static_cast<int>(value))
      : "memory");
  return any != 0;
}

// ---- the copy engine ----

/// Loads one box of a map of 2 or 3 dimensions (swizzled by 128 bytes) and counts its bytes on the
/// barrier; parts outside the tensor arrive as zeros.
__device__ __forceinline__ void load_box(uint32_t to, const CUtensorMap* map, uint32_t barrier,
                                         int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4}], [%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y)
      : "memory");
}

__device__ __forceinline__ void load_box(uint32_t to, const CUtensorMap* map, uint32_t barrier,
                                         int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z)
      : "memory");
}

// ---- operands ----

/// Four 8 x 8 matrices of a warp, each stored transposed.
__device__ __forceinline__ void store_matrices_transposed(uint32_t to, uint32_t a, uint32_t b,
                                                          uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
               "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace triax::sequence::sm90
