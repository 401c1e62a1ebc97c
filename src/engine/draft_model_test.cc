// Drafts by a second model: whatever it proposes, a request's tokens are those of a cold run.
#include "engine/draft_model.h"

#include <gtest/gtest.h>

#include "engine/batch_testing.h"

namespace triax::testing {
namespace {

std::unique_ptr<engine::Engine> engine_of(model::ModelWeights weights, int64_t sequences = 4,
                                          int64_t prefill_chunk = 512) {
  engine::EngineOptions options;
  options.threads = 1;
  options.sequences = sequences;
  options.context_tokens = 2048;
  options.prefill_chunk = prefill_chunk;
  auto made = engine::Engine::create(std::move(weights), options);
  check(made.ok(), made.status().message());
  return std::move(*made);
}

/// The first layers of the model: right now and then.
model::ModelWeights first_layers(size_t count) {
  model::ModelWeights weights = small_weights();
  weights.layers.resize(count);
  weights.config.layers.resize(count);
  return weights;
}

/// Adds less than the whole stack does, so that a part of it is a draft of it.
model::ModelWeights faint_weights(size_t layers) {
  model::ModelWeights weights = first_layers(layers);
  for (size_t i = 1; i < weights.layers.size(); ++i) {
    for (Tensor* norm : {&weights.layers[i].attn_norm, &weights.layers[i].ffn_norm}) {
      for (int64_t d = 0; d < norm->view().size(0); ++d) {
        norm->view().data<float>()[d] *= 0.02f;
      }
    }
  }
  return weights;
}

BatchOptions options_with(engine::Engine* draft) {
  BatchOptions options;
  options.memory_bytes = int64_t{64} << 20;
  options.sched.step_tokens = 256;
  options.sched.chunk_tokens = 128;
  options.sched.sequences_max = 16;
  options.draft = draft;
  return options;
}

BatchRequest request_of(uint64_t seed, float temperature, int64_t drafts, int64_t tokens = 24) {
  BatchRequest request;
  request.prompt = random_tokens(20 + static_cast<int64_t>(seed * 37 % 150), seed);
  request.sampling.temperature = temperature;
  request.sampling.seed = seed;
  request.max_tokens = tokens;
  request.draft_tokens = drafts;
  return request;
}

TEST(DraftModel, ATwinIsTakenWholeAtAnyTemperature) {
  const auto target = engine_of(small_weights());
  const auto twin = engine_of(small_weights());
  BatchRunner runner(*target, options_with(twin.get()));
  for (const float temperature : {0.0f, 0.7f, 1.3f}) {
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      const BatchRequest request = request_of(seed, temperature, 5);
      const int64_t steps = runner.batch().counters().steps;
      const Answer answer = runner.ask(request);
      expect_same(answer, cold_answer(*target, request));
      EXPECT_GE(answer.usage.drafted_tokens, 19);
      // Rounding may choose otherwise at a near tie.
      EXPECT_GE(answer.usage.accepted_tokens, answer.usage.drafted_tokens - 5);
      EXPECT_LE(runner.batch().counters().steps - steps, 12);  // 24 tokens
    }
  }
  EXPECT_TRUE(runner.batch().draft_status().ok());
}

TEST(DraftModel, WhateverIsRejectedTheTokensAreTheSame) {
  const auto target = engine_of(faint_weights(4));
  const auto part = engine_of(faint_weights(2));
  BatchRunner runner(*target, options_with(part.get()));
  int64_t drafted = 0;
  int64_t accepted = 0;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    for (const int64_t drafts : {1, 2, 6}) {
      BatchRequest request = request_of(seed, seed % 2 == 0 ? 0.0f : 0.9f, drafts);
      request.sampling.repetition_penalty = seed % 3 == 0 ? 1.2f : 1.0f;
      const Answer answer = runner.ask(request);
      expect_same(answer, cold_answer(*target, request));
      drafted += answer.usage.drafted_tokens;
      accepted += answer.usage.accepted_tokens;
    }
  }
  EXPECT_GT(accepted, drafted / 10);  // both happen
  EXPECT_LT(accepted, drafted * 9 / 10);
}

TEST(DraftModel, AStrangerCostsNothingButTime) {
  model::ModelWeights other = small_weights();
  for (int64_t d = 0; d < other.final_norm.view().size(0); ++d) {
    other.final_norm.view().data<float>()[d] *= -1.0f;  // the unlikeliest tokens
  }
  const auto target = engine_of(small_weights());
  const auto stranger = engine_of(std::move(other));
  BatchRunner runner(*target, options_with(stranger.get()));
  const BatchRequest request = request_of(3, 0.0f, 4);
  const Answer answer = runner.ask(request);
  expect_same(answer, cold_answer(*target, request));
  EXPECT_GT(answer.usage.drafted_tokens, 0);
  EXPECT_EQ(answer.usage.accepted_tokens, 0);
}

TEST(DraftModel, LogitsThatAreNoNumbersProposeNothing) {
  model::ModelWeights broken = small_weights();
  broken.final_norm.view().data<float>()[0] = std::numeric_limits<float>::quiet_NaN();
  const auto target = engine_of(small_weights());
  const auto draft = engine_of(std::move(broken));
  BatchRunner runner(*target, options_with(draft.get()));
  const BatchRequest request = request_of(5, 0.0f, 4);
  const Answer answer = runner.ask(request);
  expect_same(answer, cold_answer(*target, request));
  EXPECT_EQ(answer.usage.drafted_tokens, 0);
}

TEST(DraftModel, ALongPromptIsReadInPieces) {
  const auto target = engine_of(small_weights());
  const auto twin = engine_of(small_weights(), 4, 64);
  BatchRunner runner(*target, options_with(twin.get()));
  BatchRequest request = request_of(6, 0.0f, 4, 30);
  request.prompt = random_tokens(400, 6);
  const Answer answer = runner.ask(request);
  expect_same(answer, cold_answer(*target, request));
  EXPECT_GT(answer.usage.accepted_tokens, 10);
  EXPECT_LT(answer.usage.accepted_tokens, 24);  // the first tokens came before it had caught up
}

// Cancels in every phase, several answers, little memory, and room for few of the sequences'
// drafts.
TEST(DraftModel, ManyAtOnceUnderPressure) {
  const auto target = engine_of(faint_weights(4));
  const auto part = engine_of(faint_weights(2), 6);
  BatchOptions options = options_with(part.get());
  options.memory_bytes = 3 * BatchRunner(*target, options).batch().memory().bytes(64);
  options.sched.sequences_max = 8;
  options.sched.headroom_tokens = 1;
  BatchRunner runner(*target, options);
  Rng rng(17);
  std::vector<std::pair<RequestId, BatchRequest>> asked;
  std::vector<RequestId> cancelled;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    BatchRequest request =
        request_of(seed, rng.below(2) == 0 ? 0.0f : 0.8f, static_cast<int64_t>(rng.below(6)), 40);
    request.choices = 1 + static_cast<int32_t>(rng.below(8) == 0);
    asked.emplace_back(runner.submit(request), request);
    for (uint64_t steps = rng.below(4); steps > 0; --steps) {
      runner.step();
    }
    if (rng.below(5) == 0) {
      const RequestId victim = asked[rng.below(asked.size())].first;
      if (runner.cancel(victim)) {
        cancelled.push_back(victim);
      }
    }
  }
  runner.run();
  for (const auto& [id, request] : asked) {
    if (std::ranges::find(cancelled, id) != cancelled.end()) {
      continue;
    }
    for (int32_t choice = 0; choice < request.choices; ++choice) {
      expect_same(runner.answer(id, choice), cold_answer(*target, request, choice));
    }
  }
  EXPECT_GT(cancelled.size(), 2u);
  EXPECT_GT(runner.batch().counters().accepted_tokens, 0);
  EXPECT_LT(runner.batch().counters().accepted_tokens, runner.batch().counters().drafted_tokens);
  EXPECT_EQ(part->pool().slots_free(), 6);  // nothing is held for who has ended
}

TEST(DraftModel, AnotherVocabularyIsRefused) {
  const auto target = engine_of(small_weights());
  const auto made = engine::DraftModel::create(*target, kSmallVocab + 1);
  EXPECT_EQ(made.status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace triax::testing
