// One conversation: prompts in, answers out; what was computed for one turn serves the next.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "dense/sampling/sampling.h"
#include "engine/engine.h"
#include "text/grammar/constraint.h"

namespace triax::engine {

struct GenerateParams {
  dense::SamplingParams sampling;
  int64_t max_tokens = 256;
  std::vector<int32_t> stop_ids;  // end the answer; reported, not part of the text
  std::shared_ptr<const text::Constraint> constraint = {};      // the answer's form; empty: free
  std::function<bool(int64_t done, int64_t total)> on_prefill;  // false: stop
  std::function<bool(const dense::SampledToken&)> on_token;     // false: stop after this token
};

enum class FinishReason { kStop, kLength, kCancelled };

struct Generated {
  std::vector<int32_t> tokens;  // the stop token included
  FinishReason reason = FinishReason::kLength;
  int64_t prompt_tokens = 0;
  int64_t reused_tokens = 0;  // of the prompt: not computed again
  double prefill_seconds = 0.0;
  double decode_seconds = 0.0;  // of tokens after the first
};

class Session {
 public:
  explicit Session(Engine& engine) : engine_(engine) {}

  /// Answers `prompt`, the whole conversation so far. What the session's states have already seen
  /// of it is not computed again: the state at the end of the last answer when its tokens are a
  /// prefix of the prompt, else the one at the end of the last prompt, else nothing.
  /// Errors     kInvalidArgument (empty prompt, bad setting, too long), kResourceExhausted. The
  ///            session can go on after any error.
  Result<Generated> generate(std::span<const int32_t> prompt, const GenerateParams& params);

  /// The state after the last answer; not valid before the first.
  const model::SequenceState& state() const { return current_; }
  /// Continues from a restored state.
  void resume(model::SequenceState state) { current_ = std::move(state); }

 private:
  Result<int64_t> prepare(std::span<const int32_t> prompt);
  /// `token`: the prompt's last, which the state has not seen.
  Status decode(int32_t token, const GenerateParams& params, Generated& out);

  Engine& engine_;
  model::SequenceState current_;     // has seen prompt and answer, but for the last token
  model::SequenceState prompt_end_;  // has seen the last prompt but for its last token
};

}  // namespace triax::engine
