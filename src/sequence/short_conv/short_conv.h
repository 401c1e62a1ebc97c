// Short depthwise causal convolution with SiLU, over a ragged batch of sequences.
#pragma once

#include <span>

#include "base/status.h"
#include "device/device.h"
#include "tensor/tensor.h"

namespace triax::sequence {

constexpr int64_t kShortConvTaps = 4;

/// out[t, c] = silu( sum_{i=0..3} weight[i, c] * u[t - 3 + i, c] ), u continuing into the window
struct ShortConvArgs {
  ConstTensorView in;      // [T, C] float32, rows strided: all sequences' tokens, one after another
  ConstTensorView weight;  // [4, C] float32; tap 3 multiplies the current token
  std::span<const int64_t> cu_seqlens;  // [N + 1] starts at 0, ascending, ends at <= T
  std::span<const int32_t> slots;       // [N] the sequence's window in the pool; -1: none
  TensorView windows;  // [S, 3, C] float32: the last 3 raw inputs, oldest first; zero at start;
                       // updated
  TensorView out;      // [T, C] float32, rows strided
};

/// Invariance any split of a sequence gives the same bits
/// Edges      an empty sequence leaves its window; slot -1: zeros are written to out, no window is
///            read or written; rows after cu_seqlens[N] are not written
/// Aliasing   out and in are distinct; slots >= 0 are distinct
/// Errors     kInvalidArgument for shape, cu_seqlens or slot out of range; nothing is written then
/// Source     spec 2.2 step 2; truth: short_conv_reference.cc
Status short_conv(const Device& device, const ShortConvArgs& args);

}  // namespace triax::sequence
