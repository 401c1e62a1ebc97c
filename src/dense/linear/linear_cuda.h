// The product with a packed weight matrix on the GPU, plain: any architecture, float32 arithmetic.
#pragma once

#include <cstdint>

#include "tensor/matrix.h"

namespace triax::dense {

/// out[t, r] = sum_c in[t, c] * weight[r, c], the contract of linear.h with float32 activations
/// Shapes     in [tokens, weight.cols], out [tokens, weight.rows] device float32, rows strided;
///            weight.data and weight.scales in device memory
/// Layout     faster where weight.data, in and their rows are 16-byte aligned, right anywhere that
///            suits the element type
struct LinearCuda {
  const float* in;
  int64_t in_stride;
  int64_t tokens;
  MatrixView weight;
  float* out;
  int64_t out_stride;
};

/// Up to kDecodeRowsMax (linear.h) tokens the weights stream past once, a warp for some rows;
/// above, tiles of both are multiplied from shared memory. Invariance out[t, r] depends on row t
/// and on which of the two forms is taken, on nothing else Aliasing   out is distinct from all
/// inputs Errors     a cudaError_t as int; enqueues only
extern "C" int triax_cuda_linear(const LinearCuda* args, void* stream);

}  // namespace triax::dense
