// The few instructions that the KDA prefill kernel needs by name. sm_90.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "device/cuda/barrier.cuh"

namespace triax::sequence::ptx {

// --- matrix fragments -------------------------------------------------------------------------

struct Fragment {
  uint32_t r[4];
};

/// Four 8x8 tiles of 16-bit elements; lane l names the row l % 8 of tile l / 8.
__device__ inline Fragment load_tiles(const void* row) {
  Fragment f;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(f.r[0]), "=r"(f.r[1]), "=r"(f.r[2]), "=r"(f.r[3])
               : "r"(cuda::shared_address(row))
               : "memory");
  return f;
}

/// The same, each tile transposed.
__device__ inline Fragment load_tiles_transposed(const void* row) {
  Fragment f;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(f.r[0]), "=r"(f.r[1]), "=r"(f.r[2]), "=r"(f.r[3])
               : "r"(cuda::shared_address(row))
               : "memory");
  return f;
}

__device__ inline void store_tiles_transposed(void* row, const Fragment& f) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                   cuda::shared_address(row)),
               "r"(f.r[0]), "r"(f.r[1]), "r"(f.r[2]), "r"(f.r[3])
               : "memory");
}

/// c[16x8] += a[16x16] b[16x8], bf16 with float32 sums. Lane l holds of c: rows l/4 and l/4 + 8,
/// columns 2 (l % 4) and the next.
__device__ inline void multiply(float (&c)[4], const Fragment& a, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b0), "r"(b1));
}

/// c[16x8] += a[16x8] b[8x8], tf32.
__device__ inline void multiply_tf32(float (&c)[4], const Fragment& a, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b0), "r"(b1));
}

__device__ inline uint32_t to_tf32(float x) {
  uint32_t r;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
  return r;
}

/// Two floats as bf16, the first in the low half.
__device__ inline uint32_t pack(float low, float high) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
__device__ inline float low_half(uint32_t packed) { return __uint_as_float(packed << 16); }
__device__ inline float high_half(uint32_t packed) { return __uint_as_float(packed & 0xFFFF0000u); }

// --- special functions ------------------------------------------------------------------------

__device__ inline float exp2_fast(float x) {  // 2 ulp; below 2^-126: 0
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
__device__ inline float reciprocal(float x) {  // 1 ulp
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
__device__ inline float log2_fast(float x) {
  float r;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

}  // namespace triax::sequence::ptx
