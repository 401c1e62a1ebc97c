// Sums and copies of rows: a block for each row.
#include "dense/rows/rows_cuda.h"
#include "device/cuda/block.cuh"

namespace triax::dense {
namespace {

constexpr int kThreads = 256;

__global__ void add_rows(AddRowsCuda args) {
  const float* delta = args.delta + static_cast<int64_t>(blockIdx.x) * args.delta_stride;
  float* sum = args.sum + static_cast<int64_t>(blockIdx.x) * args.sum_stride;
  for (int64_t d = threadIdx.x; d < args.size; d += kThreads) {
    sum[d] += delta[d];
  }
}

__global__ void copy_rows(CopyRowsCuda args) {
  const int64_t i = blockIdx.x;
  const int64_t source = args.indices != nullptr ? args.indices[i] : i;
  const float* in = args.in + source * args.in_stride;
  float* out = args.out + i * args.out_stride;
  for (int64_t d = threadIdx.x; d < args.size; d += kThreads) {
    out[d] = in[d];
  }
}

}  // namespace

int triax_cuda_add_rows(const AddRowsCuda* args, void* stream) {
  if (args->rows > 0 && args->size > 0) {
    add_rows<<<static_cast<unsigned>(args->rows), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        *args);
  }
  return cudaGetLastError();
}

int triax_cuda_copy_rows(const CopyRowsCuda* args, void* stream) {
  if (args->rows > 0 && args->size > 0) {
    copy_rows<<<static_cast<unsigned>(args->rows), kThreads, 0,
                static_cast<cudaStream_t>(stream)>>>(*args);
  }
  return cudaGetLastError();
}

}  // namespace triax::dense
