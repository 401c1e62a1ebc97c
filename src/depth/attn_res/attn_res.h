// Attention Residuals: a softmax over depth. Each layer input mixes the sums of earlier blocks.
#pragma once

#include <span>

#include "base/status.h"
#include "device/device.h"
#include "tensor/tensor.h"

namespace triax::depth {

/// out[t] = sum_i p_i v_i[t];  p = softmax_i( sum_d query[d] v_i[t, d] / sqrt(mean(v_i[t]^2)+eps) )
/// `query` is the pseudo-query times the norm's weight, multiplied beforehand. Full Attention
/// Residuals pass every earlier layer's output as a source, block ones the block sums.
struct AttnResArgs {
  std::span<const ConstTensorView> sources;  // B >= 1 of [T, D] float32, rows strided
  ConstTensorView query;                     // [D] float32
  float eps = 1e-5f;
  TensorView out;              // [T, D]; not a source
  ConstTensorView delta = {};  // [T, D] or empty, where attn_res_adds: first the last source
                               // becomes itself plus delta, in place
};

/// Whether attn_res and attn_res_merge take a delta, which saves the residual addition's own pass.
bool attn_res_adds(const Device& device, int64_t sources, int64_t size);

/// The whole mix at once.
/// Precision  float32; truth: attn_res_reference.cc
/// Errors     kInvalidArgument for shape or type; nothing is written then
/// Source     spec 2.4, Attention Residuals report
Status attn_res(const Device& device, const AttnResArgs& args);

/// Phase one of two: what Q queries of one block see of the sources that are already complete, in
/// one pass over them. The result is the unnormalised softmax of each query:
///   max[q, t], sum[q, t] = sum_i exp(s_i - max), acc[q, t] = sum_i exp(s_i - max) v_i[t]
struct AttnResBankArgs {
  std::span<const ConstTensorView> sources;  // B >= 1 of [T, D]
  ConstTensorView queries;                   // [Q, D]
  float eps = 1e-5f;
  TensorView acc;  // [Q, T, D] contiguous
  TensorView max;  // [Q, T]
  TensorView sum;  // [Q, T]
};
Status attn_res_bank(const Device& device, const AttnResBankArgs& args);

/// Phase two: merges the running sum `partial` into the banked part by the online softmax.
/// Equal to attn_res over sources + partial within 1e-6 of its size.
struct AttnResMergeArgs {
  ConstTensorView acc;      // [T, D] of this query
  ConstTensorView max;      // [T]
  ConstTensorView sum;      // [T]
  ConstTensorView partial;  // [T, D]
  ConstTensorView query;    // [D]
  float eps = 1e-5f;
  TensorView out;              // [T, D]; may be acc, may not be partial
  ConstTensorView delta = {};  // as above: partial becomes itself plus delta
};
Status attn_res_merge(const Device& device, const AttnResMergeArgs& args);

}  // namespace triax::depth
