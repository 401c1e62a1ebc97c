// The middle of a KDA layer on a GPU in one or few kernels: convolution, recurrence, norm and gate.
#pragma once

#include "sequence/kda/kda.h"

namespace triax::sequence {

/// How a GPU may compute: kExact as short_conv, kda and kda_output would; kBf16 rounds the inputs
/// of the recurrence's products to bf16 for tensor cores.
enum class KdaPrecision { kExact, kBf16 };

/// short_conv of qkv, kda with the rule kKda on its three parts, kda_output.
struct KdaFusedArgs {
  ConstTensorView qkv;          // [T, 3 H 128]: q, k, v channels side by side, raw
  ConstTensorView conv_weight;  // [4, 3 H 128]
  TensorView windows;           // [S, 3, 3 H 128]; updated
  KdaArgs kda;                  // without q, k, v; out is the result
  ConstTensorView norm_weight;  // [128]
  float norm_eps = 1e-5f;
  ConstTensorView gate_logit;  // [T, H, 128]
  KdaPrecision precision = KdaPrecision::kExact;
};

/// True when it was done, false where the three operations must be called: on a CPU, off
/// Hopper, for another head size, for prefill with kExact. Arguments are those of the operations,
/// already of the right shape; kda.out is distinct from all inputs.
Result<bool> kda_fused(const Device& device, const KdaFusedArgs& args);

}  // namespace triax::sequence
