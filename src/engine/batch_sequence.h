// One choice of a request under way, and its share of a step. Internal to the batch engine.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine/batch_engine.h"
#include "engine/constrained_tokens.h"

namespace triax::engine {

/// Why the scheduler does not take a request.
Status refusal(const sched::Submission& submission);

struct BatchEngine::Sequence {
  Sequence(std::shared_ptr<const BatchRequest> r, dense::SamplingParams sampling)
      : request(std::move(r)), sampler(std::move(sampling)), draft_length(request->draft_tokens) {}

  std::shared_ptr<const BatchRequest> request;
  RequestId request_id = 0;
  int32_t choice = 0;
  sched::SequenceId id = 0;
  int64_t answer_max = 0;
  dense::Sampler sampler;
  PromptLookup lookup;
  DraftLength draft_length;
  std::vector<int32_t> draft = {};        // for the next step
  std::optional<ConstrainedTokens> form;  // when the request has a constraint
  bool decoding = false;                  // the last step gave a token
  bool started = false;
  bool ended = false;
  BatchUsage usage = {};

  /// Its first token's logits are those of other choices, too.
  bool branches() const { return usage.answer_tokens == 0 && choice == 0 && request->choices > 1; }
};

/// Tokens that the state has not seen but that are known, then drafted ones.
struct BatchEngine::Work {
  Sequence* sequence = nullptr;
  sched::Piece piece = {};
  std::vector<int32_t> tokens = {};
  int64_t drafted = 0;
  model::LogitRows rows = model::LogitRows::kNone;
  model::StateMark mark = {};  // before them, when any is drafted

  // Where its tokens come from: rows of logits on the host from first_row on, or, drawn on the
  // device, the samples of its last rows and each one's sampler after the draw.
  bool on_device = false;
  int64_t first_row = 0;
  std::vector<dense::RowSample> samples = {};
  std::vector<dense::Sampler> samplers = {};
  void prepare_samplers();
  /// The i-th token drawn on the device; the sequence goes on from there.
  Result<dense::SampledToken> take_sample(int64_t i);

  int64_t row_count() const {
    return rows == model::LogitRows::kAll    ? static_cast<int64_t>(tokens.size())
           : rows == model::LogitRows::kLast ? 1
                                             : 0;
  }
};

}  // namespace triax::engine
