// Memory, then an SSD, below the device: what was evicted or survived a restart is loaded, and
// gives the tokens of a cold run.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <set>

#include "engine/batch_tiers_testing.h"

namespace triax::testing {
namespace {

class BatchTiersTest : public TiersTest {};

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

TEST_F(BatchTiersTest, TruncatedFilesAreComputedAgainAndWrittenAnew) {
  {
    BatchRunner runner(*engine_, with_ssd());
    runner.ask(request(0));
    settle(runner);
    int64_t cut = 0;
    for (const auto& file : std::filesystem::recursive_directory_iterator(folder_)) {
      if (file.is_regular_file() && file.file_size() > 20000) {
        std::filesystem::resize_file(file.path(), file.file_size() / 2);
        ++cut;
      }
    }
    EXPECT_GT(cut, 0);
    runner.ask(request(1));  // the first is evicted
    settle(runner);
    const Answer a = runner.ask(request(0));
    expect_cold(a, request(0));
    EXPECT_EQ(a.usage.reuse.resumed, 0);
    settle(runner);
  }
  BatchRunner again(*engine_, with_ssd());
  const Answer a = again.ask(request(0));
  expect_cold(a, request(0));
  EXPECT_EQ(a.usage.reuse.resumed, 256);
}

// No file may grow beyond a limit: what a full disk looks like to a writer.
TEST_F(BatchTiersTest, AFullDiskCostsNoAnswerAndNothingThatWasWritten) {
  BatchRunner runner(*engine_, with_ssd());
  runner.ask(request(0));
  settle(runner);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{4096, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  for (uint64_t seed = 1; seed < 4; ++seed) {
    expect_cold(runner.ask(request(seed)), request(seed));
    settle(runner);
  }
  const Answer a = runner.ask(request(0));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, old_handler);
  expect_cold(a, request(0));
  EXPECT_EQ(a.usage.reuse.resumed, 256);
  EXPECT_GT(runner.batch().memory().stats().cache.transfers_failed, 0);
  EXPECT_TRUE(notices_.empty());  // full is not broken
}

/// The log-probability of a request's first token, from a cold state after 256 tokens that went
/// through the encoding once.
float first_logprob(engine::Engine& engine, const BatchRequest& r, store::StateEncoding encoding,
                    int32_t token) {
  model::StatePool& pool = engine.pool();
  Result<model::SequenceState> state = pool.create();
  const std::span<const int32_t> prompt = r.prompt;
  EXPECT_TRUE(engine.prefill(*state, prompt.first(256), model::LogitRows::kNone, {}).ok());
  const engine::StateAtRest at_rest(engine.config(), pool.slot_bytes(), encoding);
  std::vector<std::byte> slot(static_cast<size_t>(pool.slot_bytes()));
  std::vector<std::byte> stored(static_cast<size_t>(at_rest.bytes()));
  EXPECT_TRUE(pool.read_slot(state->slot(), slot).ok());
  EXPECT_TRUE(at_rest.encode(slot, stored).ok());
  EXPECT_TRUE(at_rest.decode(stored, slot).ok());
  EXPECT_TRUE(pool.write_slot(state->slot(), slot).ok());
  Tensor logits = Tensor::f32({1, engine.config().vocab});
  EXPECT_TRUE(
      engine.prefill(*state, prompt.subspan(256), model::LogitRows::kLast, logits.view()).ok());
  const std::span row(logits.view().data<float>(), static_cast<size_t>(engine.config().vocab));
  double sum = 0;
  for (const float x : row) {
    sum += std::exp(static_cast<double>(x));
  }
  return row[static_cast<size_t>(token)] - static_cast<float>(std::log(sum));
}

// States at rest in fewer bits: the error is that of one rounding, however often a state moves.
class StatesAtRest : public BatchTiersTest,
                     public ::testing::WithParamInterface<store::StateEncoding> {};

TEST_P(StatesAtRest, AreRoundedOnceHoweverOftenTheyMove) {
  BatchOptions o = with_ssd();
  o.tiers.ram_bytes = int64_t{32} << 20;
  o.tiers.states = GetParam();
  float largest = 0;
  for (int life = 0; life < 2; ++life) {  // the second finds the states on the SSD
    BatchRunner runner(*engine_, o);
    for (int round = 0; round < 2; ++round) {
      for (uint64_t seed = 0; seed < 3; ++seed) {
        const BatchRequest r = request(seed);
        const Answer a = runner.ask(r);
        settle(runner);
        if (life + round == 0) {
          expect_cold(a, r);
          continue;
        }
        EXPECT_EQ(a.usage.reuse.resumed, 256);
        const float rounded = first_logprob(*engine_, r, GetParam(), a.tokens[0]);
        EXPECT_NEAR(a.sampled[0].logprob, rounded, kLogprobBound);
        const float exact = first_logprob(*engine_, r, store::StateEncoding::kF32, a.tokens[0]);
        largest = std::max(largest, std::abs(a.sampled[0].logprob - exact));
      }
    }
  }
  EXPECT_GT(largest, kLogprobBound);  // it was no test of exact states
}

INSTANTIATE_TEST_SUITE_P(Encodings, StatesAtRest,
                         ::testing::Values(store::StateEncoding::kBf16,
                                           store::StateEncoding::kInt8),
                         [](const auto& kind) {
                           return std::string(store::encoding_name(kind.param));
                         });

// What is cheaper to compute than to load is computed, by times measured.
TEST_F(BatchTiersTest, LoadsMustPay) {
  BatchOptions o = with_ssd();
  o.tiers.loads_must_pay = true;
  BatchRunner runner(*engine_, o);
  for (int round = 0; round < 3; ++round) {
    for (uint64_t seed = 0; seed < 3; ++seed) {
      expect_cold(runner.ask(request(seed)), request(seed));
      settle(runner);
    }
  }
  const cache::CacheConfig& config = runner.batch().memory().cache().config();
  const cache::TierConfig& ssd = config.tiers[static_cast<size_t>(cache::Tier::kSsd)];
  EXPECT_GT(ssd.read_bytes_per_second, 0.0);
  EXPECT_NE(config.prefill.per_token, cache::PrefillCost().per_token);
}

// kill -9 while states are written: what was acknowledged is found again, and right.
TEST_F(BatchTiersTest, DISABLED_WritesUntilItIsKilled) {
  const char* folder = std::getenv("TRIAX_TEST_KILL_FOLDER");
  ASSERT_NE(folder, nullptr);
  BatchOptions o = with_ssd();
  o.tiers.ssd_folder = folder;
  BatchRunner runner(*engine_, o);
  const auto known = static_cast<uint64_t>(runner.batch().memory().adopted());
  for (uint64_t seed = known;; ++seed) {
    runner.ask(request(seed));
    settle(runner);
    std::ofstream(std::string(folder) + ".acknowledged", std::ios::app) << seed << std::endl;
  }
}

TEST_F(BatchTiersTest, KilledInTheMiddleOfWritingNothingAcknowledgedIsLost) {
  std::set<uint64_t> acknowledged;
  for (int life = 0; life < 3; ++life) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::setenv("TRIAX_TEST_KILL_FOLDER", folder_.c_str(), 1);
      ::execl("/proc/self/exe", "engine_test",
              "--gtest_filter=BatchTiersTest.DISABLED_WritesUntilItIsKilled",
              "--gtest_also_run_disabled_tests", "--gtest_brief=1", nullptr);
      ::_exit(127);
    }
    const size_t before = acknowledged.size();
    for (int i = 0; i < 3000 && acknowledged.size() < before + 2; ++i) {
      ::usleep(10'000);
      std::ifstream lines(folder_ + ".acknowledged");
      for (uint64_t seed = 0; lines >> seed;) {
        acknowledged.insert(seed);
      }
    }
    ::usleep(static_cast<useconds_t>(7000 * life));  // anywhere in the next write
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    ASSERT_GE(acknowledged.size(), before + 2);
  }
  std::filesystem::remove(folder_ + ".acknowledged");
  BatchRunner again(*engine_, with_ssd());
  for (const uint64_t seed : acknowledged) {
    const Answer a = again.ask(request(seed));
    expect_cold(a, request(seed));
    EXPECT_EQ(a.usage.reuse.resumed, 256) << seed;
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
