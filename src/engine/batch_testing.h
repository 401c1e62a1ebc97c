// For tests of the batch engine: a small random model, requests run to their ends, cold truth.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "checkpoint/shapes.h"
#include "engine/batch_engine.h"
#include "engine/session.h"
#include "testing/testing.h"

namespace triax::testing {

using engine::BatchEngine;
using engine::BatchEvent;
using engine::BatchOptions;
using engine::BatchRequest;
using engine::RequestId;

constexpr int64_t kSmallVocab = 256;

/// Four layers of the small model's widths: three KDA, one MLA.
inline model::ModelWeights small_weights() {
  const auto config = checkpoint::named_shape("tiny", {.layers = 4, .vocab = kSmallVocab});
  check(config.ok(), config.status().message());
  auto weights = model::random_weights(
      *config, {.experts = MatrixFormat::kBf16, .dense = MatrixFormat::kBf16});
  check(weights.ok(), weights.status().message());
  return std::move(*weights);
}

inline std::vector<int32_t> random_tokens(int64_t count, uint64_t seed) {
  Rng rng(seed);
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<int32_t>(rng.below(kSmallVocab - 1)));
  }
  return tokens;
}

inline std::vector<int32_t> joined(std::vector<int32_t> a, std::span<const int32_t> b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// What one choice of a request came to.
struct Answer {
  std::vector<int32_t> tokens;
  std::vector<dense::SampledToken> sampled;
  bool ended = false;
  bool failed = false;
  engine::FinishReason reason = engine::FinishReason::kLength;
  Status error;
  engine::BatchUsage usage;
};

/// A batch engine whose clock counts steps. Freed memory is NaN; the books are compared after every
/// step.
class BatchRunner {
 public:
  BatchRunner(engine::Engine& engine, BatchOptions options) {
    options.poison = true;
    Result<std::unique_ptr<BatchEngine>> made = BatchEngine::create(engine, options);
    EXPECT_TRUE(made.ok()) << made.status().message();
    batch_ = std::move(*made);
  }

  BatchEngine& batch() { return *batch_; }
  const BatchEngine& batch() const { return *batch_; }

  RequestId submit(BatchRequest request) {
    const Result<RequestId> id = batch_->submit(std::move(request), now_);
    EXPECT_TRUE(id.ok()) << id.status().message();
    return *id;
  }

  void step() {
    now_ += 0.01;
    std::vector<BatchEvent> events;
    const Status status = batch_->step(now_, events);
    EXPECT_TRUE(status.ok()) << status.message();
    for (BatchEvent& event : events) {
      add(event);
    }
    const Status books = batch_->self_check();
    EXPECT_TRUE(books.ok()) << books.message();
  }

  void run() {
    for (int steps = 0; batch_->busy(); ++steps) {
      ASSERT_LT(steps, 20000) << "requests do not end";
      step();
    }
  }

  bool cancel(RequestId id) { return batch_->cancel(id, now_); }

  const Answer& answer(RequestId id, int32_t choice = 0) { return answers_[{id, choice}]; }

  /// Alone until it ends.
  Answer ask(BatchRequest request) {
    const RequestId id = submit(std::move(request));
    run();
    return answer(id);
  }

  double now() const { return now_; }

 private:
  void add(BatchEvent& event) {
    Answer& a = answers_[{event.request, event.choice}];
    EXPECT_FALSE(a.ended) << "an event after the end";
    if (event.kind == BatchEvent::Kind::kToken) {
      a.tokens.push_back(event.token.id);
      a.sampled.push_back(std::move(event.token));
      return;
    }
    a.ended = true;
    a.failed = event.kind == BatchEvent::Kind::kFailed;
    a.reason = event.reason;
    a.error = event.error;
    a.usage = event.usage;
    EXPECT_EQ(a.usage.answer_tokens, static_cast<int64_t>(a.tokens.size()));
  }

  std::unique_ptr<BatchEngine> batch_;
  std::map<std::pair<RequestId, int32_t>, Answer> answers_;
  double now_ = 0.0;
};

/// The same request alone and cold, by the engine that runs one sequence at a time.
inline std::vector<dense::SampledToken> cold_answer(engine::Engine& engine,
                                                    const BatchRequest& request,
                                                    int32_t choice = 0) {
  engine::Session session(engine);
  std::vector<dense::SampledToken> tokens;
  engine::GenerateParams params;
  params.sampling = request.sampling;
  params.sampling.seed += static_cast<uint64_t>(choice);
  params.max_tokens = request.max_tokens;
  params.stop_ids = request.stop_ids;
  params.constraint = request.constraint;
  params.on_token = [&](const dense::SampledToken& token) {
    tokens.push_back(token);
    return true;
  };
  const Result<engine::Generated> generated = session.generate(request.prompt, params);
  EXPECT_TRUE(generated.ok()) << generated.status().message();
  return tokens;
}

// Two ways through float32 arithmetic. Largest difference of log-probabilities seen between a batch
// (with reuse, drafts, preemptions) and a cold run alone, over all tests here: 1.0e-5.
constexpr double kLogprobBound = 5e-5;

/// Every token and its log-probability, and the five likeliest others' where they were asked for.
inline void expect_same(const Answer& answer, const std::vector<dense::SampledToken>& cold) {
  ASSERT_TRUE(answer.ended);
  ASSERT_FALSE(answer.failed) << answer.error.message();
  ASSERT_EQ(answer.sampled.size(), cold.size());
  for (size_t i = 0; i < cold.size(); ++i) {
    ASSERT_EQ(answer.tokens[i], cold[i].id) << "token " << i;
    ASSERT_NEAR(answer.sampled[i].logprob, cold[i].logprob, kLogprobBound) << "token " << i;
    for (size_t k = 0; k < cold[i].top.size(); ++k) {
      ASSERT_NEAR(answer.sampled[i].top[k].logprob, cold[i].top[k].logprob, kLogprobBound);
    }
  }
}

}  // namespace triax::testing
