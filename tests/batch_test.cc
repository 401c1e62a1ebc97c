// Many conversations with the model that ships, in memory for a quarter of them.
#include "engine/batch_testing.h"
#include "golden.h"

namespace triax::testing {
namespace {

constexpr size_t kSessions = 64;
constexpr uint64_t kTurns = 3;

class BatchTest : public ::testing::TestWithParam<TestDevice> {
 protected:
  void SetUp() override {
    engine_ = open_engine(boot_directory(), GetParam());
    ASSERT_NE(engine_, nullptr);
  }

  /// A user's next words.
  std::vector<int32_t> words(uint64_t session, uint64_t turn) const {
    static constexpr const char* kWords[] = {"free ",   "software ", "Debian ", "what ", "is ",
                                             "Python ", "the ",      "system ", "who ",  "list "};
    Rng rng(1000 * session + turn);
    std::string text = "\n";
    for (uint64_t i = 0; i < 20 + rng.below(40); ++i) {
      text += kWords[rng.below(std::size(kWords))];
    }
    return engine_->tokenizer()->encode(text);
  }

  std::unique_ptr<engine::Engine> engine_;
};

// All faults of batch_engine_test.cc at once, on a trained model: conversations that take turns,
// half of them with drafts, some with two answers, more than memory holds.
TEST_P(BatchTest, SixtyFourConversationsInMemoryForAQuarterEqualColdRuns) {
  BatchOptions options;
  options.sched.step_tokens = 512;
  options.sched.chunk_tokens = 256;
  options.sched.sequences_max = 32;
  options.memory_bytes = BatchRunner(*engine_, options).batch().memory().bytes(320) * 16;
  BatchRunner runner(*engine_, options);
  const std::vector<int32_t> system = engine_->tokenizer()->encode(
      "You are a program that knows Debian and Python. Be brief. "
      "Say what you know, and say so when you know nothing.");
  std::vector<std::vector<int32_t>> conversations(kSessions, system);
  Rng rng(1);
  size_t compared = 0;
  for (uint64_t turn = 0; turn < kTurns; ++turn) {
    std::vector<std::pair<RequestId, BatchRequest>> asked;
    for (size_t i = 0; i < kSessions; ++i) {
      BatchRequest r;
      r.prompt = joined(conversations[i], words(i, turn));
      r.sampling.temperature = 0.0f;
      r.sampling.top_logprobs = 5;
      r.max_tokens = 8 + static_cast<int64_t>(rng.below(12));
      r.draft_tokens = i % 2 == 0 ? 4 : 0;
      r.choices = i % 16 == 3 ? 2 : 1;
      r.session = i + 1;
      asked.emplace_back(runner.submit(r), r);
      if (rng.below(4) == 0) {
        runner.step();
      }
    }
    runner.run();
    for (size_t i = 0; i < kSessions; ++i) {
      const auto& [id, r] = asked[i];
      ASSERT_TRUE(runner.answer(id).ended && !runner.answer(id).failed);
      if (rng.below(6) == 0) {
        expect_same(runner.answer(id), cold_answer(*engine_, r));
        ++compared;
      }
      if (r.choices == 2) {  // greedy: both say the same
        EXPECT_EQ(runner.answer(id, 1).tokens, runner.answer(id, 0).tokens);
      }
      conversations[i] = joined(r.prompt, runner.answer(id).tokens);
    }
  }
  EXPECT_GT(compared, 15U);
  const engine::BatchCounters& counters = runner.batch().counters();
  EXPECT_GT(counters.reused_tokens, 0);
  EXPECT_GT(counters.accepted_tokens, 0);
  const cache::TierUse use = runner.batch().memory().cache().use(cache::Tier::kDevice);
  EXPECT_LE(use.used_bytes, use.budget_bytes);
}

std::vector<TestDevice> batch_devices() {
  std::vector<TestDevice> devices = {{Backend::kCpu, best_isa(), 2}};
  add_gpu(devices);
  return devices;
}

INSTANTIATE_TEST_SUITE_P(Devices, BatchTest, ::testing::ValuesIn(batch_devices()),
                         [](const auto& param_info) { return param_info.param.name(); });

}  // namespace
}  // namespace triax::testing
