// Kimi Delta Attention: a gated delta rule over a fixed state, and the lineage that leads to it.
#pragma once

#include <span>

#include "base/status.h"
#include "device/device.h"
#include "tensor/tensor.h"

namespace triax::sequence {

/// The recurrence, from ancestor to KDA:
///   kLinear      S += k v^T                                       no decay, beta = 1, no delta
///   kDelta       S += beta k (v - S^T k)^T                        no decay
///   kGatedDelta  S <- exp(g) S, then the delta step               one g per head and token
///   kKda         S <- Diag(exp(g)) S, then the delta step         one g per channel
enum class Rule { kLinear, kDelta, kGatedDelta, kKda };

/// From the raw logit z to g, the natural log of the decay, always <= 0:
///   kBounded   g = lower_bound * sigmoid(exp(a_log) * (z + dt_bias))          (Kimi K3, -5)
///   kSoftplus  g = -exp(a_log) * softplus(z + dt_bias)                        (Kimi Linear)
enum class DecayGate { kBounded, kSoftplus };

/// Tokens of one chunk of the fixed grid: chunks begin at multiples of this position.
constexpr int64_t kKdaChunk = 64;

/// A state to hand out: the one after `position` tokens of sequence `sequence`.
struct KdaStateRequest {
  int64_t sequence = 0;
  int64_t position = 0;  // absolute, a multiple of 64, in (start, start + length]
  int32_t slot = 0;      // where in the pool to write it; not one of args.slots
};

/// With q, k L2-normalised (x / sqrt(sum x^2 + 1e-6)), q scaled by K^-0.5, beta = sigmoid(logit):
///   S <- Diag(exp(g)) S;   u = v - S^T k;   S <- S + beta k u^T;   out = S^T q
struct KdaArgs {
  Rule rule = Rule::kKda;
  DecayGate gate = DecayGate::kBounded;
  float lower_bound = -5.0f;            // kBounded only; < 0
  ConstTensorView q, k;                 // [T, H, K] float32 after the short convolution
  ConstTensorView v;                    // [T, H, V]
  ConstTensorView decay_logit;          // [T, H, K]; kGatedDelta: [T, H, 1]; else unused, empty
  ConstTensorView beta_logit;           // [T, H]; kLinear: unused, empty
  ConstTensorView a_log;                // [H]; unused without decay
  ConstTensorView dt_bias;              // [H, K]; kGatedDelta: [H, 1]; unused without decay
  std::span<const int64_t> cu_seqlens;  // [N + 1] starts at 0, ascending, ends at <= T
  std::span<const int64_t> starts;      // [N] tokens of the sequence before this call
  std::span<const int32_t> slots;       // [N] the sequence's state in the pool; -1: none
  TensorView states;                    // [S, H, V, K] float32; zero for a new sequence; updated
  std::span<const KdaStateRequest> state_requests;
  TensorView out;  // [T, H, V]
};

/// One call for prefill and decode; a sequence of one token takes the recurrent form, longer ones
/// the chunked form on the absolute token grid.
/// Layout     all [T, H, .] inputs may have any token and head stride, the last dimension dense
/// Precision  float32 with float32 state; exact for any gate (no overflow, no truncation)
/// Invariance out and state of a sequence do not depend on the batch, the thread count, later
///            tokens, nor on a split at multiples of 64, bit for bit; on other splits within the
///            bound of kda_test.cc
/// Edges      an empty sequence leaves its state; slot -1: zeros are written to out, no state is
///            touched; rows after cu_seqlens[N] are not written
/// Aliasing   out may alias v; slots >= 0 and request slots are all distinct
/// Errors     kInvalidArgument for shape, cu_seqlens, starts, slot, request; nothing written then
/// Source     Kimi K3 report Eq. 1, 5; spec 2.2; truth: kda_reference.cc
Status kda(const Device& device, const KdaArgs& args);

/// The end of a KDA layer: out = rms_norm_V(in) * weight * sigmoid(gate_logit), per token and head
struct KdaOutputArgs {
  ConstTensorView in;      // [T, H, V] float32
  ConstTensorView weight;  // [V] float32, shared by the heads
  float eps = 1e-5f;
  ConstTensorView gate_logit;  // [T, H, V]
  TensorView out;              // [T, H, V]; may be in
};

/// Errors     kInvalidArgument for shape or type; nothing is written then
/// Source     spec 2.2 step 7; truth: kda_output_reference.cc
Status kda_output(const Device& device, const KdaOutputArgs& args);

}  // namespace triax::sequence
