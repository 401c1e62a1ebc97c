// rms_norm on the GPU: a block for each row.
#include "dense/norm/norm_cuda.h"
#include "device/cuda/block.cuh"

namespace triax::dense {
namespace {

constexpr int kThreads = 256;

__global__ void rms_norm_rows(RmsNormCuda args) {
  const int64_t t = blockIdx.x;
  const float* in = args.in + t * args.in_stride;
  float* out = args.out + t * args.out_stride;
  double sum = 0.0;
  for (int64_t d = threadIdx.x; d < args.size; d += kThreads) {
    const double x = in[d];
    sum += x * x;
  }
  sum = cuda::block_sum<kThreads>(sum);
  const double mean = sum / static_cast<double>(args.size);
  const auto scale = static_cast<float>(1.0 / sqrt(mean + static_cast<double>(args.eps)));
  for (int64_t d = threadIdx.x; d < args.size; d += kThreads) {
    out[d] = in[d] * scale * args.weight[d];
  }
}

}  // namespace

int triax_cuda_rms_norm(const RmsNormCuda* args, void* stream) {
  if (args->rows == 0 || args->size == 0) {
    return cudaSuccess;
  }
  rms_norm_rows<<<static_cast<unsigned>(args->rows), kThreads, 0,
                  static_cast<cudaStream_t>(stream)>>>(*args);
  return cudaGetLastError();
}

}  // namespace triax::dense
