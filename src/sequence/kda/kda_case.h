// What the tests of kda share: random calls, and an oracle in double with error bounds.
#pragma once

#include <string>
#include <vector>

#include "sequence/kda/kda.h"
#include "testing/testing.h"

namespace triax::sequence {

/// A call that owns its tensors. args() points into it.
struct KdaCase {
  Rule rule = Rule::kKda;
  DecayGate gate = DecayGate::kBounded;
  float lower_bound = -5.0f;
  int64_t heads = 2, keys = 128, values = 128;
  Tensor q, k, v, decay_logit, beta_logit, a_log, dt_bias, states;
  std::vector<int64_t> cu_seqlens, starts;
  std::vector<int32_t> slots;
  std::vector<KdaStateRequest> requests;

  int64_t tokens() const { return cu_seqlens.back(); }
  KdaArgs args(TensorView states_view, TensorView out) const;
  /// Tokens [begin, end) of sequence n alone, its state in slot 0 of a pool of one.
  KdaCase part(int64_t n, int64_t begin, int64_t end, ConstTensorView state) const;
};

struct KdaShape {
  Rule rule = Rule::kKda;
  DecayGate gate = DecayGate::kBounded;
  int64_t heads = 2, keys = 128, values = 128;
  std::vector<int64_t> lengths = {};
  std::vector<int64_t> starts = {};  // empty: all 0
  int64_t spare_slots = 0;           // more slots than sequences
};

/// Normal inputs, moderate gates, a state of normal numbers in every slot.
KdaCase random_case(const KdaShape& shape, uint64_t seed);

/// kda on copies of the arrays in the device's memory.
Status mirrored(const Device& device, KdaArgs args);

struct KdaResult {
  Tensor out, states;
};

/// Runs on copies: the case is not changed. Aborts when the call fails.
KdaResult run(const Device& device, const KdaCase& c);

/// Out and states in double, token by token, and a bound on the error of every element of a
/// float32 computation in either form:
///   a row of the state moves by (I - beta k k^T) Diag(a), a contraction, so errors only add up;
///   each token adds c u (|S| + |v|), in quadrature for the sums of products (c = 4 sqrt(K + 64),
///   four standard deviations), linearly for the decay, whose rounding repeats (c = 8).
struct KdaOracle {
  std::vector<double> out, out_bound;      // [T, H, V]
  std::vector<double> state, state_bound;  // [S, H, V, K], [S, H, V]
};
KdaOracle oracle(const KdaCase& c);

/// "" when every element is within its bound, else where it is not.
std::string compare(const KdaResult& result, const KdaOracle& truth, const KdaCase& c);

/// Copies of rows or slots.
Tensor copy_of(ConstTensorView view);

}  // namespace triax::sequence
