// rms_norm on the GPU, plain: any architecture, float32, a block for each row.
#pragma once

#include <cstdint>

namespace triax::dense {

/// sum = in + delta;  out[t, d] = sum[t, d] / sqrt(mean_d(sum[t]^2) + eps) * weight[d]
/// delta null: sum is in and not stored; otherwise the contract of norm.h
/// Shapes     in, delta, sum, out [rows, size] device float32, rows at their strides; weight [size]
struct RmsNormCuda {
  const float* in;
  int64_t in_stride;
  const float* weight;
  float eps;
  float* out;
  int64_t out_stride;
  int64_t rows;
  int64_t size;
  const float* delta = nullptr;
  int64_t delta_stride = 0;
  float* sum = nullptr;
  int64_t sum_stride = 0;
  void* rounded = nullptr;  // out as bf16, rows dense; null: not wanted
  bool overlap = false;     // the kernel in front does not write `weight`
};

/// Precision  the sum of squares in double, in a fixed order; a row's bits depend on that row only
/// Aliasing   sum may be in or delta; out may be in where delta is null, and sum
/// Errors     a cudaError_t as int; enqueues only
extern "C" int triax_cuda_rms_norm(const RmsNormCuda* args, void* stream);

}  // namespace triax::dense
