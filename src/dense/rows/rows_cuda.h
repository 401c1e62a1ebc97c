// Sums and copies of rows on the GPU: what the residual stream needs between operations.
#pragma once

#include <cstdint>

namespace triax::dense {

/// sum[t] += delta[t]
/// Shapes     both [rows, size] device float32, rows strided
struct AddRowsCuda {
  const float* delta;
  int64_t delta_stride;
  float* sum;
  int64_t sum_stride;
  int64_t rows;
  int64_t size;
};

/// Errors     a cudaError_t as int; enqueues only
extern "C" int triax_cuda_add_rows(const AddRowsCuda* args, void* stream);

/// out[i] = in[indices[i]], or in[i] where indices is null
/// Shapes     in [., size], out [rows, size] device float32, rows strided; indices [rows] device
///            int64, not checked
/// Aliasing   out is distinct from in
struct CopyRowsCuda {
  const float* in;
  int64_t in_stride;
  const int64_t* indices;
  float* out;
  int64_t out_stride;
  int64_t rows;
  int64_t size;
};

/// Errors     a cudaError_t as int; enqueues only
extern "C" int triax_cuda_copy_rows(const CopyRowsCuda* args, void* stream);

}  // namespace triax::dense
