// Whether answers of a batch are those of the model run alone and cold, up to rounding.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "dense/sampling/sampling.h"
#include "engine/engine.h"

namespace triax::app {

/// Compares greedy answers with cold runs that are fed the answer's own tokens, so that every
/// position counts, also behind one where two tokens were equally likely:
///   - the log-probability of each token is within `bound` of the cold one, and
///   - the token is the likeliest, or within `bound` of the likeliest in the cold run: so another
///     token counts as the same only where the top two are that close.
/// An answer that fails is run cold again with its prompt cut at other places. It is a *near tie*
/// when at each position its log-probability is within `bound` of the range that the cold runs
/// span: an expert is chosen by a margin that rounding decides, and cold runs differ among
/// themselves as much. Anything else is different.
class ColdCheck {
 public:
  ColdCheck(engine::Engine& engine, float bound) : engine_(engine), bound_(bound) {}

  /// Errors     those of the device
  Status compare(std::span<const int32_t> prompt, std::span<const dense::SampledToken> answer);

  int64_t compared() const { return compared_; }
  int64_t near_ties() const { return near_ties_; }
  int64_t different() const { return different_; }
  /// The largest difference of log-probabilities from the first cold run, near ties not counted.
  float largest() const { return largest_; }

 private:
  /// Of each answer token when computed cold: its log-probability, and the likeliest token's.
  struct Row {
    float token = 0;
    float best = 0;
  };
  Result<std::vector<Row>> cold(std::span<const int32_t> prompt,
                                std::span<const dense::SampledToken> answer, int64_t first_cut);

  engine::Engine& engine_;
  float bound_;
  int64_t compared_ = 0, near_ties_ = 0, different_ = 0;
  float largest_ = 0;
};

}  // namespace triax::app
