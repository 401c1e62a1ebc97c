// The public faults of prefix caches for hybrid models that an index can have, each by its number
// in the list of issue 4 (serving.md, section 2); the engine's tests compare logits for the others.
#include <gtest/gtest.h>

#include <algorithm>

#include "cache/cache_testing.h"

namespace triax::cache {
namespace {

/// Runs `turns` of a chat that grows by `step` tokens; returns the tokens computed in the last one.
int64_t computed_in_last_turn(Bench& bench, int64_t first, int64_t step, int turns) {
  int64_t computed = 0;
  for (int turn = 0; turn < turns; ++turn) {
    const auto prompt = tokens_of(1, first + turn * step);
    computed = static_cast<int64_t>(prompt.size()) - bench.run(prompt, 1);
  }
  return computed;
}

TEST(Faults, F01TenTurnsResumeAtTheDeepestCheckpoint) {
  for (const char* policy : {"prompt-end", "value"}) {
    Bench bench(small_config(4096, policy));
    EXPECT_LE(computed_in_last_turn(bench, 2000, 200, 10), 200 + 4 * kBlock) << policy;
  }
}

TEST(Faults, F03ShortSharedPrefixesHitAtTheGrainOfABlock) {
  Bench bench(small_config());
  const auto prefix = tokens_of(1, 480);
  for (uint64_t i = 0; i < 20; ++i) {
    const int64_t resumed = bench.run(joined(prefix, tokens_of(100 + i, 400)), 10 + i);
    EXPECT_GE(resumed, i < 2 ? 0 : 384) << i;
  }
}

TEST(Faults, F04AForkInsideOthersTokensGetsACheckpoint) {
  Bench bench(small_config());
  const auto prefix = tokens_of(1, 1000);
  bench.run(joined(prefix, tokens_of(2, 900)), 1);
  bench.run(joined(prefix, tokens_of(3, 900)), 2);
  EXPECT_EQ(bench.run(joined(prefix, tokens_of(4, 900)), 3), 960);
}

TEST(Faults, F05NothingIsResumedWhileItsStateIsNotThere) {
  CacheConfig config = small_config(64);
  config.tiers[1] = {config.tiers[0].budget_bytes * 8, 800, WriteMode::kThrough};
  config.prefill.per_token = 1;
  Bench bench(config);
  Cache& cache = bench.cache();
  const auto a = tokens_of(1, 1500);
  bench.run(a, 1);
  bench.copy_all();
  for (uint64_t i = 2; i < 6; ++i) {  // floods the device
    bench.run(tokens_of(i, 2000), i);
    bench.copy_all();
  }
  const BlockHasher hasher = bench.hashed(a);
  const Match match = cache.match({hasher.prompt(), 1, false});
  EXPECT_EQ(match.matched, 0);
  EXPECT_GT(match.not_loaded, 1000);
  const LeaseId id = bench.begin(a, 1);
  EXPECT_TRUE(cache.lease(id).loading);
  EXPECT_EQ(cache.lease(id).resumed, 0);
  std::vector<Transfer> loads;
  cache.take_transfers(loads);
  ASSERT_EQ(loads.size(), 1u);
  EXPECT_TRUE(loads[0].urgent);
  cache.confirm(loads[0].id, true, bench.now());
  bench.check();
  EXPECT_FALSE(cache.lease(id).loading);
  EXPECT_EQ(cache.lease(id).resumed, match.not_loaded);
  bench.finish(id, a);
}

TEST(Faults, F05AFailedLoadIsComputedAgain) {
  CacheConfig config = small_config(64);
  config.tiers[1] = {config.tiers[0].budget_bytes * 8, 800, WriteMode::kThrough};
  config.prefill.per_token = 1;
  Bench bench(config);
  Cache& cache = bench.cache();
  const BlockHasher hasher = bench.hashed(tokens_of(1, 1500));
  ASSERT_TRUE(cache.adopt(Tier::kRam, hasher.prompt(), {1408, AnchorKind::kPromptEnd}, 0).ok());
  bench.check();
  const LeaseId id = bench.begin(tokens_of(1, 1500), 1);
  std::vector<Transfer> loads;
  cache.take_transfers(loads);
  ASSERT_EQ(loads.size(), 1u);
  cache.confirm(loads[0].id, false, bench.now());
  bench.check();
  EXPECT_EQ(cache.lease(id).resumed, 0);
  EXPECT_EQ(cache.lease(id).read_slot, kNoId);
  EXPECT_EQ(cache.stats().transfers_failed, 1);
  bench.finish(id, tokens_of(1, 1500));
}

TEST(Faults, F09AnUncommittedCheckpointIsNotHandedOut) {
  Bench bench(small_config());
  Cache& cache = bench.cache();
  const auto tokens = tokens_of(1, 1000);
  const BlockHasher hasher = bench.hashed(tokens);
  const LeaseId writer = bench.begin(tokens, 1);
  ASSERT_TRUE(cache.extend(writer, 1000, 1).ok());
  const Anchor end{960, AnchorKind::kPromptEnd};
  ASSERT_TRUE(cache.publish(writer, hasher.prompt(), end, 1).has_value());
  bench.check();
  EXPECT_EQ(cache.match({hasher.prompt(), 2, false}).matched, 0);
  cache.end(writer, Outcome::kCancelled, 2);  // before commit: nobody ever sees it
  bench.check();
  EXPECT_EQ(cache.match({hasher.prompt(), 2, false}).matched, 0);
  EXPECT_EQ(cache.use(Tier::kDevice).states, 0);
}

TEST(Faults, F10AndF28ReadAndWriteSlotDifferAndHaveOneOwner) {
  Bench bench(small_config());
  Cache& cache = bench.cache();
  const auto prompt = tokens_of(1, 1000);
  bench.run(prompt, 1);
  const LeaseId a = bench.begin(joined(prompt, tokens_of(2, 300)), 1);
  const LeaseId b = bench.begin(joined(prompt, tokens_of(3, 300)), 2);
  EXPECT_EQ(cache.lease(a).read_slot, cache.lease(b).read_slot);
  EXPECT_NE(cache.lease(a).write_slot, cache.lease(b).write_slot);
  EXPECT_NE(cache.lease(a).write_slot, cache.lease(a).read_slot);
  cache.end(a, Outcome::kCancelled, 10);  // aborted between prepare and commit
  bench.check();
  const SlotId held = cache.lease(b).read_slot;
  const LeaseId c = bench.begin(tokens_of(9, 500), 3);
  EXPECT_NE(cache.lease(c).write_slot, held);
  EXPECT_NE(cache.lease(c).write_slot, cache.lease(b).write_slot);
  cache.end(b, Outcome::kCancelled, 11);
  cache.end(c, Outcome::kCancelled, 11);
  bench.check();
}

TEST(Faults, F11AOneTokenPromptStartsFromNothing) {
  Bench bench(small_config());
  bench.run(tokens_of(1, 1000), 1);
  for (const int64_t length : {1, 63, 64, 65}) {
    const LeaseId id = bench.begin(tokens_of(77, length), 5);
    EXPECT_EQ(bench.cache().lease(id).resumed, 0);
    EXPECT_EQ(bench.cache().lease(id).read_slot, kNoId);
    bench.finish(id, tokens_of(77, length));
  }
}

TEST(Faults, F13AKeyNamesExactlyTheTokensThatTheStateHasSeen) {
  Bench bench(small_config());
  Cache& cache = bench.cache();
  const auto shared = tokens_of(1, 96);  // one block and a half
  const auto first = joined(shared, tokens_of(2, 40));
  const BlockHasher hasher = bench.hashed(first);
  const LeaseId id = bench.begin(first, 1);
  ASSERT_TRUE(cache.extend(id, 136, 1).ok());
  ASSERT_TRUE(bench.publish(id, hasher, {96, AnchorKind::kAnswerEnd}));
  ASSERT_TRUE(bench.publish(id, hasher, {100, AnchorKind::kAnswerEnd}));
  cache.end(id, Outcome::kStop, 2);
  bench.check();
  EXPECT_EQ(
      cache.match({bench.hashed(joined(shared, tokens_of(3, 40))).prompt(), 2, false}).matched, 96);
  EXPECT_EQ(cache.match({bench.hashed(first).prompt(), 2, false}).matched, 100);
  BlockHasher other(root_key(43));  // another model
  other.append(first);
  EXPECT_EQ(cache.match({other.prompt(), 2, false}).matched, 0);
}

TEST(Faults, F14ExactMultiplesPlusMinusOneHit) {
  for (const int64_t length : {1535, 1536, 1537, 3071, 3072, 3073}) {
    Bench bench(small_config(4096, "prompt-end"));
    bench.run(tokens_of(1, length), 1);
    EXPECT_EQ(bench.run(tokens_of(1, length + 1), 1), (length - 1) / kBlock * kBlock) << length;
  }
}

TEST(Faults, F15EveryClassOfCheckpointIsCounted) {
  Bench bench(small_config());
  const auto prefix = tokens_of(1, 1000);
  bench.run(joined(prefix, tokens_of(2, 900)), 1);
  bench.run(joined(prefix, tokens_of(3, 900)), 2);
  bench.run(joined(prefix, tokens_of(4, 900)), 3);
  const CacheStats& stats = bench.cache().stats();
  EXPECT_EQ(stats.states_written[static_cast<size_t>(AnchorKind::kFork)], 1);
  EXPECT_EQ(stats.states_read[static_cast<size_t>(AnchorKind::kFork)], 1);
  EXPECT_EQ(stats.states_written[static_cast<size_t>(AnchorKind::kPromptEnd)], 3);
}

TEST(Faults, F19NoPhantomHitsAfterTotalEviction) {
  Bench bench(small_config(40, "prompt-end"));
  Cache& cache = bench.cache();
  const auto a = tokens_of(1, 1200);
  for (int round = 0; round < 50; ++round) {
    bench.run(a, 1);
    const LeaseId flood = bench.begin(tokens_of(100 + static_cast<uint64_t>(round), 1900), 2);
    ASSERT_TRUE(cache.extend(flood, 1900, bench.now()).ok());  // takes all there is
    bench.check();
    const Match match = cache.match({bench.hashed(a).prompt(), 1, false});
    EXPECT_EQ(match.matched, 0);
    EXPECT_EQ(match.evicted, 1152);  // and the miss says why
    cache.end(flood, Outcome::kStop, bench.now());
  }
}

TEST(Faults, F20ABASeesItsOwnPrefix) {
  Bench bench(small_config());
  const auto a = tokens_of(1, 1000);
  const auto b = tokens_of(2, 1000);
  bench.run(a, 1);
  bench.run(b, 2);
  const LeaseId again = bench.begin(joined(a, tokens_of(3, 500)), 1);
  const LeaseId other = bench.begin(joined(b, tokens_of(4, 500)), 2);
  std::vector<PageId> pages_a, pages_b;
  bench.cache().append_pages(again, pages_a);
  bench.cache().append_pages(other, pages_b);
  ASSERT_EQ(pages_a.size(), pages_b.size());
  for (const PageId page : pages_a) {
    EXPECT_EQ(std::count(pages_b.begin(), pages_b.end(), page), 0);
  }
  bench.finish(again, joined(a, tokens_of(3, 500)));
  bench.finish(other, joined(b, tokens_of(4, 500)));
}

TEST(Faults, F22CheckpointsOfShortPromptsStay) {
  Bench bench(small_config(4096, "prompt-end"));
  EXPECT_LE(computed_in_last_turn(bench, 300, 250, 20), 250 + kBlock);
}

TEST(Faults, F25KeysOf63And64And65TokensMakeNoEmptyRun) {
  Bench bench(small_config(30, "prompt-end"));
  for (int i = 0; i < 300; ++i) {
    const auto seed = static_cast<uint64_t>(1 + i % 7);
    bench.run(tokens_of(seed, 63 + i % 3 + 64 * (i % 5)), seed);
  }
}

TEST(Faults, F27ABudgetBelowOneStateIsRefusedAtTheStart) {
  CacheConfig config = small_config();
  config.tiers[0].budget_bytes = config.tiers[0].state_bytes;
  const auto made = Cache::create(config);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(made.status().message().find("budget"), std::string::npos);
}

TEST(Faults, F31AnIntervalNeedsOnlyBeAMultipleOfABlock) {
  const CacheConfig config = small_config();
  for (const char* name : {"interval:64", "interval:1536", "interval:32768", "interval:32K"}) {
    EXPECT_TRUE(make_policy(name, config, Tier::kDevice).ok()) << name;
  }
  for (const char* name : {"interval:", "interval:100", "interval:-64", "ladder:K+demand", "lru"}) {
    EXPECT_FALSE(make_policy(name, config, Tier::kDevice).ok()) << name;
  }
}

TEST(Faults, APoolSmallerThanOnePromptRefusesAndStaysWhole) {
  Bench bench(small_config(20));
  Cache& cache = bench.cache();
  const LeaseId id = bench.begin(tokens_of(1, 5000), 1);
  const Status status = cache.extend(id, 5000, 1);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  bench.check();
  EXPECT_TRUE(cache.extend(id, 600, 1).ok());
  cache.end(id, Outcome::kCancelled, 2);
  bench.check();
  EXPECT_EQ(cache.use(Tier::kDevice).used_bytes, 0);
}

TEST(Faults, RunningStatesThatFillTheBudgetRefuseTheNext) {
  Bench bench(small_config(20));
  const auto tokens = tokens_of(1, 10);
  bench.begin(tokens, 1);
  bench.begin(tokens, 2);
  const BlockHasher hasher = bench.hashed(tokens);
  const auto third = bench.cache().begin({hasher.prompt(), 3, false}, 5);
  EXPECT_EQ(third.status().code(), StatusCode::kResourceExhausted);
  bench.check();
}

TEST(Faults, WholePromptsResumeAtTheirEndForSeveralAnswers) {
  Bench bench(small_config());
  Cache& cache = bench.cache();
  const auto tokens = tokens_of(1, 150);
  const BlockHasher hasher = bench.hashed(tokens);
  const LeaseId first = bench.begin(tokens, 1);
  ASSERT_TRUE(cache.extend(first, 150, 1).ok());
  ASSERT_TRUE(bench.publish(first, hasher, {150, AnchorKind::kPromptEnd}));
  const LeaseId second = bench.begin(tokens, 1, true);
  const Lease& lease = cache.lease(second);
  EXPECT_EQ(lease.resumed, 150);
  EXPECT_EQ(lease.tail.rows, 150 - 128);
  std::vector<PageId> pages;
  cache.append_pages(second, pages);
  ASSERT_EQ(pages.size(), 3u);
  EXPECT_EQ(pages.back(), lease.tail.to);  // its own copy of the partial page
  EXPECT_NE(lease.tail.from, lease.tail.to);
  EXPECT_EQ(cache.match({hasher.prompt(), 1, false}).matched, 0);  // not without its next token
  cache.end(first, Outcome::kStop, 3);
  cache.end(second, Outcome::kStop, 3);
  bench.check();
}

TEST(Cache, ForgetDropsASession) {
  Bench bench(small_config());
  bench.run(tokens_of(1, 1000), 1);
  bench.run(tokens_of(2, 1000), 2);
  bench.cache().forget(1, 10);
  bench.check();
  EXPECT_EQ(bench.cache().match({bench.hashed(tokens_of(1, 1000)).prompt(), 1, false}).matched, 0);
  EXPECT_GT(bench.cache().match({bench.hashed(tokens_of(2, 1000)).prompt(), 2, false}).matched, 0);
}

}  // namespace
}  // namespace triax::cache
