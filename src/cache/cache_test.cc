// The life of requests in a cache, and the public faults that concern an index of prefixes.
#include "cache/cache.h"

#include <gtest/gtest.h>

#include <numeric>

#include "cache/cache_testing.h"

namespace triax::cache {
namespace {

/// A device for one running request and one checkpoint, above a RAM and an SSD.
CacheConfig tiered_config(std::string policy) {
  CacheConfig config = small_config(40, std::move(policy));
  config.tiers[1] = {.budget_bytes = 20000, .state_bytes = 800};
  config.tiers[2] = {.budget_bytes = 40000, .state_bytes = 800};
  config.prefill.per_token = 1;
  return config;
}

TEST(Cache, WhatIsTooOldLeavesItsTierAndIsTold) {
  CacheConfig config = tiered_config("prompt-end");
  config.tiers[2].ttl_seconds = 100;
  Bench bench(config);
  bench.run(tokens_of(1, 300), 1);
  bench.copy_all();
  EXPECT_EQ(bench.cache().use(Tier::kSsd).states, 1);
  bench.cache().expire(bench.now() + 90);
  EXPECT_EQ(bench.cache().use(Tier::kSsd).states, 1);
  bench.cache().expire(bench.now() + 101);
  bench.check();
  EXPECT_EQ(bench.cache().use(Tier::kSsd).used_bytes, 0);
  EXPECT_EQ(bench.cache().use(Tier::kRam).states, 1);
  std::vector<Drop> drops;
  bench.cache().take_drops(drops);
  EXPECT_EQ(drops.size(), 5u);  // four pages and a state
  for (const Drop& drop : drops) {
    EXPECT_EQ(drop.tier, Tier::kSsd);
    EXPECT_FALSE(drop.deleted);
  }
}

TEST(Cache, AForgottenSessionIsDeletedFromEveryTier) {
  Bench bench(tiered_config("prompt-end"));
  bench.run(tokens_of(1, 300), 1);
  bench.run(tokens_of(2, 300), 2);
  bench.copy_all();
  bench.cache().forget(1, bench.now());
  bench.check();
  std::vector<Drop> drops;
  bench.cache().take_drops(drops);
  EXPECT_FALSE(drops.empty());
  for (const Drop& drop : drops) {
    EXPECT_TRUE(drop.deleted);
  }
  EXPECT_EQ(bench.cache().use(Tier::kSsd).states, 1);
  EXPECT_EQ(bench.run(tokens_of(1, 300), 1), 0);
}

TEST(Cache, WhatATierTurnsOutToLackIsWrittenAnew) {
  Bench bench(tiered_config("prompt-end"));
  bench.run(tokens_of(1, 300), 1);
  std::vector<Transfer> transfers;
  bench.cache().take_transfers(transfers);  // to the RAM
  bench.cache().confirm(transfers.at(0).id, true, bench.now());
  transfers.clear();
  bench.cache().take_transfers(transfers);  // to the SSD
  ASSERT_EQ(transfers.size(), 1u);
  EXPECT_EQ(transfers[0].path.size(), 4u);
  bench.cache().confirm(transfers[0].id, true, bench.now());
  // The next turn adds a page, and the SSD says that one before it is gone.
  bench.run(tokens_of(1, 400), 1);
  transfers.clear();
  bench.cache().take_transfers(transfers);
  bench.cache().confirm(transfers.at(0).id, true, bench.now());
  transfers.clear();
  bench.cache().take_transfers(transfers);
  ASSERT_EQ(transfers.size(), 1u);
  EXPECT_EQ(transfers[0].pages.size(), 2u);
  bench.cache().confirm_lost(transfers[0].id, Tier::kSsd, 0, bench.now());
  bench.check();
  transfers.clear();
  bench.cache().take_transfers(transfers);
  ASSERT_EQ(transfers.size(), 1u);
  EXPECT_EQ(transfers[0].pages.size(), 6u);  // all of them
  bench.cache().confirm(transfers[0].id, true, bench.now());
  bench.check();
}

TEST(Cache, ATierThatIsOutIsNeitherFoundNorFilled) {
  Bench bench(tiered_config("prompt-end"));
  bench.cache().set_out(Tier::kRam, true);
  bench.run(tokens_of(1, 300), 1);
  bench.copy_all();
  EXPECT_EQ(bench.cache().use(Tier::kRam).states, 0);
  EXPECT_EQ(bench.cache().use(Tier::kSsd).states, 1);  // the one below it is filled
  bench.cache().set_out(Tier::kSsd, true);
  bench.run(tokens_of(2, 1200), 2);  // evicts
  const BlockHasher hasher = bench.hashed(tokens_of(1, 300));
  EXPECT_EQ(bench.cache().match({hasher.prompt(), 1, false}).not_loaded, 0);
  bench.cache().set_out(Tier::kSsd, false);
  EXPECT_EQ(bench.cache().match({hasher.prompt(), 1, false}).not_loaded, 256);
}

TEST(Cache, WhatASessionLikelyWantsSoonIsFetchedAheadOfIt) {
  CacheConfig config = tiered_config("value");
  config.tiers[1].budget_bytes = 3200;  // one session's
  Bench bench(config);
  bench.run(tokens_of(1, 500), 1);
  bench.copy_all();
  bench.run(tokens_of(2, 1500), 2);  // takes all of the device
  bench.copy_all();
  EXPECT_EQ(bench.cache().use(Tier::kDevice).states, 1);
  EXPECT_EQ(bench.cache().use(Tier::kSsd).states, 2);
  bench.cache().forget(2, bench.now());  // leaves room
  EXPECT_EQ(bench.cache().use(Tier::kDevice).states, 0);
  EXPECT_EQ(bench.cache().use(Tier::kRam).states, 0);
  EXPECT_GT(bench.cache().prefetch_returning(Tier::kRam, 4000, bench.now()), 0);
  bench.copy_all();
  EXPECT_EQ(bench.cache().use(Tier::kRam).states, 1);
  EXPECT_EQ(bench.cache().prefetch_returning(Tier::kRam, 4000, bench.now()), 0);  // there already
}

TEST(Cache, ResumesTheNextTurnAtTheLastPromptsEnd) {
  Bench bench(small_config(4096, "prompt-end"));
  EXPECT_EQ(bench.run(tokens_of(1, 1000), 1), 0);
  EXPECT_EQ(bench.run(tokens_of(1, 1500), 1), 960);   // the last multiple of 64 below 1000
  EXPECT_EQ(bench.run(tokens_of(1, 1500), 1), 1472);  // the same again
  EXPECT_EQ(bench.cache().stats().states_read[0], 2);
}

// Fault 14: exact multiples of the block, and a token more or less, gave no hits.
TEST(Cache, ExactMultiplesOfABlockPlusMinusOne) {
  for (const int64_t length : {63, 64, 65, 127, 128, 129, 8191, 8192, 8193}) {
    Bench bench(small_config(4096, "prompt-end"));
    bench.run(tokens_of(7, length), 1);
    const int64_t boundary = (length - 1) / 64 * 64;
    EXPECT_EQ(bench.run(tokens_of(7, length), 1), boundary) << length;
    EXPECT_EQ(bench.run(tokens_of(7, length + 1), 1), boundary) << length;
  }
}

// Faults 4 and 10: two that go on differently from one prefix; the third finds the fork.
TEST(Cache, AForkGetsACheckpointAndDistinctSlots) {
  Bench bench(small_config());
  const auto prefix = tokens_of(1, 640);
  bench.run(joined(prefix, tokens_of(2, 700)), 1);
  EXPECT_EQ(bench.run(joined(prefix, tokens_of(3, 700)), 2), 0);
  const auto third = joined(prefix, tokens_of(4, 700));
  const auto fourth = joined(prefix, tokens_of(5, 700));
  const LeaseId a = bench.begin(third, 3);
  const LeaseId b = bench.begin(fourth, 4);
  const Lease& first = bench.cache().lease(a);
  const Lease& second = bench.cache().lease(b);
  EXPECT_EQ(first.resumed, 640);
  EXPECT_EQ(second.resumed, 640);
  EXPECT_EQ(first.read_slot, second.read_slot);
  EXPECT_NE(first.read_slot, first.write_slot);
  EXPECT_NE(second.read_slot, second.write_slot);
  EXPECT_NE(first.write_slot, second.write_slot);
  bench.finish(a, third);
  bench.finish(b, fourth);
}

}  // namespace
}  // namespace triax::cache
