// Rows of the embedding table on the GPU, dequantised exactly.
#pragma once

#include <cstdint>

#include "tensor/matrix.h"

namespace triax::dense {

/// out[t] = table[ids[t]], the contract of embedding.h
/// Shapes     ids [count] device int32; table in device memory; out [count, table.cols] float32
/// Edges      an id outside the table gives a row of NaN: the host cannot check ids that were
///            drawn on the device
struct EmbedCuda {
  const int32_t* ids;
  int64_t count;
  MatrixView table;
  float* out;
  int64_t out_stride;
};

/// Errors     a cudaError_t as int; enqueues only
extern "C" int triax_cuda_embed(const EmbedCuda* args, void* stream);

}  // namespace triax::dense
