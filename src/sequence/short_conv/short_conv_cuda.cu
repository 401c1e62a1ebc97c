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

constexpr int kWideTokens = 8;  // of one thread that takes four channels

template <typename Out>
__device__ void store_four(Out* to, float4 x) {
  if constexpr (sizeof(Out) == 4) {
    *reinterpret_cast<float4*>(to) = x;
  } else {
    const __nv_bfloat162 pairs[2] = {__floats2bfloat162_rn(x.x, x.y),
                                     __floats2bfloat162_rn(x.z, x.w)};
    *reinterpret_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(pairs);
  }
}

__device__ float4 fma_four(float4 a, float4 b, float4 c) {
  return {fmaf(a.x, b.x, c.x), fmaf(a.y, b.y, c.y), fmaf(a.z, b.z, c.z), fmaf(a.w, b.w, c.w)};
}

/// Up to kWideTokens tokens of sequence n from `begin` on: all their inputs are asked for before
/// the first is used.
template <typename Out>
__device__ void convolve_four(const ShortConvCuda& args, int64_t n, int64_t begin, int count,
                              int64_t c, const float4 (&taps)[kShortConvTaps]) {
  const int64_t first = args.cu_seqlens[n];
  const int32_t slot = args.slots[n];
  const float* rows = args.in + first * args.in_stride + c;
  const float* window = args.windows + slot * args.window_slot + c;
  float4 in[kWideTokens + kWindow];
#pragma unroll
  for (int i = 0; i < kWideTokens + kWindow; ++i) {
    const int64_t t = begin - kWindow + i;
    const float* from =
        t < 0 ? window + (t + kWindow) * args.window_tap : rows + t * args.in_stride;
    in[i] = slot >= 0 && i < count + kWindow ? *reinterpret_cast<const float4*>(from)
                                             : float4{0.0f, 0.0f, 0.0f, 0.0f};
  }
  Out* out = static_cast<Out*>(args.out) + (first + begin) * args.out_stride + c;
#pragma unroll
  for (int i = 0; i < kWideTokens; ++i) {
    if (i < count) {
      float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int j = 0; j < kShortConvTaps; ++j) {
        sum = fma_four(taps[j], in[i + j], sum);
      }
      store_four(out + i * args.out_stride,
                 {cuda::silu(sum.x), cuda::silu(sum.y), cuda::silu(sum.z), cuda::silu(sum.w)});
    }
  }
}

/// As short_conv_outputs, bit for bit, where rows allow four channels at a time.
template <typename Out>
__global__ void __launch_bounds__(kThreads) short_conv_wide(ShortConvCuda args) {
  const int64_t c = 4 * (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x);
  if (c >= args.channels) {
    return;
  }
  float4 taps[kShortConvTaps];
#pragma unroll
  for (int i = 0; i < kShortConvTaps; ++i) {
    taps[i] = *reinterpret_cast<const float4*>(args.weight + i * args.weight_stride + c);
  }
  int64_t t = static_cast<int64_t>(blockIdx.x) * kWideTokens;
  const int64_t stop = min(t + kWideTokens, args.cu_seqlens[args.sequences]);
  while (t < stop) {
    const int64_t n = cuda::group_of(args.cu_seqlens, args.sequences, t);
    const int64_t end = min(stop, args.cu_seqlens[n + 1]);
    convolve_four<Out>(args, n, t - args.cu_seqlens[n], static_cast<int>(end - t), c, taps);
    t = end;
  }
}

bool takes_four(const ShortConvCuda& args) {
  const auto aligned = [](const void* p, uintptr_t bytes) {
    return reinterpret_cast<uintptr_t>(p) % bytes == 0;
  };
  const int64_t all = args.channels | args.in_stride | args.weight_stride | args.window_slot |
                      args.window_tap | args.out_stride;
  return all % 4 == 0 && aligned(args.in, 16) && aligned(args.weight, 16) &&
         aligned(args.windows, 16) && aligned(args.out, args.out_bf16 ? 8 : 16);
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
  const bool four = takes_four(*args);
  const auto wide = args->out_bf16 ? short_conv_wide<__nv_bfloat16> : short_conv_wide<float>;
  const auto narrow =
      args->out_bf16 ? short_conv_outputs<__nv_bfloat16> : short_conv_outputs<float>;
  const dim3 grid(
      static_cast<unsigned>(cuda::blocks_for(args->tokens, four ? kWideTokens : kRun)),
      static_cast<unsigned>(cuda::blocks_for(args->channels, four ? 4 * kThreads : kThreads)));
  (four ? wide : narrow)<<<grid, kThreads, 0, cuda_stream>>>(*args);
  short_conv_windows<<<dim3(static_cast<unsigned>(args->sequences), columns), kThreads, 0,
                       cuda_stream>>>(*args);
  return cudaGetLastError();
}

}  // namespace triax::sequence
