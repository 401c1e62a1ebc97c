// A Redis server below the device, which workers share: what one has computed another goes on from;
// a server that stops, hangs or loses things costs time and no answer.
#include <hiredis/hiredis.h>

#include <chrono>

#include "engine/batch_tiers_testing.h"
#include "store/redis_testing.h"

namespace triax::testing {
namespace {

class BatchSharedTest : public TiersTest {
 protected:
  void SetUp() override {
    TiersTest::SetUp();
    std::string why_not;
    server_ = store::RedisServer::start({}, &why_not);
    if (server_ == nullptr) {
      GTEST_SKIP() << why_not;
    }
  }

  /// A worker's options. Its device holds one running sequence and one checkpoint.
  BatchOptions worker() const {
    BatchOptions o = options();
    o.tiers.fingerprint = 5;
    o.tiers.shared = store::RedisOptions{.address = server_->address()};
    o.tiers.shared->address.reply_timeout_ms = 300;
    o.tiers.shared->address.backoff_ms_min = 10;
    o.tiers.shared->address.backoff_ms_max = 20;
    o.tiers.failing.retry_ms_min = 20;
    o.tiers.failing.retry_ms_max = 40;
    return o;
  }

  static int64_t resumed(BatchRunner& runner, uint64_t seed) {
    const Answer a = runner.ask(request(seed));
    expect_cold(a, request(seed));
    settle(runner);
    return a.usage.reuse.resumed;
  }

  int64_t keys() const {
    const std::unique_ptr<store::RedisLink> link = *store::RedisLink::create(server_->address());
    EXPECT_TRUE(link->ensure().ok() && link->send({"DBSIZE"}).ok());
    const Result<const redisReply*> reply = link->receive();
    return reply.ok() ? (*reply)->integer : -1;
  }
  void flush() const {
    const std::unique_ptr<store::RedisLink> link = *store::RedisLink::create(server_->address());
    EXPECT_TRUE(link->ensure().ok() && link->send({"FLUSHALL"}).ok() && link->receive().ok());
  }

  std::unique_ptr<store::RedisServer> server_;
};

// Fault 12: what one process hands to another lacks the state, or has that of other tokens.
TEST_F(BatchSharedTest, AWorkerGoesOnFromWhatAnotherHasComputed) {
  {
    BatchRunner first(*engine_, worker());
    for (uint64_t seed = 0; seed < 3; ++seed) {
      EXPECT_EQ(resumed(first, seed), 0);
    }
  }
  Result<std::unique_ptr<engine::Engine>> other =
      engine::Engine::create(small_weights(), engine_->options());
  ASSERT_TRUE(other.ok());
  BatchRunner second(**other, worker());
  for (uint64_t seed = 0; seed < 3; ++seed) {
    EXPECT_EQ(resumed(second, seed), 256) << seed;
  }
  // Longer prompts, and what the second wrote itself.
  BatchRequest r = request(1);
  r.prompt = joined(r.prompt, random_tokens(80, 77));
  const Answer a = second.ask(r);
  expect_cold(a, r);
  EXPECT_GE(a.usage.reuse.resumed, 256);
  EXPECT_TRUE(notices_.empty());
}

// Fault 13: a stored state is that of another boundary. Prompts with one and a half blocks in
// common.
TEST_F(BatchSharedTest, ABoundaryIsThatOfExactlyItsTokens) {
  BatchRequest a = request(1, 448);
  BatchRequest b = request(2, 448);
  std::copy_n(a.prompt.begin(), 96, b.prompt.begin());
  {
    BatchRunner first(*engine_, worker());
    expect_cold(first.ask(a), a);
    settle(first);
  }
  BatchRunner second(*engine_, worker());
  const Answer answer = second.ask(b);
  expect_cold(answer, b);
  EXPECT_LE(answer.usage.reuse.resumed, 64);
}

// Fault 13 between workers: a key says all that the bytes depend on.
TEST_F(BatchSharedTest, AnotherModelOrEncodingFindsNothing) {
  {
    BatchRunner first(*engine_, worker());
    EXPECT_EQ(resumed(first, 1), 0);
  }
  BatchOptions model = worker();
  model.tiers.fingerprint = 6;
  BatchRunner other_model(*engine_, model);
  EXPECT_EQ(resumed(other_model, 1), 0);
  BatchOptions encoding = worker();
  encoding.tiers.states = store::StateEncoding::kBf16;
  BatchRunner other_encoding(*engine_, encoding);
  EXPECT_EQ(resumed(other_encoding, 1), 0);
}

TEST_F(BatchSharedTest, AServerThatStopsAndComesBack) {
  BatchRunner runner(*engine_, worker());
  EXPECT_EQ(resumed(runner, 0), 0);
  EXPECT_EQ(resumed(runner, 1), 0);
  EXPECT_EQ(resumed(runner, 0), 256);
  server_->stop();
  for (uint64_t seed = 0; seed < 4; ++seed) {
    resumed(runner, seed);  // right, whatever it was resumed from
  }
  const std::vector<engine::LowerTierStats> out = runner.batch().memory().stats().lower;
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].failures, 1);
  ASSERT_EQ(notices_.size(), 1u);
  EXPECT_NE(notices_[0].find("redis: left out"), std::string::npos) << notices_[0];

  server_->run();
  ::usleep(100'000);
  for (int i = 0; i < 3 && runner.batch().memory().stats().lower[0].out; ++i) {
    ::usleep(50'000);
    resumed(runner, 20 + static_cast<uint64_t>(i));
  }
  EXPECT_FALSE(runner.batch().memory().stats().lower[0].out);
  EXPECT_EQ(notices_.size(), 2u);
  resumed(runner, 30);
  BatchRunner second(*engine_, worker());
  EXPECT_EQ(resumed(second, 30), 256);
}

TEST_F(BatchSharedTest, AServerThatHangsCostsATimeLimitAndNoAnswer) {
  BatchOptions o = worker();
  o.tiers.failing.retry_ms_min = o.tiers.failing.retry_ms_max = 60'000;
  BatchRunner runner(*engine_, o);
  EXPECT_EQ(resumed(runner, 0), 0);
  EXPECT_EQ(resumed(runner, 1), 0);
  server_->freeze();
  for (uint64_t seed = 0; seed < 3; ++seed) {
    resumed(runner, seed);
  }
  EXPECT_EQ(runner.batch().memory().stats().lower[0].failures, 1);
  EXPECT_EQ(notices_.size(), 1u);
  server_->thaw();
}

TEST_F(BatchSharedTest, WhatTheServerLosesIsComputedAndWrittenAnew) {
  BatchRunner runner(*engine_, worker());
  EXPECT_EQ(resumed(runner, 0), 0);
  EXPECT_EQ(resumed(runner, 1), 0);
  flush();
  EXPECT_EQ(resumed(runner, 0), 0);  // the cache believed it to be there
  BatchRunner second(*engine_, worker());
  EXPECT_EQ(resumed(second, 0), 256);
  EXPECT_TRUE(notices_.empty());
}

TEST_F(BatchSharedTest, ADeletedSessionLeavesNothingInAnyTier) {
  BatchOptions o = worker();
  o.tiers.ram_bytes = int64_t{8} << 20;
  o.tiers.ssd_bytes = int64_t{64} << 20;
  o.tiers.ssd_folder = folder_;
  BatchRunner runner(*engine_, o);
  for (uint64_t seed = 1; seed < 3; ++seed) {
    BatchRequest r = request(seed);
    r.session = seed;
    runner.ask(r);
    settle(runner);
  }
  const int64_t both = keys();
  ASSERT_TRUE(runner.batch().forget(1, runner.now()).ok());
  settle(runner);
  for (int i = 0; i < 400 && 2 * keys() != both; ++i) {
    runner.step();
    ::usleep(5000);
  }
  EXPECT_EQ(2 * keys(), both);
  EXPECT_EQ(resumed(runner, 2), 256);
  EXPECT_EQ(resumed(runner, 1), 0);
  ASSERT_TRUE(runner.batch().forget(2, runner.now()).ok());
  EXPECT_FALSE(runner.batch().forget(0, runner.now()).ok());
}

TEST_F(BatchSharedTest, WhatIsTooOldIsGoneFromEveryTier) {
  BatchOptions o = worker();
  o.tiers.ram_bytes = int64_t{8} << 20;
  o.tiers.ssd_bytes = int64_t{64} << 20;
  o.tiers.ssd_folder = folder_;
  o.tiers.device_ttl_s = o.tiers.ram_ttl_s = o.tiers.ssd_ttl_s = 0.4;  // 40 steps
  o.tiers.shared->ttl_ms = 400;
  BatchRunner runner(*engine_, o);
  EXPECT_EQ(resumed(runner, 1), 0);
  EXPECT_GT(keys(), 0);
  ::usleep(450'000);
  for (int i = 0; i < 100; ++i) {
    runner.step();
  }
  for (int i = 0; i < 400 && keys() > 0; ++i) {  // the server takes its time to count them out
    ::usleep(10'000);
  }
  EXPECT_EQ(keys(), 0);
  const engine::MemoryStats stats = runner.batch().memory().stats();
  for (const cache::TierUse& use : stats.use) {
    EXPECT_EQ(use.used_bytes, 0);
  }
  EXPECT_EQ(stats.lower[0].store.blobs, 0);
  EXPECT_EQ(resumed(runner, 1), 0);
}

}  // namespace
}  // namespace triax::testing
