// From logits to a token. Runs on the host; knows no model.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/rng.h"
#include "base/status.h"

namespace triax::dense {

namespace internal {
struct Scan;
class Buckets;
}  // namespace internal

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
  int32_t top_logprobs = 0;                            // [0, 20]: how many alternatives to report
  std::unordered_map<int32_t, float> logit_bias = {};  // added; finite, or -inf to forbid the token

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
  std::vector<TokenLogprob> top;  // descending (ties: the lower id first), `top_logprobs` of them;
                                  // fewer when fewer are possible
};

/// Draws tokens for one sequence. The same seed, settings, logits and history give the same tokens,
/// on every CPU: a draw is one uniform number against the cumulative sum, in double and in the
/// order of ids, of the weights exp((l - max) / temperature) that the filters leave.
/// Source     README.md; truth: sampling_test.cc
class Sampler {
 public:
  /// params must be valid.
  explicit Sampler(SamplingParams params);

  /// Tokens of the prompt: they count for repetition_penalty only. Ids outside the vocabulary (of
  /// media, say) count for nothing.
  void observe_prompt(std::span<const int32_t> ids);

  /// From now on only ids whose bit is set are drawn, the lowest bit of the first word being that
  /// of id 0; ids beyond the last word are not. The words are read at each draw and must stay where
  /// they are. Empty: all ids again.
  void allow_only(std::span<const uint64_t> mask) { allowed_ = mask; }

  /// Draws from logits [V] (finite; -inf forbids a token) and counts the token as generated.
  /// Errors     kInvalidArgument when empty, NaN, +inf, logit_bias names no token of the
  ///            vocabulary, or nothing is left to draw from; nothing is counted then
  Result<SampledToken> sample(std::span<const float> logits);

  const SamplingParams& params() const { return params_; }

  /// True when a draw needs neither history nor alternatives, so that it may happen elsewhere
  /// (sample_rows.h) with the number that this sampler's next draw would use.
  bool draws_from_raw() const;
  double next_uniform() { return rng_.uniform(); }

 private:
  struct Candidate {
    double weight;
    float logit;
    int32_t id;
  };

  /// Logits after mask, bias and penalties; a view of `logits` itself when there are none.
  Result<std::span<const float>> adjust(std::span<const float> logits);
  void copy_allowed(std::span<const float> logits);
  void penalise(std::span<float> logits) const;

  /// The draw from adjusted logits, of which `max` is the largest.
  int32_t draw(std::span<const float> logits, float max);
  int32_t draw_from_all();
  int32_t draw_from_kept();

  /// Fill kept_ with what the filters leave, by ascending id. weights_ holds all weights for top_p.
  void keep_top_k(std::span<const float> logits, float max);
  void keep_top_p(std::span<const float> logits, float max);
  void gather(std::span<const float> logits, double weight_min);

  /// Among kept_: the last token, by descending logit and ascending id, of the smallest set that
  /// weighs `target`.
  TokenLogprob nucleus_boundary(const internal::Buckets& buckets, double target);

  /// log_total: the logarithm of the sum of exp of the raw logits.
  SampledToken report(std::span<const float> logits, int32_t id, double log_total) const;

  SamplingParams params_;
  Rng rng_;
  std::unordered_map<int32_t, int32_t> generated_;  // token -> count
  std::unordered_map<int32_t, int32_t> prompt_;
  std::span<const uint64_t> allowed_;
  const internal::Scan* scan_;

  // Scratch, kept between calls.
  double total_ = 0.0;  // of all weights; 0 when they were not taken
  std::vector<float> adjusted_;
  std::vector<double> weights_;
  std::vector<double> block_sums_;
  std::vector<double> masses_;
  std::vector<TokenLogprob> largest_;
  std::vector<Candidate> kept_;
};

}  // namespace triax::dense
