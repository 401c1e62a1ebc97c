// The gated activations: a grid over rows and columns.
#include <cuda_bf16.h>

#include "dense/linear/gating.cuh"
#include "device/cuda/overlap.cuh"
#include "width/situ/situ_cuda.h"

namespace triax::width {
namespace {

constexpr int kThreads = 256;

__global__ void activate_rows(const GatedActivationCuda args) {
  cuda::wait_for_previous();
  const int64_t t = blockIdx.x;
  const int64_t f = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (f < args.size) {
    const float x = dense::gated(args.activation, args.gate[t * args.gate_stride + f],
                                 args.up[t * args.up_stride + f]);
    const int64_t to = t * args.out_stride + f;
    if (args.out_bf16) {
      static_cast<__nv_bfloat16*>(args.out)[to] = __float2bfloat16(x);
    } else {
      static_cast<float*>(args.out)[to] = x;
    }
  }
}

}  // namespace

int triax_cuda_gated_activation(const GatedActivationCuda* args, void* stream) {
  if (args->rows > 0 && args->size > 0) {
    const dim3 grid(static_cast<unsigned>(args->rows),
                    static_cast<unsigned>(cuda::blocks_for(args->size, kThreads)));
    return cuda::launch_overlapping(activate_rows, grid, kThreads, 0,
                                    static_cast<cudaStream_t>(stream), args->overlap, *args);
  }
  return cudaSuccess;
}

}  // namespace triax::width
