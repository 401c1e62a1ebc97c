// The life of requests in a cache, and the public faults that concern an index of prefixes.
#include "cache/cache.h"

#include <gtest/gtest.h>

#include <numeric>

#include "cache/cache_testing.h"

namespace triax::cache {
namespace {

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
