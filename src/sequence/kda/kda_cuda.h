// Kimi Delta Attention on the GPU, plain: the recurrence token by token in float32, on any
// architecture; and the gated norm at the layer's end.
#pragma once

#include <cstdint>

#include "sequence/kda/kda.h"

namespace triax::sequence {

/// [T, H, .] in device memory: strides in elements, the last dimension dense.
struct KdaInputCuda {
  const float* data;
  int64_t token;
  int64_t head;
};

/// The contract of kda.h: all four rules, both gates.
/// Shapes     q, k [T, heads, keys]; v, out [T, heads, values]; decay [T, heads, keys], kGatedDelta
///            [T, heads, 1]; beta [T, heads] (head stride 1 in a dense array); a_log [heads];
///            dt_bias [heads, keys], kGatedDelta [heads, 1], heads at dt_bias_head; what a rule
///            does not use may be null
///            cu_seqlens [sequences + 1], starts, slots [sequences], requests [request_count] in
///            device memory; states [S, heads, values, keys] strided, updated
struct KdaCuda {
  Rule rule;
  DecayGate gate;
  float lower_bound;
  int64_t heads;
  int64_t keys;  // <= kKdaCudaKeysMax
  int64_t values;
  KdaInputCuda q, k, v, decay, beta;
  const float* a_log;
  const float* dt_bias;
  int64_t dt_bias_head;
  const int64_t* cu_seqlens;
  const int64_t* starts;
  const int32_t* slots;
  int64_t sequences;
  float* states;
  int64_t state_slot;
  int64_t state_head;
  int64_t state_row;
  const KdaStateRequest* requests;
  int64_t request_count;
  float* out;
  int64_t out_token;
  int64_t out_head;
};

constexpr int64_t kKdaCudaKeysMax = 256;

/// Precision  float32, exact for any gate
/// Invariance out and state do not depend on the batch, nor on any split, bit for bit
/// Edges      those of kda.h: slot -1, empty sequences, rows after the end
/// Aliasing   out may be v
/// Errors     a cudaError_t as int (keys beyond the limit: cudaErrorNotSupported); enqueues only
extern "C" int triax_cuda_kda(const KdaCuda* args, void* stream);

/// out = rms_norm_V(in) * weight * sigmoid(gate_logit), the contract of KdaOutputArgs
/// Shapes     in, gate, out [tokens, heads, values] strided; weight [values]
struct KdaOutputCuda {
  KdaInputCuda in;
  const float* weight;
  float eps;
  KdaInputCuda gate;
  float* out;
  int64_t out_token;
  int64_t out_head;
  int64_t tokens;
  int64_t heads;
  int64_t values;
  const void* in_bf16 = nullptr;  // not null: `in` as bf16, in.data unused, strides in elements
};

/// Aliasing   out may be in where both are float32
/// Errors     a cudaError_t as int; enqueues only
extern "C" int triax_cuda_kda_output(const KdaOutputCuda* args, void* stream);

}  // namespace triax::sequence
