// From logits to a token. Runs on the host; knows no model.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/rng.h"
#include "base/status.h"

namespace triax::dense {

/// Applied in this order: logit_bias, penalties, temperature, top_k, top_p, min_p.
struct SamplingParams {
  float temperature = 1.0f;  // >= 0; 0 takes the largest logit (ties: the lowest id)
  int32_t top_k = 0;         // 0: off
  float top_p = 1.0f;        // (0, 1]; the smallest set whose probability reaches it
  float min_p = 0.0f;        // [0, 1]; drops tokens below min_p times the largest probability
  float repetition_penalty = 1.0f;  // > 0; divides positive, multiplies negative logits seen before
  float presence_penalty = 0.0f;    // [-2, 2]; once for a token that was generated
  float frequency_penalty = 0.0f;   // [-2, 2]; times its count
  uint64_t seed = 0;
  int32_t top_logprobs = 0;  // [0, 20]: how many alternatives to report
  std::unordered_map<int32_t, float> logit_bias;

  /// Every field within its range; the message names the field, its value and the range.
  Status validate() const;
};

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0.0f;
};

/// What was drawn. Log-probabilities are those of the raw logits (before any setting).
struct SampledToken {
  int32_t id = 0;
  float logprob = 0.0f;
  std::vector<TokenLogprob> top;  // descending, `top_logprobs` of them
};

/// Draws tokens for one sequence. The same seed, settings, logits and history give the same tokens.
class Sampler {
 public:
  /// params must be valid.
  explicit Sampler(SamplingParams params);

  /// Tokens of the prompt: they count for repetition_penalty only.
  void observe_prompt(std::span<const int32_t> ids);

  /// Draws from logits [V] (finite; -inf forbids a token) and counts the token as generated.
  /// Errors     kInvalidArgument when empty, NaN, +inf, or nothing is left to draw from
  Result<SampledToken> sample(std::span<const float> logits);

  const SamplingParams& params() const { return params_; }

 private:
  SamplingParams params_;
  Rng rng_;
  std::unordered_map<int32_t, int32_t> generated_;  // token -> count
  std::unordered_map<int32_t, int32_t> prompt_;
  std::vector<TokenLogprob> candidates_;  // scratch
};

}  // namespace triax::dense
