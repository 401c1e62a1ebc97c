#include "cache/key.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "cache/cache_testing.h"
#include "cache/flat_map.h"
#include "cache/indexed_heap.h"

namespace triax::cache {
namespace {

TEST(Key, AnySplitOfTheTokensGivesTheSameKeys) {
  const auto tokens = tokens_of(3, 400);
  BlockHasher whole(root_key(1));
  whole.append(tokens);
  BlockHasher parts(root_key(1));
  for (size_t i = 0; i < tokens.size();) {
    const size_t count = std::min<size_t>(1 + i % 97, tokens.size() - i);
    parts.append(std::span(tokens).subspan(i, count));
    i += count;
  }
  ASSERT_EQ(whole.prompt().blocks.size(), 6u);
  for (int64_t n = 0; n <= 400; ++n) {
    EXPECT_EQ(whole.key_at(n), parts.key_at(n)) << n;
  }
  EXPECT_EQ(whole.key_at(384), whole.prompt().blocks[5]);
}

TEST(Key, DiffersByEveryTokenLengthModelAndSalt) {
  std::set<Key> keys;
  const auto tokens = tokens_of(3, 130);
  for (const uint64_t model : {1u, 2u}) {
    for (const uint64_t salt : {0u, 1u}) {
      BlockHasher hasher(root_key(model, salt));
      hasher.append(tokens);
      for (int64_t n = 0; n <= 130; ++n) {
        EXPECT_TRUE(keys.insert(hasher.key_at(n)).second) << n;
      }
    }
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    auto other = tokens;
    other[i] ^= 1;
    BlockHasher hasher(root_key(1));
    hasher.append(other);
    EXPECT_TRUE(keys.insert(hasher.key_at(130)).second) << i;
  }
}

TEST(FlatMap, AgreesWithASetOfPairs) {
  FlatMap<uint64_t> map;
  std::vector<uint32_t> truth(512, kNone);
  Rng rng(5);
  for (uint32_t i = 0; i < 20000; ++i) {
    const uint64_t name = rng.below(512);
    const uint64_t key = name << 12;  // numbers in steps of a power of two
    if (rng.below(2) == 0) {
      map.set(key, i);
      truth[name] = i;
    } else {
      map.erase(key);
      truth[name] = kNone;
    }
    const uint64_t asked = rng.below(512);
    ASSERT_EQ(map.find(asked << 12), truth[asked]);
  }
}

TEST(IndexedHeap, GivesTheLeastKeyWhateverMoves) {
  IndexedHeap<double> heap;
  std::vector<double> truth(64, -1);  // -1: not there
  Rng rng(6);
  for (int i = 0; i < 20000; ++i) {
    const auto id = static_cast<uint32_t>(rng.below(64));
    if (rng.below(3) != 0) {
      truth[id] = static_cast<double>(rng.below(20));
      heap.set(id, truth[id]);
    } else {
      truth[id] = -1;
      heap.erase(id);
    }
    double least = 1e9;
    uint32_t who = kNone;
    for (uint32_t k = 0; k < 64; ++k) {
      if (truth[k] >= 0 && truth[k] < least) {
        least = truth[k];
        who = k;
      }
    }
    ASSERT_EQ(heap.empty(), who == kNone);
    if (who != kNone) {
      ASSERT_EQ(heap.top_key(), least);
      ASSERT_EQ(heap.top(), who);  // ties by id
    }
  }
}

}  // namespace
}  // namespace triax::cache
