// The hybrid stack: one forward over a ragged batch, for Kimi K3, Kimi Linear and what lies
// between.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "dense/linear/linear.h"
#include "device/device.h"
#include "model/sequence_state.h"
#include "model/weights.h"
#include "width/router/router.h"

namespace triax::model {

/// Which rows of logits a sequence wants.
enum class LogitRows { kNone, kLast, kAll };

/// One sequence's share of a step: a prefill chunk or one decode token.
struct SequenceInput {
  SequenceState* state = nullptr;  // distinct within a batch; advanced by the tokens
  std::span<const int32_t> tokens;
  LogitRows logits = LogitRows::kLast;
};

/// Called with intermediate results, for tests and pictures. `name` is one of
///   h_attn, attn_out, h_mlp, mlp_out, out   [T, D] per layer (out: the residual after the layer)
///   expert_ids, expert_weights              [T, k] per MoE layer
///   pre_norm                                [rows, D], layer -1: input of the final norm
///   attn_mix, mlp_mix                       [T, B] per layer with AttnRes: the softmax over depth
///                                           that made h_attn, h_mlp of it; B sources: the
///                                           embedding, the sums of complete blocks, the running
///                                           sum if it has begun (layer 0's h_attn is the
///                                           embedding: B = 1)
///   output_mix                              [T, B], layer -1: the same before the final norm
///   log_decay                               [T, H, K] per KDA layer: the g of kda.h, <= 0
/// The last four are computed for the observer alone, in double.
using Observer = std::function<void(int64_t layer, std::string_view name, ConstTensorView value)>;

/// Seconds by operation, summed over calls.
class OpTimes {
 public:
  void add(std::string_view name, double seconds);
  /// In the order of first use.
  std::span<const std::pair<std::string, double>> entries() const { return entries_; }

 private:
  std::vector<std::pair<std::string, double>> entries_;
};

class DecodeGraphs;

struct ForwardOptions {
  /// How activations enter products with the routed experts, and with all other matrices.
  dense::Activations experts = dense::Activations::kF32;
  dense::Activations dense = dense::Activations::kF32;
  width::RouteWeights route_weights = width::RouteWeights::kUnbiased;
  /// Two-phase depth attention up to this many tokens a step (memory grows with it), naive above.
  int64_t two_phase_tokens_max = 64;
  Observer observer;
  OpTimes* times = nullptr;        // when set, every operation is timed
  DecodeGraphs* graphs = nullptr;  // on a GPU, for decode steps; null: none
};

/// A model ready to run. Threads: one forward at a time.
class Model {
 public:
  explicit Model(ModelWeights weights) : weights_(std::move(weights)) {}

  const checkpoint::ModelConfig& config() const { return weights_.config; }
  const ModelWeights& weights() const { return weights_; }

  /// Rows of logits that `batch` asks for, in order of its sequences and tokens.
  static int64_t logit_rows(std::span<const SequenceInput> batch);

  /// Runs every sequence's tokens through the stack and advances the states.
  /// Shapes     logits [logit_rows(batch), vocabulary] float32
  /// Invariance a sequence's logits do not depend on the batch beyond rounding (bound in
  ///            model_test.cc); the same call gives the same bits for any thread count
  /// Errors     kInvalidArgument for an id outside the vocabulary or a bad view,
  ///            kResourceExhausted when the pool is full; the states are as before then
  Status forward(const Device& device, StatePool& pool, std::span<const SequenceInput> batch,
                 const ForwardOptions& options, TensorView logits) const;

  /// The same, for logits that need not leave the device: `use` gets them,
  /// [logit_rows(batch), vocabulary] in the device's memory, until it returns. The states are
  /// advanced then, and its error is the result.
  Status forward(const Device& device, StatePool& pool, std::span<const SequenceInput> batch,
                 const ForwardOptions& options,
                 const std::function<Status(ConstTensorView logits)>& use) const;

 private:
  Status run(const Device& device, StatePool& pool, std::span<const SequenceInput> batch,
             const ForwardOptions& options, std::vector<int64_t> rows, TensorView logits) const;

  ModelWeights weights_;
};

}  // namespace triax::model
