// rms_norm on the GPU, plain: any architecture, float32, a block for each row.
#pragma once

#include <cstdint>

namespace triax::dense {

/// out[t, d] = in[t, d] / sqrt(mean_d(in[t]^2) + eps) * weight[d], the contract of norm.h
/// Shapes     in, out [rows, size] device float32, rows at their strides; weight [size]
struct RmsNormCuda {
  const float* in;
  int64_t in_stride;
  const float* weight;
  float eps;
  float* out;
  int64_t out_stride;
  int64_t rows;
  int64_t size;
};

/// Precision  the sum of squares in double, in a fixed order; a row's bits depend on that row only
/// Aliasing   out may be in
/// Errors     a cudaError_t as int; enqueues only
extern "C" int triax_cuda_rms_norm(const RmsNormCuda* args, void* stream);

}  // namespace triax::dense
