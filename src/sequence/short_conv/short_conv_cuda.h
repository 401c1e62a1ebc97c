// The short convolution on the GPU, plain: a thread for each channel and run of tokens.
#pragma once

#include <cstdint>

namespace triax::sequence {

/// out[t, c] = silu( sum_{i=0..3} weight[i, c] * u[t - 3 + i, c] ), the contract of short_conv.h
/// Shapes     in, out [tokens, channels] device float32, rows strided; weight [4, channels], taps
///            at weight_stride; windows [S, 3, channels], slots and taps strided, updated;
///            cu_seqlens [sequences + 1], slots [sequences] in device memory
struct ShortConvCuda {
  const float* in;
  int64_t in_stride;
  const float* weight;
  int64_t weight_stride;
  const int64_t* cu_seqlens;
  const int32_t* slots;
  int64_t sequences;
  float* windows;
  int64_t window_slot;
  int64_t window_tap;
  void* out;
  int64_t out_stride;
  int64_t tokens;
  int64_t channels;
  bool out_bf16 = false;  // out is bf16, its stride in elements
};

/// Invariance any split of a sequence gives the same bits
/// Edges      those of short_conv.h: slot -1, empty sequences, rows after the end
/// Errors     a cudaError_t as int; enqueues only
extern "C" int triax_cuda_short_conv(const ShortConvCuda* args, void* stream);

}  // namespace triax::sequence
