// What the three axes of a model did with some tokens: the weights over depth, the experts, how
// long the channels of KDA remember. The tokens run through the real forward pass once more.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"

namespace triax::engine {

/// The softmax over depth that made one input of a layer, or of the final norm.
struct DepthMix {
  enum class Before { kAttention, kFfn, kOutput };
  int64_t layer = 0;  // -1 for kOutput
  Before before = Before::kAttention;
  int64_t sources = 0;  // the embedding, complete blocks, the running sum if it has begun
  std::vector<float> weights = {};  // [T, sources]; each row's sum is 1
};

/// The experts of one MoE layer.
struct WidthRoute {
  int64_t layer = 0;
  std::vector<int32_t> ids = {};    // [T, top_k]
  std::vector<float> weights = {};  // [T, top_k]
};

/// How fast the channels of one KDA layer forget.
struct SequenceDecay {
  int64_t layer = 0;
  int64_t heads = 0;
  std::vector<float> rate = {};  // [H * K] the mean of -g over the tokens, nats a token, >= 0

  /// Tokens after which half of what a channel holds is left: ln 2 / rate; infinite for rate 0.
  static double half_life(double rate);
};

struct Axes {
  std::vector<int32_t> tokens;  // T that were watched
  int64_t first = 0;            // position of the first of them
  std::vector<DepthMix> depth;  // in the order in which they run; empty without AttnRes
  std::vector<WidthRoute> width;
  std::vector<SequenceDecay> sequence;
};

/// Watches the tokens from `first` on; those before them are computed for the state alone. The
/// work comes in chunks, so that others can run between them.
/// Memory     states of one sequence of its own until it ends, on the engine's device; nothing is
///            taken from a cache nor put into one
/// Threads    as Engine: one at a time
class AxesProbe {
 public:
  /// `engine` outlives it.
  /// Errors     kInvalidArgument without a token to watch, for one outside the vocabulary, or for
  ///            more than the context takes; kResourceExhausted without memory for the states
  static Result<std::unique_ptr<AxesProbe>> create(Engine& engine, std::vector<int32_t> tokens,
                                                   int64_t first);

  bool done() const { return position_ == static_cast<int64_t>(tokens_.size()); }
  /// Runs the next chunk.
  Status advance();
  /// What was seen, once it is done.
  Axes take();

 private:
  AxesProbe(Engine& engine, std::vector<int32_t> tokens, int64_t first);
  void see(int64_t layer, std::string_view name, ConstTensorView value);
  void see_mix(int64_t layer, DepthMix::Before before, ConstTensorView value);
  WidthRoute& route(int64_t layer);
  void see_decay(int64_t layer, ConstTensorView value);

  Engine& engine_;
  std::vector<int32_t> tokens_;
  int64_t position_ = 0;
  Axes axes_;
  model::StatePool pool_;
  model::SequenceState state_;
};

}  // namespace triax::engine
