// The router on the GPU: logits by warps that each take some experts and tokens, then a warp for
// each token picks its experts one after another.
#include "dense/linear/products.cuh"
#include "device/cuda/block.cuh"
#include "width/router/router_cuda.h"
#include "width/router/router_select.cuh"

namespace triax::width {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / cuda::kWarp;

/// kTokens tokens and kExperts experts a warp. A logit's bits do not depend on either.
template <MatrixFormat kFormat, bool kWide, int kTokens, int kExperts>
__global__ void __launch_bounds__(kThreads)
    router_logits(RouterLogitsCuda args, dense::DeviceWeights gate) {
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kTokens;
  const int64_t expert =
      (static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / cuda::kWarp) * kExperts;
  if (expert >= gate.rows) {
    return;
  }
  const float* x[kTokens];
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    x[t] = args.in + min(first + t, args.tokens - 1) * args.in_stride;
  }
  float sums[kTokens][kExperts];
  dense::warp_product<kFormat, kWide>(gate, expert, x, sums);
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
#pragma unroll
    for (int e = 0; e < kExperts; ++e) {
      if (threadIdx.x % cuda::kWarp == 0 && first + t < args.tokens && expert + e < gate.rows) {
        args.logits[(first + t) * gate.rows + expert + e] = sums[t][e];
      }
    }
  }
}

template <int kOwned>
__global__ void __launch_bounds__(kThreads) router_select(RouterSelectCuda args) {
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / cuda::kWarp;
  if (t < args.tokens) {
    choose_experts<kOwned>(args.choice, args.logits + t * args.experts,
                           static_cast<int>(args.experts), static_cast<int>(args.count),
                           args.ids + t * args.ids_stride, args.weights + t * args.weights_stride);
  }
}

template <MatrixFormat kFormat, bool kWide, int kTokens, int kExperts>
void launch_logits(const RouterLogitsCuda& args, cudaStream_t stream) {
  const dense::DeviceWeights gate = dense::device_weights(args.gate);
  const dim3 grid(static_cast<unsigned>(cuda::blocks_for(gate.rows, kWarps * kExperts)),
                  static_cast<unsigned>(cuda::blocks_for(args.tokens, kTokens)));
  router_logits<kFormat, kWide, kTokens, kExperts><<<grid, kThreads, 0, stream>>>(args, gate);
}

template <MatrixFormat kFormat, bool kWide>
void launch_logits(const RouterLogitsCuda& args, cudaStream_t stream) {
  if (args.tokens == 1) {
    launch_logits<kFormat, kWide, 1, 1>(args, stream);
  } else if (args.tokens <= 4) {
    launch_logits<kFormat, kWide, 4, 2>(args, stream);
  } else {
    launch_logits<kFormat, kWide, 8, 2>(args, stream);
  }
}

}  // namespace

int triax_cuda_router_logits(const RouterLogitsCuda* args, void* stream) {
  if (args->tokens == 0 || args->gate.rows == 0) {
    return cudaSuccess;
  }
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  const bool wide = dense::wide_weights(args->gate.data, args->gate.cols) &&
                    dense::wide_rows(args->in, args->in_stride, args->gate.cols);
  dense::with_format(args->gate.format, [&]<MatrixFormat kFormat>() {
    if (wide) {
      launch_logits<kFormat, true>(*args, cuda_stream);
    } else {
      launch_logits<kFormat, false>(*args, cuda_stream);
    }
  });
  return cudaGetLastError();
}

int triax_cuda_router_select(const RouterSelectCuda* args, void* stream) {
  if (args->experts > kRouterExpertsMax) {
    return cudaErrorNotSupported;
  }
  if (args->tokens == 0 || args->count == 0) {
    return cudaSuccess;
  }
  const auto blocks = static_cast<unsigned>(cuda::blocks_for(args->tokens, kWarps));
  const auto select = args->experts <= 8 * cuda::kWarp    ? router_select<8>
                      : args->experts <= 32 * cuda::kWarp ? router_select<32>
                                                          : router_select<256>;
  select<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(*args);
  return cudaGetLastError();
}

}  // namespace triax::width
