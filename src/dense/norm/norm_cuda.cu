// rms_norm on the GPU, with the sum in front of it: a block for each row.
#include <cuda_bf16.h>

#include "dense/norm/norm_cuda.h"
#include "device/cuda/block.cuh"
#include "device/cuda/overlap.cuh"

namespace triax::dense {
namespace {

constexpr int kThreads = 256;
constexpr int kKept = 4;  // elements, or quadruples of them, that a thread keeps in registers

/// One element or four of them.
__device__ float plus(float a, float b) { return a + b; }
__device__ float4 plus(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
__device__ double square(float a) { return static_cast<double>(a) * static_cast<double>(a); }
__device__ double square(float4 a) { return square(a.x) + square(a.y) + square(a.z) + square(a.w); }
__device__ float scaled(float a, float scale, float w) { return a * scale * w; }
__device__ float4 scaled(float4 a, float s, float4 w) {
  return make_float4(a.x * s * w.x, a.y * s * w.y, a.z * s * w.z, a.w * s * w.w);
}

__device__ void store_bf16(__nv_bfloat16* to, float a) { *to = __float2bfloat16(a); }
__device__ void store_bf16(__nv_bfloat16* to, float4 a) {
  const __nv_bfloat162 pair[2] = {__floats2bfloat162_rn(a.x, a.y), __floats2bfloat162_rn(a.z, a.w)};
  *reinterpret_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(pair);
}

/// T float or float4; `size` counts them.
template <typename T>
__device__ void norm_row(const RmsNormCuda& args, int64_t size) {
  const int64_t t = blockIdx.x;
  const auto* in = reinterpret_cast<const T*>(args.in + t * args.in_stride);
  const auto* delta = reinterpret_cast<const T*>(args.delta + t * args.delta_stride);
  auto* sum = reinterpret_cast<T*>(args.sum + t * args.sum_stride);
  const auto* weight = reinterpret_cast<const T*>(args.weight);
  auto* out = reinterpret_cast<T*>(args.out + t * args.out_stride);
  auto* rounded = static_cast<__nv_bfloat16*>(args.rounded) + t * args.size;
  const auto write = [&](int64_t d, T x) {
    out[d] = x;
    if (args.rounded != nullptr) {
      store_bf16(rounded + d * static_cast<int64_t>(sizeof(T) / sizeof(float)), x);
    }
  };
  T kept[kKept];
  double squares = 0.0;
  const auto read = [&](int64_t d) {
    T x = in[d];
    if (args.delta != nullptr) {
      x = plus(x, delta[d]);
      sum[d] = x;
    }
    squares += square(x);
    return x;
  };
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    const int64_t d = threadIdx.x + i * kThreads;
    if (d < size) {
      kept[i] = read(d);
    }
  }
  for (int64_t d = threadIdx.x + kKept * kThreads; d < size; d += kThreads) {
    read(d);
  }
  squares = cuda::block_sum<kThreads>(squares);
  const double mean = squares / static_cast<double>(args.size);
  const auto scale = static_cast<float>(1.0 / sqrt(mean + static_cast<double>(args.eps)));
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    const int64_t d = threadIdx.x + i * kThreads;
    if (d < size) {
      write(d, scaled(kept[i], scale, weight[d]));
    }
  }
  for (int64_t d = threadIdx.x + kKept * kThreads; d < size; d += kThreads) {
    write(d, scaled(args.delta != nullptr ? sum[d] : in[d], scale, weight[d]));
  }
}

__global__ void __launch_bounds__(kThreads) rms_norm_rows(const RmsNormCuda args) {
  cuda::wait_for_previous();
  norm_row<float>(args, args.size);
}

__global__ void __launch_bounds__(kThreads) rms_norm_rows_wide(const RmsNormCuda args) {
  cuda::wait_for_previous();
  norm_row<float4>(args, args.size / 4);
}

/// Whether rows can be read four elements at a time.
bool is_wide(const RmsNormCuda& args) {
  const uintptr_t all =
      reinterpret_cast<uintptr_t>(args.in) | reinterpret_cast<uintptr_t>(args.delta) |
      reinterpret_cast<uintptr_t>(args.sum) | reinterpret_cast<uintptr_t>(args.weight) |
      reinterpret_cast<uintptr_t>(args.out);
  const int64_t strides =
      args.in_stride | args.delta_stride | args.sum_stride | args.out_stride | args.size;
  return all % 16 == 0 && strides % 4 == 0;
}

}  // namespace

int triax_cuda_rms_norm(const RmsNormCuda* args, void* stream) {
  if (args->rows == 0 || args->size == 0) {
    return cudaSuccess;
  }
  return cuda::launch_overlapping(is_wide(*args) ? rms_norm_rows_wide : rms_norm_rows,
                                  dim3(static_cast<unsigned>(args->rows)), kThreads, 0,
                                  static_cast<cudaStream_t>(stream), args->overlap, *args);
}

}  // namespace triax::dense
