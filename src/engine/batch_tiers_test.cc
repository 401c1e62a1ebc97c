// Memory, then an SSD, below the device: what was evicted or survived a restart is loaded, and
// gives the tokens of a cold run.
#include <filesystem>
#include <fstream>

#include "engine/batch_testing.h"

namespace triax::testing {
namespace {

class BatchTiersTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    engine::EngineOptions options;
    options.threads = 2;
    options.context_tokens = 1024;
    Result<std::unique_ptr<engine::Engine>> made = engine::Engine::create(small_weights(), options);
    ASSERT_TRUE(made.ok()) << made.status().message();
    engine_ = std::move(*made).release();
  }
  static void TearDownTestSuite() {
    delete engine_;
    engine_ = nullptr;
  }

  void SetUp() override {
    folder_ = (std::filesystem::temp_directory_path() /
               (std::string("triax_tiers_") +
                ::testing::UnitTest::GetInstance()->current_test_info()->name()))
                  .string();
    std::filesystem::remove_all(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  /// A device for one running sequence and one checkpoint.
  static BatchOptions options() {
    BatchOptions options;
    options.policy = "prompt-end+junction";
    options.sched.step_tokens = 256;
    options.sched.chunk_tokens = 128;
    options.sched.sequences_max = 16;
    options.memory_bytes = int64_t{64} << 20;
    const BatchRunner probe(*engine_, options);
    options.memory_bytes = 2 * probe.batch().memory().bytes(448);
    return options;
  }

  BatchOptions with_ssd() const {
    BatchOptions o = options();
    o.tiers.ssd_bytes = int64_t{64} << 20;
    o.tiers.ssd_folder = folder_;
    o.tiers.fingerprint = 5;
    return o;
  }

  static BatchRequest request(uint64_t seed, int64_t length = 300) {
    BatchRequest r;
    r.prompt = random_tokens(length, seed);
    r.sampling.temperature = 0.0f;
    r.max_tokens = 6;
    return r;
  }

  static void expect_cold(const Answer& answer, const BatchRequest& r) {
    expect_same(answer, cold_answer(*engine_, r));
  }

  /// Waits until everything is written.
  static void settle(BatchRunner& runner) {
    runner.step();
    for (int i = 0; i < 2000 && runner.batch().memory().copying(); ++i) {
      runner.step();
    }
    EXPECT_FALSE(runner.batch().memory().copying());
  }

  std::string folder_;
  static inline engine::Engine* engine_ = nullptr;
};

// Fault 5: latents come back from below, the state does not.
TEST_F(BatchTiersTest, WhatTheDeviceEvictsComesBackFromMemory) {
  BatchOptions o = options();
  o.tiers.ram_bytes = int64_t{32} << 20;
  BatchRunner runner(*engine_, o);
  for (int round = 0; round < 3; ++round) {
    for (uint64_t seed = 0; seed < 5; ++seed) {
      const Answer a = runner.ask(request(seed));
      expect_cold(a, request(seed));
      EXPECT_EQ(a.usage.reuse.resumed, round == 0 ? 0 : 256) << seed;
    }
  }
  // Longer ones go on from there, together.
  std::vector<std::pair<RequestId, BatchRequest>> asked;
  for (uint64_t seed = 0; seed < 5; ++seed) {
    BatchRequest r = request(seed);
    r.prompt = joined(r.prompt, random_tokens(30, 50 + seed));
    asked.emplace_back(runner.submit(r), r);
  }
  runner.run();
  int64_t resumed = 0;  // where there is no room for a checkpoint beside who runs, none is loaded
  for (const auto& [id, r] : asked) {
    expect_cold(runner.answer(id), r);
    resumed += runner.answer(id).usage.reuse.resumed;
  }
  EXPECT_GE(resumed, 256);
}

TEST_F(BatchTiersTest, WhatTheDeviceEvictsComesBackFromTheSsdAndSurvivesARestart) {
  {
    BatchRunner runner(*engine_, with_ssd());
    for (int round = 0; round < 2; ++round) {
      for (uint64_t seed = 0; seed < 4; ++seed) {
        const Answer a = runner.ask(request(seed));
        expect_cold(a, request(seed));
        const cache::Match& m = a.usage.reuse.match;
        EXPECT_EQ(a.usage.reuse.resumed, round == 0 ? 0 : 256)
            << seed << ": " << m.possible << " " << m.matched << " " << m.not_loaded << " "
            << m.evicted << " " << m.state_missing;
        settle(runner);
      }
    }
  }
  BatchRunner again(*engine_, with_ssd());
  EXPECT_EQ(again.batch().memory().adopted(), 4);
  for (uint64_t seed = 0; seed < 4; ++seed) {
    const Answer a = again.ask(request(seed));
    expect_cold(a, request(seed));
    EXPECT_EQ(a.usage.reuse.resumed, 256) << seed;
  }
}

TEST_F(BatchTiersTest, DamagedFilesAreComputedAgain) {
  {
    BatchRunner runner(*engine_, with_ssd());
    for (uint64_t seed = 0; seed < 3; ++seed) {
      runner.ask(request(seed));
      settle(runner);
    }
  }
  for (const auto& file : std::filesystem::recursive_directory_iterator(folder_)) {
    if (file.is_regular_file() && file.file_size() > 20000) {
      std::fstream bytes(file.path(), std::ios::in | std::ios::out | std::ios::binary);
      bytes.seekp(9000);
      bytes.put('\x55');
      bytes.put('\x2a');
    }
  }
  BatchRunner again(*engine_, with_ssd());
  for (uint64_t seed = 0; seed < 3; ++seed) {
    expect_cold(again.ask(request(seed)), request(seed));
  }
}

TEST_F(BatchTiersTest, StatesOfAModelWithoutAFingerprintAreNotStored) {
  BatchOptions o = with_ssd();
  o.tiers.fingerprint = 0;
  EXPECT_EQ(BatchEngine::create(*engine_, o).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(BatchTiersTest, AnotherModelsFolderHoldsNothingForThisOne) {
  {
    BatchRunner runner(*engine_, with_ssd());
    runner.ask(request(1));
    settle(runner);
  }
  BatchOptions other = with_ssd();
  other.tiers.fingerprint = 77;
  BatchRunner again(*engine_, other);
  EXPECT_EQ(again.batch().memory().adopted(), 0);
  EXPECT_EQ(again.ask(request(1)).usage.reuse.resumed, 0);
}

// Fault 7, beside loads: who is cancelled while its state is on the way.
TEST_F(BatchTiersTest, RandomWorkOverAllTiersEqualsColdRuns) {
  BatchOptions o = with_ssd();
  o.memory_bytes = o.memory_bytes * 3 / 2;
  o.tiers.ram_bytes = 3 * o.memory_bytes;
  o.tiers.ssd_bytes = int64_t{16} << 20;
  BatchRunner runner(*engine_, o);
  Rng rng(9);
  std::vector<std::pair<RequestId, BatchRequest>> asked;
  for (uint64_t i = 0; i < 40; ++i) {
    BatchRequest r = request(rng.below(8), 100 + 64 * static_cast<int64_t>(rng.below(4)));
    r.prompt = joined(r.prompt, random_tokens(1 + static_cast<int64_t>(rng.below(40)), 100 + i));
    asked.emplace_back(runner.submit(r), r);
    for (uint64_t steps = rng.below(6); steps > 0; --steps) {
      runner.step();
    }
    if (rng.below(6) == 0) {
      runner.cancel(asked.back().first);
    }
  }
  runner.run();
  int64_t reused = 0;
  for (const auto& [id, r] : asked) {
    const Answer& a = runner.answer(id);
    if (a.reason != engine::FinishReason::kCancelled) {
      expect_cold(a, r);
    }
    reused += a.usage.reuse.resumed;
  }
  EXPECT_GT(reused, 0);
}

}  // namespace
}  // namespace triax::testing
