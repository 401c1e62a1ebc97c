// Requests that branch, are cancelled, give way, fail or are refused; see batch_engine_test.cc.
#include <cmath>
#include <cstring>

#include "engine/batch_testing.h"

namespace triax::testing {
namespace {

using engine::FinishReason;

std::unique_ptr<engine::Engine> make_engine(model::ModelWeights weights) {
  engine::EngineOptions options;
  options.threads = 2;
  options.context_tokens = 1024;
  Result<std::unique_ptr<engine::Engine>> made =
      engine::Engine::create(std::move(weights), options);
  check(made.ok(), made.status().message());
  return std::move(*made);
}

class BatchLifecycleTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { engine_ = make_engine(small_weights()).release(); }
  static void TearDownTestSuite() {
    delete engine_;
    engine_ = nullptr;
  }

  static BatchOptions roomy() {
    BatchOptions options;
    options.policy = "prompt-end+junction";  // learns nothing: each test sees the same checkpoints
    options.memory_bytes = int64_t{64} << 20;
    options.sched.step_tokens = 256;
    options.sched.chunk_tokens = 128;
    options.sched.sequences_max = 16;
    return options;
  }

  static BatchOptions tight(int64_t sequences, int64_t tokens) {
    BatchRunner probe(*engine_, roomy());
    BatchOptions options = roomy();
    options.memory_bytes = sequences * probe.batch().memory().bytes(tokens);
    return options;
  }

  static BatchRequest request(std::vector<int32_t> prompt, int64_t max_tokens = 8) {
    BatchRequest r;
    r.prompt = std::move(prompt);
    r.sampling.temperature = 0.0f;
    r.max_tokens = max_tokens;
    return r;
  }

  static void expect_cold(const Answer& answer, const BatchRequest& r, int32_t choice = 0) {
    expect_same(answer, cold_answer(*engine_, r, choice));
  }

  static void expect_nothing_runs(BatchRunner& runner) {
    EXPECT_EQ(runner.batch().scheduler().running(), 0);
    EXPECT_EQ(runner.batch().scheduler().queued(), 0);
    const cache::Cache& cache = runner.batch().memory().cache();
    const cache::TierUse use = cache.use(cache::Tier::kDevice);
    EXPECT_LE(use.used_bytes, use.pages * cache.config().page_bytes +
                                  use.states * cache.config().tiers[0].state_bytes);
    EXPECT_TRUE(runner.batch().self_check().ok());
  }

  static inline engine::Engine* engine_ = nullptr;
};

TEST_F(BatchLifecycleTest, ItsOwnerHearsOfTheStartAndMayEndAnAnswerAtAnyToken) {
  BatchRunner runner(*engine_, roomy());
  const BatchRequest plain = request(random_tokens(100, 21), 12);
  const Answer whole = runner.ask(plain);
  int starts = 0;
  int64_t resumed = -1;
  BatchRequest r = plain;
  r.draft_tokens = 4;  // a token that was guessed right ends the answer like any other
  r.on_start = [&](const engine::Reuse& reuse) {
    ++starts;
    resumed = reuse.resumed;
  };
  std::vector<int32_t> heard;
  r.on_token = [&](int32_t choice, const dense::SampledToken& token) {
    EXPECT_EQ(choice, 0);
    heard.push_back(token.id);
    return heard.size() < 5;
  };
  const Answer cut = runner.ask(r);
  EXPECT_EQ(starts, 1);
  EXPECT_EQ(resumed, cut.usage.reuse.resumed);
  EXPECT_EQ(heard, std::vector(whole.tokens.begin(), whole.tokens.begin() + 5));
  EXPECT_EQ(cut.tokens, heard);
  EXPECT_EQ(cut.reason, FinishReason::kStop);
  expect_nothing_runs(runner);
}

TEST_F(BatchLifecycleTest, EachChoiceIsTheRequestWithItsSeed) {
  for (const int64_t length : {1, 64, 100, 128}) {
    BatchRunner runner(*engine_, roomy());
    BatchRequest r = request(random_tokens(length, 9), 12);
    r.sampling.temperature = 0.9f;
    r.sampling.seed = 40;
    r.choices = 4;
    const RequestId beside = runner.submit(request(random_tokens(90, 3), 12));
    const RequestId id = runner.submit(r);
    runner.run();
    for (int32_t choice = 0; choice < 4; ++choice) {
      expect_cold(runner.answer(id, choice), r, choice);
    }
    EXPECT_NE(runner.answer(id, 0).tokens, runner.answer(id, 1).tokens);
    expect_cold(runner.answer(beside), request(random_tokens(90, 3), 12));
    // The prompt was run once, but for what a checkpoint inside a block needs.
    EXPECT_LE(runner.batch().counters().computed_tokens, length + 4 * 12 + 90 + 12);
    expect_nothing_runs(runner);
  }
}

TEST_F(BatchLifecycleTest, MoreChoicesThanThereIsRoomForComeOneAfterTheOther) {
  BatchRunner runner(*engine_, tight(2, 256));
  BatchRequest r = request(random_tokens(120, 9), 20);
  r.sampling.temperature = 0.9f;
  r.choices = 5;
  const RequestId id = runner.submit(r);
  runner.run();
  for (int32_t choice = 0; choice < 5; ++choice) {
    expect_cold(runner.answer(id, choice), r, choice);
  }
}

TEST_F(BatchLifecycleTest, ASeedGivesTheSameTokensWhateverRunsBeside) {
  BatchRequest r = request(random_tokens(77, 1), 16);
  r.sampling.temperature = 1.0f;
  r.sampling.seed = 5;
  BatchRunner alone(*engine_, roomy());
  const Answer first = alone.ask(r);
  BatchRunner busy(*engine_, roomy());
  for (uint64_t i = 0; i < 6; ++i) {
    busy.submit(request(random_tokens(static_cast<int64_t>(30 + 40 * i), 60 + i), 9));
  }
  EXPECT_EQ(busy.ask(r).tokens, first.tokens);
}

// Faults 7 and 28: work for clients that have gone; a slot that two entries name.
TEST_F(BatchLifecycleTest, ACancelledRequestIsGoneAtOnceInEveryPhase) {
  for (int steps = 0; steps < 10; ++steps) {  // queued, first chunk .. last, decoding
    BatchRunner runner(*engine_, tight(3, 640));
    BatchRequest long_one = request(random_tokens(500, 1), 6);
    long_one.choices = 2;
    const BatchRequest other = request(random_tokens(180, 2), 10);
    const RequestId id = runner.submit(long_one);
    const RequestId id_other = runner.submit(other);
    for (int i = 0; i < steps; ++i) {
      runner.step();
    }
    const bool alive = !runner.answer(id).ended || !runner.answer(id, 1).ended;
    EXPECT_EQ(runner.cancel(id), alive);
    EXPECT_FALSE(runner.cancel(id));
    EXPECT_TRUE(runner.batch().self_check().ok());
    EXPECT_LE(runner.batch().scheduler().running() + runner.batch().scheduler().queued(), 1);
    runner.run();
    EXPECT_TRUE(runner.answer(id).ended);
    expect_cold(runner.answer(id_other), other);
    const Answer again = runner.ask(long_one);  // perhaps from what the cancelled one left
    expect_cold(again, long_one);
    expect_nothing_runs(runner);
  }
}

TEST_F(BatchLifecycleTest, RandomCancelsUnderPressureLeaveEveryoneElseRight) {
  BatchRunner runner(*engine_, tight(4, 400));
  Rng rng(5);
  std::vector<std::pair<RequestId, BatchRequest>> asked;
  for (uint64_t i = 0; i < 30; ++i) {
    BatchRequest r = request(joined(random_tokens(static_cast<int64_t>(64 * rng.below(3)), 1),
                                    random_tokens(1 + static_cast<int64_t>(rng.below(130)), i)),
                             1 + static_cast<int64_t>(rng.below(30)));
    r.draft_tokens = static_cast<int64_t>(rng.below(2)) * 3;
    r.choices = 1 + static_cast<int32_t>(rng.below(2));
    asked.emplace_back(runner.submit(r), r);
    for (uint64_t k = rng.below(4); k > 0; --k) {
      runner.step();
    }
    if (rng.below(3) == 0) {
      runner.cancel(asked[rng.below(asked.size())].first);
    }
  }
  runner.run();
  int64_t whole = 0;
  for (const auto& [id, r] : asked) {
    for (int32_t choice = 0; choice < r.choices; ++choice) {
      if (const Answer& a = runner.answer(id, choice);
          a.ended && a.reason != FinishReason::kCancelled) {
        expect_cold(a, r, choice);
        ++whole;
      }
    }
  }
  EXPECT_GT(whole, 15);
  expect_nothing_runs(runner);
}

TEST_F(BatchLifecycleTest, WhoGivesWayGoesOnWithTheSameTokens) {
  BatchRunner runner(*engine_, tight(3, 192));
  std::vector<std::pair<RequestId, BatchRequest>> asked;
  for (uint64_t i = 0; i < 4; ++i) {
    BatchRequest r = request(random_tokens(60, i), 150);
    r.sampling.temperature = 0.8f;
    r.sampling.seed = i;
    asked.emplace_back(runner.submit(r), r);
  }
  runner.run();
  int64_t preemptions = 0;
  for (const auto& [id, r] : asked) {
    expect_cold(runner.answer(id), r);
    preemptions += runner.answer(id).usage.preemptions;
  }
  EXPECT_GT(preemptions, 0);
}

// Fault 29: refused only after a prefill, or never.
TEST_F(BatchLifecycleTest, BadRequestsAreRefusedBeforeAnyWork) {
  BatchRunner runner(*engine_, tight(2, 512));
  const auto refused = [&](const std::function<void(BatchRequest&)>& spoil, StatusCode code) {
    BatchRequest r = request(random_tokens(10, 1));
    spoil(r);
    const Result<RequestId> id = runner.batch().submit(r, runner.now());
    ASSERT_FALSE(id.ok());
    EXPECT_EQ(id.status().code(), code) << id.status().message();
    EXPECT_FALSE(runner.batch().busy());
  };
  const StatusCode bad = StatusCode::kInvalidArgument;
  refused([](BatchRequest& r) { r.prompt.clear(); }, bad);
  refused([](BatchRequest& r) { r.prompt[3] = -1; }, bad);
  refused([](BatchRequest& r) { r.prompt[3] = kSmallVocab; }, bad);
  refused([](BatchRequest& r) { r.prompt.resize(1024); }, bad);
  refused([](BatchRequest& r) { r.max_tokens = 0; }, bad);
  refused([](BatchRequest& r) { r.choices = 0; }, bad);
  refused([](BatchRequest& r) { r.draft_tokens = -1; }, bad);
  refused([](BatchRequest& r) { r.sampling.top_p = 0.0f; }, bad);
  refused([](BatchRequest& r) { r.priority = 1000; }, bad);
  refused([](BatchRequest& r) { r.deadline_s = -1.0; }, StatusCode::kCancelled);
  // Fits the context, not the memory: a pool smaller than one prompt.
  BatchRunner small(*engine_, tight(1, 768));
  const Result<RequestId> id = small.batch().submit(request(random_tokens(900, 1)), 0.0);
  ASSERT_FALSE(id.ok());
  EXPECT_EQ(id.status().code(), StatusCode::kResourceExhausted);
  const BatchRequest fits = request(random_tokens(120, 1));
  expect_cold(small.ask(fits), fits);
  EXPECT_EQ(runner.batch().counters().computed_tokens, 0);
}

TEST_F(BatchLifecycleTest, TheContextEndsAnAnswer) {
  BatchRunner runner(*engine_, roomy());
  const Answer a = runner.ask(request(random_tokens(1020, 1), 100));
  EXPECT_EQ(a.tokens.size(), 4U);
  EXPECT_EQ(a.reason, FinishReason::kLength);
}

TEST_F(BatchLifecycleTest, ADeadlineEndsAWaitingRequest) {
  BatchRunner runner(*engine_, tight(1, 768));
  const BatchRequest first = request(random_tokens(100, 1), 60);
  BatchRequest late = request(random_tokens(100, 2), 60);
  late.deadline_s = 0.1;  // ten steps
  const RequestId id = runner.submit(first), id_late = runner.submit(late);
  runner.run();
  expect_cold(runner.answer(id), first);
  EXPECT_TRUE(runner.answer(id_late).failed);
  EXPECT_EQ(runner.answer(id_late).error.code(), StatusCode::kCancelled);
}

TEST_F(BatchLifecycleTest, AFullQueueRefusesWithATime) {
  BatchOptions options = roomy();
  options.sched.queue_max = 2;
  BatchRunner runner(*engine_, options);
  runner.submit(request(random_tokens(10, 1)));
  runner.submit(request(random_tokens(10, 2)));
  const Result<RequestId> id = runner.batch().submit(request(random_tokens(10, 3)), runner.now());
  ASSERT_FALSE(id.ok());
  EXPECT_EQ(id.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(id.status().message().find("try again"), std::string::npos);
  runner.run();
}

// Fault 27: a budget below one state, accepted and then of no use.
TEST_F(BatchLifecycleTest, ABudgetBelowOneSequenceIsAnErrorAtTheStart) {
  BatchOptions options = roomy();
  const BatchRunner probe(*engine_, options);
  const engine::SequenceMemory& memory = probe.batch().memory();
  options.memory_bytes = memory.bytes(64) + memory.bytes(0);  // it runs, and a checkpoint is kept
  EXPECT_TRUE(BatchEngine::create(*engine_, options).ok());
  options.memory_bytes -= 1;
  EXPECT_EQ(BatchEngine::create(*engine_, options).status().code(), StatusCode::kInvalidArgument);
  options = roomy();
  options.policy = "no such policy";
  EXPECT_FALSE(BatchEngine::create(*engine_, options).ok());
  options = roomy();
  options.sched.step_tokens = 70;
  EXPECT_FALSE(BatchEngine::create(*engine_, options).ok());
}

// Fault 15: what is kept changes and nobody can see it.
TEST_F(BatchLifecycleTest, CountersSayWhatWasKeptAndWhyAPromptWasNotReused) {
  BatchRunner runner(*engine_, tight(3, 448));
  const BatchRequest a = request(random_tokens(300, 1), 2);
  runner.ask(a);
  const Answer warm = runner.ask(a);
  EXPECT_EQ(warm.usage.reuse.match.possible, warm.usage.reuse.resumed);
  for (uint64_t flood = 2; flood < 5; ++flood) {
    runner.ask(request(random_tokens(400, flood), 2));
  }
  const Answer evicted = runner.ask(a);
  EXPECT_EQ(evicted.usage.reuse.resumed, 0);
  EXPECT_GT(evicted.usage.reuse.match.evicted, 0);
  const cache::CacheStats& stats = runner.batch().memory().cache().stats();
  EXPECT_EQ(stats.requests, 6);
  EXPECT_GT(stats.states_written[static_cast<size_t>(cache::AnchorKind::kPromptEnd)], 1);
  EXPECT_EQ(stats.states_read[static_cast<size_t>(cache::AnchorKind::kPromptEnd)], 1);
  EXPECT_EQ(runner.batch().counters().reused_tokens, warm.usage.reuse.resumed);
}

TEST_F(BatchLifecycleTest, WithoutReuseEveryPromptIsComputedWhole) {
  BatchOptions options = roomy();
  options.reuse = false;
  BatchRunner runner(*engine_, options);
  const BatchRequest a = request(random_tokens(300, 1), 4);
  expect_cold(runner.ask(a), a);
  expect_cold(runner.ask(a), a);
  EXPECT_EQ(runner.batch().counters().reused_tokens, 0);
  EXPECT_EQ(runner.batch().counters().computed_tokens, 2 * (300 + 3));
}

// Fault 11, the other half: one request's NaN must not reach its batch, nor who comes after it.
TEST(BatchIsolation, ARequestWithoutNumbersFailsAlone) {
  model::ModelWeights weights = small_weights();
  const int64_t poisoned = kSmallVocab - 1;  // random_tokens never draws it
  auto* row = static_cast<std::byte*>(const_cast<void*>(weights.embedding.data)) +
              poisoned * weights.config.hidden * 2;
  std::memset(row, 0xFF, static_cast<size_t>(weights.config.hidden * 2));
  const std::unique_ptr<engine::Engine> engine = make_engine(std::move(weights));
  BatchOptions options;
  options.memory_bytes = int64_t{8} << 20;
  options.sched.step_tokens = 256;
  options.sched.sequences_max = 16;
  BatchRunner runner(*engine, options);
  BatchRequest good;
  good.prompt = random_tokens(150, 1);
  good.sampling.temperature = 0.0f;
  good.max_tokens = 10;
  BatchRequest bad = good;
  bad.prompt[100] = static_cast<int32_t>(poisoned);
  bad.choices = 3;
  for (int round = 0; round < 3; ++round) {
    const RequestId id_bad = runner.submit(bad), id_good = runner.submit(good);
    runner.run();
    expect_same(runner.answer(id_good), cold_answer(*engine, good));
    EXPECT_TRUE(runner.answer(id_bad).failed);
    EXPECT_TRUE(runner.answer(id_bad).tokens.empty());
    // What the two have in common is known to be right; what lies behind the NaN was not kept.
    BatchRequest longer = bad;
    longer.prompt = joined(bad.prompt, random_tokens(60, 2));
    const Answer again = runner.ask(longer);
    EXPECT_TRUE(again.failed);
    EXPECT_LE(again.usage.reuse.resumed, 100);
  }
}

}  // namespace
}  // namespace triax::testing
