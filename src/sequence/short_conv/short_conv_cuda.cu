// The short convolution on the GPU: one kernel for the outputs, one for the windows after it, since
// a short sequence's new window still holds a part of the old one.
#include <cuda_bf16.h>

#include "device/cuda/block.cuh"
#include "sequence/short_conv/short_conv.h"
#include "sequence/short_conv/short_conv_cuda.h"

namespace triax::sequence {
namespace {

constexpr int kThreads = 128;
constexpr int64_t kRun = 16;  // tokens of one thread
constexpr int64_t kWindow = kShortConvTaps - 1;

/// Raw input of channel c at token t of sequence n; t < 0 reaches into the window.
__device__ float raw_input(const ShortConvCuda& args, int64_t n, int64_t t, int64_t c) {
  if (t < 0) {
    return args.windows[args.slots[n] * args.window_slot + (t + kWindow) * args.window_tap + c];
  }
  return args.in[(args.cu_seqlens[n] + t) * args.in_stride + c];
}

__device__ void load_taps(const ShortConvCuda& args, int64_t c, float (&taps)[kShortConvTaps]) {
#pragma unroll
  for (int i = 0; i < kShortConvTaps; ++i) {
    taps[i] = args.weight[i * args.weight_stride + c];
  }
}

template <typename Out>
__device__ Out to_out(float x) {
  if constexpr (sizeof(Out) == 4) {
    return x;
  } else {
    return __float2bfloat16(x);
  }
}

/// Tokens [begin, end) of sequence n, given relative to it; the last raw inputs stay in registers.
template <typename Out>
__device__ void convolve(const ShortConvCuda& args, int64_t n, int64_t begin, int64_t end,
                         int64_t c, const float (&taps)[kShortConvTaps]) {
  Out* out = static_cast<Out*>(args.out) + args.cu_seqlens[n] * args.out_stride + c;
  if (args.slots[n] < 0) {
    for (int64_t t = begin; t < end; ++t) {
      out[t * args.out_stride] = to_out<Out>(0.0f);
    }
    return;
  }
  float u[kShortConvTaps] = {};
#pragma unroll
  for (int i = 0; i < kWindow; ++i) {
    u[i + 1] = raw_input(args, n, begin - kWindow + i, c);
  }
  for (int64_t t = begin; t < end; ++t) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kShortConvTaps; ++i) {
      u[i] = i < kWindow ? u[i + 1] : raw_input(args, n, t, c);
      sum = fmaf(taps[i], u[i], sum);
    }
    out[t * args.out_stride] = to_out<Out>(cuda::silu(sum));
  }
}

template <typename Out>
__global__ void short_conv_outputs(ShortConvCuda args) {
  const int64_t c = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (c >= args.channels) {
    return;
  }
  float taps[kShortConvTaps];
  load_taps(args, c, taps);
  int64_t t = static_cast<int64_t>(blockIdx.x) * kRun;
  const int64_t stop = min(t + kRun, args.cu_seqlens[args.sequences]);
  while (t < stop) {
    const int64_t n = cuda::group_of(args.cu_seqlens, args.sequences, t);
    const int64_t first = args.cu_seqlens[n];
    const int64_t end = min(stop, args.cu_seqlens[n + 1]);
    convolve<Out>(args, n, t - first, end - first, c, taps);
    t = end;
  }
}

__global__ void short_conv_windows(ShortConvCuda args) {
  const int64_t c = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  const int64_t n = blockIdx.x;
  if (c >= args.channels || args.slots[n] < 0) {
    return;
  }
  const int64_t length = args.cu_seqlens[n + 1] - args.cu_seqlens[n];
  for (int64_t i = 0; i < kWindow && length > 0; ++i) {  // ascending: entry i reads entries >= i
    args.windows[args.slots[n] * args.window_slot + i * args.window_tap + c] =
        raw_input(args, n, length - kWindow + i, c);
  }
}

}  // namespace

int triax_cuda_short_conv(const ShortConvCuda* args, void* stream) {
  if (args->tokens == 0 || args->channels == 0 || args->sequences == 0) {
    return cudaSuccess;
  }
  const auto columns = static_cast<unsigned>(cuda::blocks_for(args->channels, kThreads));
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  const auto runs = static_cast<unsigned>(cuda::blocks_for(args->tokens, kRun));
  const auto outputs =
      args->out_bf16 ? short_conv_outputs<__nv_bfloat16> : short_conv_outputs<float>;
  outputs<<<dim3(runs, columns), kThreads, 0, cuda_stream>>>(*args);
  short_conv_windows<<<dim3(static_cast<unsigned>(args->sequences), columns), kThreads, 0,
                       cuda_stream>>>(*args);
  return cudaGetLastError();
}

}  // namespace triax::sequence
