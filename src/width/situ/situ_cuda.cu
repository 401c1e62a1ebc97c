// The gated activations: a grid over rows and columns.
#include "device/cuda/block.cuh"
#include "width/situ/situ_cuda.h"

namespace triax::width {
namespace {

constexpr int kThreads = 256;

__device__ float activate(const Activation& activation, float gate, float up) {
  if (activation.kind == Activation::Kind::kSilu) {
    return cuda::silu(gate) * up;
  }
  const float b = activation.beta;
  const float l = activation.linear_beta;
  return b * tanhf(gate / b) * cuda::sigmoid(gate) * (l * tanhf(up / l));
}

__global__ void activate_rows(GatedActivationCuda args) {
  const int64_t t = blockIdx.x;
  const int64_t f = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (f < args.size) {
    args.out[t * args.out_stride + f] = activate(
        args.activation, args.gate[t * args.gate_stride + f], args.up[t * args.up_stride + f]);
  }
}

}  // namespace

int triax_cuda_gated_activation(const GatedActivationCuda* args, void* stream) {
  if (args->rows > 0 && args->size > 0) {
    const dim3 grid(static_cast<unsigned>(args->rows),
                    static_cast<unsigned>(cuda::blocks_for(args->size, kThreads)));
    activate_rows<<<grid, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(*args);
  }
  return cudaGetLastError();
}

}  // namespace triax::width
