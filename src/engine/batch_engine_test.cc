// The batch engine on a small random model: whatever runs beside a request, whatever was kept,
// drafted, taken back or cancelled, its tokens are those of a cold run alone. Numbers of faults are
// those of the survey of other engines' public bugs that this engine was designed against; the
// comment says what went wrong there.
#include "engine/batch_testing.h"

namespace triax::testing {
namespace {

class BatchEngineTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    engine::EngineOptions options;
    options.threads = 2;
    options.context_tokens = 4096;
    Result<std::unique_ptr<engine::Engine>> made = engine::Engine::create(small_weights(), options);
    ASSERT_TRUE(made.ok()) << made.status().message();
    engine_ = std::move(*made).release();
    const BatchRunner probe(*engine_, roomy());
  }
  static void TearDownTestSuite() {
    delete engine_;
    engine_ = nullptr;
  }

  static BatchOptions roomy() {
    BatchOptions options;
    options.policy = "prompt-end+junction";  // learns nothing: each test sees the same checkpoints
    options.memory_bytes = int64_t{256} << 20;
    options.sched.step_tokens = 512;
    options.sched.chunk_tokens = 256;
    options.sched.sequences_max = 64;
    return options;
  }

  /// Room for that many sequences of so many tokens, and not a page more.
  static BatchOptions tight(int64_t sequences, int64_t tokens) {
    BatchRunner probe(*engine_, roomy());
    BatchOptions options = roomy();
    options.memory_bytes = sequences * probe.batch().memory().bytes(tokens);
    return options;
  }

  static BatchRequest request(std::vector<int32_t> prompt, int64_t max_tokens = 8,
                              int64_t drafts = 0) {
    BatchRequest r;
    r.prompt = std::move(prompt);
    r.sampling.temperature = 0.0f;
    r.sampling.top_logprobs = 5;
    r.max_tokens = max_tokens;
    r.draft_tokens = drafts;
    return r;
  }

  static void expect_cold(const Answer& answer, const BatchRequest& r, int32_t choice = 0) {
    expect_same(answer, cold_answer(*engine_, r, choice));
  }

  /// Text with repetitions, where drafts are accepted now and then.
  static std::vector<int32_t> repeating(int64_t count, uint64_t seed) {
    const std::vector<int32_t> piece = random_tokens(count / 4 + 1, seed);
    std::vector<int32_t> all;
    while (static_cast<int64_t>(all.size()) < count) {
      all = joined(all, piece);
    }
    all.resize(static_cast<size_t>(count));
    return all;
  }

  /// Guesses the tokens behind a prompt of that length, wrong where `right` says so.
  static engine::Drafter drafter_of(std::vector<int32_t> truth, size_t prompt,
                                    std::function<bool(size_t)> right) {
    return [truth = std::move(truth), prompt, right = std::move(right)](
               std::span<const int32_t> tokens, int64_t count) {
      std::vector<int32_t> draft;
      for (size_t at = tokens.size() - prompt; at < truth.size() && count > 0; ++at, --count) {
        draft.push_back(right(at) ? truth[at]
                                  : (truth[at] + 1) % static_cast<int32_t>(kSmallVocab));
      }
      return draft;
    };
  }

  static inline engine::Engine* engine_ = nullptr;
};

TEST_F(BatchEngineTest, OneRequestIsAnsweredAsAlone) {
  BatchRunner runner(*engine_, roomy());
  for (const int64_t length : {1, 2, 63, 64, 65, 300}) {
    const BatchRequest r = request(random_tokens(length, 1), 10);
    const Answer a = runner.ask(r);
    expect_cold(a, r);
    EXPECT_EQ(a.reason, engine::FinishReason::kLength);
    EXPECT_EQ(a.usage.prompt_tokens, length);
  }
}

TEST_F(BatchEngineTest, AStopTokenEndsTheAnswer) {
  BatchRunner runner(*engine_, roomy());
  BatchRequest r = request(random_tokens(20, 1), 30);
  r.stop_ids = {runner.ask(r).tokens[4]};
  const Answer a = runner.ask(r);
  expect_cold(a, r);
  EXPECT_EQ(a.reason, engine::FinishReason::kStop);
  EXPECT_EQ(a.tokens.back(), r.stop_ids[0]);
}

// Fault 1: every turn reads the whole conversation again.
TEST_F(BatchEngineTest, ATurnComputesNoMoreThanWhatIsNew) {
  BatchRunner runner(*engine_, roomy());
  std::vector<int32_t> conversation;
  for (uint64_t turn = 0; turn < 10; ++turn) {
    conversation = joined(conversation, random_tokens(200, turn));
    BatchRequest r = request(conversation, 20);
    r.session = 7;
    const int64_t before = runner.batch().counters().computed_tokens;
    const Answer a = runner.ask(r);
    expect_cold(a, r);
    if (turn > 0) {
      EXPECT_LE(runner.batch().counters().computed_tokens - before, 20 + 200 + 64 + 20) << turn;
      EXPECT_GE(a.usage.reuse.resumed, static_cast<int64_t>(conversation.size()) - 200 - 64 - 20);
    }
    conversation = joined(conversation, a.tokens);
  }
}

// Faults 2 and 24: with speculation nothing is reused, or the text is another.
TEST_F(BatchEngineTest, DraftsChangeNeitherTokensNorReuse) {
  for (const float temperature : {0.0f, 0.7f}) {
    BatchRunner with(*engine_, roomy());
    BatchRunner without(*engine_, roomy());
    std::vector<int32_t> conversation;
    for (uint64_t turn = 0; turn < 3; ++turn) {
      conversation = joined(conversation, random_tokens(150, turn));
      BatchRequest r = request(conversation, 40);
      r.sampling.temperature = temperature;
      r.sampling.seed = turn;
      const Answer plain = without.ask(r);
      r.draft_tokens = 6;
      r.drafter = drafter_of(plain.tokens, r.prompt.size(), [](size_t at) { return at % 7 != 3; });
      const Answer drafted = with.ask(r);
      expect_cold(drafted, r);
      EXPECT_EQ(drafted.tokens, plain.tokens);
      EXPECT_GE(drafted.usage.reuse.resumed, plain.usage.reuse.resumed - 64);
      EXPECT_GT(drafted.usage.drafted_tokens, drafted.usage.accepted_tokens);
      EXPECT_GT(drafted.usage.accepted_tokens, 10);
      conversation = joined(conversation, plain.tokens);
    }
    EXPECT_LT(with.batch().counters().steps, without.batch().counters().steps * 2 / 3);
  }
}

// Faults 3 and 4: a prefix that many requests share is never reused, since the only states lie in
// what is each request's own.
TEST_F(BatchEngineTest, ASharedPrefixIsReusedFromTheThirdRequestOn) {
  BatchRunner runner(*engine_, roomy());
  const std::vector<int32_t> shared = random_tokens(480, 1);
  for (uint64_t i = 0; i < 20; ++i) {
    const BatchRequest r = request(joined(shared, random_tokens(300, 10 + i)), 3);
    const Answer a = runner.ask(r);
    expect_cold(a, r);
    if (i >= 2) {
      EXPECT_GE(a.usage.reuse.resumed, 384) << i;
    }
  }
}

// Fault 10: two continuations of one checkpoint in one step, one of which reads the other's slot.
TEST_F(BatchEngineTest, TwoContinuationsOfOneCheckpointTogether) {
  for (const int64_t length : {64, 65, 127, 128, 129, 200}) {
    BatchRunner runner(*engine_, roomy());
    const std::vector<int32_t> a = random_tokens(length, 1);
    runner.ask(request(a, 1));
    const BatchRequest x = request(joined(a, random_tokens(30, 2)), 10);
    const BatchRequest y = request(joined(a, random_tokens(31, 3)), 10);
    const RequestId id_x = runner.submit(x), id_y = runner.submit(y);
    runner.run();
    expect_cold(runner.answer(id_x), x);
    expect_cold(runner.answer(id_y), y);
    if (length > 64) {
      EXPECT_GT(runner.answer(id_x).usage.reuse.resumed, 0);
      EXPECT_GT(runner.answer(id_y).usage.reuse.resumed, 0);
    }
  }
}

// Faults 9 and 11: a slot that was never written or never cleared; a first chunk of one token.
TEST_F(BatchEngineTest, WhatWasFreedReachesNobody) {
  BatchRunner runner(*engine_, tight(3, 640));
  for (uint64_t round = 0; round < 6; ++round) {
    std::vector<std::pair<RequestId, BatchRequest>> asked;
    for (const int64_t length : {1, 257, 65, 2, 513}) {  // chunks of 256: remainders of one
      BatchRequest r =
          request(random_tokens(length, 100 * round + static_cast<uint64_t>(length)), 3);
      asked.emplace_back(runner.submit(r), r);
    }
    runner.run();
    for (const auto& [id, r] : asked) {
      expect_cold(runner.answer(id), r);
    }
  }
}

// Fault 14: prompts of exactly k blocks are not reused.
TEST_F(BatchEngineTest, LengthsAroundBlocksAreReused) {
  for (const int64_t length : {127, 128, 129, 191, 192, 193, 255, 256, 257}) {
    BatchRunner runner(*engine_, roomy());
    const std::vector<int32_t> prompt = random_tokens(length + 1, 5);
    const BatchRequest first = request({prompt.begin(), prompt.end() - 1}, 1);
    expect_cold(runner.ask(first), first);
    for (const BatchRequest& r : {first, request(prompt, 1)}) {
      const Answer a = runner.ask(r);
      expect_cold(a, r);
      EXPECT_GE(a.usage.reuse.resumed, length - 128) << length;
      EXPECT_GT(a.usage.reuse.resumed, 0) << length;
    }
  }
}

// Fault 16: memory errors and other tokens with many requests, prefix reuse and drafts at once.
TEST_F(BatchEngineTest, SixtyFourMixedRequestsAtOnce) {
  BatchRunner runner(*engine_, roomy());
  Rng rng(11);
  std::vector<std::pair<RequestId, BatchRequest>> asked;
  for (uint64_t i = 0; i < 64; ++i) {
    const std::vector<int32_t> shared =
        repeating(static_cast<int64_t>(rng.below(3)) * 100, rng.below(3));
    BatchRequest r =
        request(joined(shared, repeating(1 + static_cast<int64_t>(rng.below(150)), 50 + i)),
                1 + static_cast<int64_t>(rng.below(25)), static_cast<int64_t>(rng.below(3)) * 4);
    r.sampling.temperature = i % 2 == 0 ? 0.0f : 0.8f;
    r.sampling.seed = i;
    asked.emplace_back(runner.submit(r), r);
    if (rng.below(2) == 0) {
      runner.step();
    }
  }
  runner.run();
  for (const auto& [id, r] : asked) {
    expect_cold(runner.answer(id), r);
  }
  EXPECT_GT(runner.batch().counters().reused_tokens, 0);
  EXPECT_GT(runner.batch().counters().drafted_tokens, 0);
}

// Faults 19 and 25: hits on what was evicted; a pool that holds little more than one prompt.
TEST_F(BatchEngineTest, AfterAFloodThereAreNoPhantoms) {
  BatchRunner runner(*engine_, tight(2, 512));
  const BatchRequest a = request(random_tokens(450, 1), 4);
  for (uint64_t i = 0; i < 3; ++i) {
    expect_cold(runner.ask(a), a);
    for (uint64_t flood = 0; flood < 4; ++flood) {
      const BatchRequest b =
          request(random_tokens(400 + static_cast<int64_t>(i), 10 * i + flood), 2);
      expect_cold(runner.ask(b), b);
    }
  }
  const cache::TierUse use = runner.batch().memory().cache().use(cache::Tier::kDevice);
  EXPECT_LE(use.used_bytes, use.budget_bytes);
}

// Fault 20: A, B, A, where B and cold prompts run in between and beside.
TEST_F(BatchEngineTest, AnotherPrefixInBetweenChangesNothing) {
  BatchRunner runner(*engine_, tight(4, 512));
  const BatchRequest a = request(random_tokens(300, 1), 12);
  const BatchRequest b = request(random_tokens(280, 2), 12);
  for (uint64_t i = 0; i < 4; ++i) {
    const BatchRequest beside = request(random_tokens(200, 20 + i), 12);
    const RequestId id_beside = runner.submit(beside), id_a = runner.submit(a);
    runner.step();
    const RequestId id_b = runner.submit(b);
    runner.run();
    expect_cold(runner.answer(id_a), a);
    expect_cold(runner.answer(id_b), b);
    expect_cold(runner.answer(id_beside), beside);
  }
}

// Fault 22: the checkpoints of short prompts go at every turn.
TEST_F(BatchEngineTest, ShortConversationsAreReused) {
  BatchRunner runner(*engine_, roomy());
  std::vector<int32_t> conversation = random_tokens(70, 1);
  for (uint64_t turn = 0; turn < 20; ++turn) {
    const BatchRequest r = request(conversation, 5);
    const Answer a = runner.ask(r);
    expect_cold(a, r);
    if (turn > 0) {
      EXPECT_GE(a.usage.reuse.resumed + 5 + 30 + 128, static_cast<int64_t>(conversation.size()));
    }
    conversation = joined(joined(conversation, a.tokens), random_tokens(30, 100 + turn));
  }
}

// Fault 23: a state taken back that was never saved, at any number of accepted tokens.
TEST_F(BatchEngineTest, AnyNumberOfAcceptedTokensIsTakenBackRightly) {
  const BatchRequest plain = request(random_tokens(90, 3), 40);
  const std::vector<dense::SampledToken> cold = cold_answer(*engine_, plain);
  for (const int64_t longest : {1, 2, 3, 8}) {
    for (int64_t right = 0; right <= longest; ++right) {
      // Every draft is right for exactly `right` tokens.
      BatchRequest r = plain;
      r.draft_tokens = longest;
      r.drafter = [&](std::span<const int32_t> tokens, int64_t count) {
        std::vector<int32_t> draft;
        for (int64_t i = 0; i < count; ++i) {
          const size_t at = tokens.size() - plain.prompt.size() + static_cast<size_t>(i);
          const int32_t truth = at < cold.size() ? cold[at].id : 0;
          draft.push_back(i < right ? truth : (truth + 1) % static_cast<int32_t>(kSmallVocab));
        }
        return draft;
      };
      BatchRunner runner(*engine_, roomy());
      const Answer a = runner.ask(r);
      expect_same(a, cold);
      EXPECT_GT(a.usage.drafted_tokens, 0);
      EXPECT_EQ(a.usage.accepted_tokens == 0, right == 0);
      if (right == longest) {
        EXPECT_EQ(a.usage.accepted_tokens, a.usage.drafted_tokens);
        EXPECT_LE(runner.batch().counters().steps, 3 + 40 / (1 + longest) + 1);
      }
    }
  }
}

TEST_F(BatchEngineTest, NoPolicyChangesAToken) {
  for (const std::string& policy : cache::policy_names()) {
    BatchOptions options = tight(4, 384);
    options.policy = policy;
    BatchRunner runner(*engine_, options);
    Rng rng(3);
    std::vector<std::pair<RequestId, BatchRequest>> asked;
    for (uint64_t i = 0; i < 12; ++i) {
      const BatchRequest r =
          request(joined(random_tokens(64 * static_cast<int64_t>(rng.below(3)), rng.below(2)),
                         random_tokens(1 + static_cast<int64_t>(rng.below(200)), rng.below(6))),
                  4);
      asked.emplace_back(runner.submit(r), r);
      for (uint64_t steps = rng.below(4); steps > 0; --steps) {
        runner.step();
      }
    }
    runner.run();
    for (const auto& [id, r] : asked) {
      SCOPED_TRACE(policy);
      expect_cold(runner.answer(id), r);
    }
  }
}

}  // namespace
}  // namespace triax::testing
