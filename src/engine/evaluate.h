// How well a model predicts a text.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"

namespace triax::engine {

/// Windows of `context` input tokens, `stride` apart, each from an empty state. Every token but the
/// first of the text is predicted exactly once: a window scores the tokens that earlier windows did
/// not; the target of its last input is the next window's first token.
struct EvalParams {
  int64_t context = 2048;
  int64_t stride = 2048;  // <= context
  std::function<void(int64_t scored, int64_t total, double nats_so_far)> progress;
};

struct EvalWindow {
  int64_t begin = 0;
  int64_t scored = 0;
  double nats = 0.0;  // sum
};

struct EvalResult {
  int64_t scored = 0;
  double nats = 0.0;  // sum over all predictions
  double nats_per_token() const { return nats / static_cast<double>(scored); }
  /// `bytes` of the text as UTF-8.
  double bits_per_byte(int64_t bytes) const;
  std::vector<EvalWindow> windows;
};

/// Errors     kInvalidArgument for fewer than two tokens or a bad window
Result<EvalResult> evaluate(Engine& engine, std::span<const int32_t> tokens,
                            const EvalParams& params);

/// -log softmax(logits)[target], in double.
double cross_entropy(std::span<const float> logits, int32_t target);

}  // namespace triax::engine
