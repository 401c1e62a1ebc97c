// For tests of what lies below the device: a device for one running sequence and one checkpoint.
#pragma once

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/batch_testing.h"

namespace triax::testing {

class TiersTest : public ::testing::Test {
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
    std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::ranges::replace(name, '/', '_');
    folder_ = (std::filesystem::temp_directory_path() / ("triax_tiers_" + name)).string();
    std::filesystem::remove_all(folder_);
    notices_.clear();
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
    options.tiers.loads_must_pay = false;  // what is loaded does not depend on the machine
    const BatchRunner probe(*engine_, options);
    options.memory_bytes = 2 * probe.batch().memory().bytes(448);
    options.tiers.failing.on_notice = [](const std::string& line) { notices_.push_back(line); };
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
  static inline std::vector<std::string> notices_;
  static inline engine::Engine* engine_ = nullptr;
};

}  // namespace triax::testing
