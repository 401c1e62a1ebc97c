#include "engine/prompt_lookup.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"

namespace triax::engine {
namespace {

using Tokens = std::vector<int32_t>;

Tokens propose(const Tokens& tokens, int64_t count) {
  PromptLookup lookup;
  lookup.append(tokens);
  return lookup.propose(count);
}

TEST(PromptLookup, ProposesWhatFollowedTheLastTokens) {
  EXPECT_EQ(propose({1, 2, 3, 4, 5, 6, 1, 2, 3}, 2), (Tokens{4, 5}));
  EXPECT_EQ(propose({1, 2, 3, 4, 5, 6, 1, 2, 3}, 100), (Tokens{4, 5, 6, 1, 2, 3}));
  EXPECT_EQ(propose({9, 2, 3, 4, 7, 1, 2, 3}, 2), (Tokens{4, 7}));  // by two tokens
  // Three tokens are worth more than a later place of two.
  EXPECT_EQ(propose({1, 2, 3, 8, 9, 2, 3, 7, 1, 2, 3}, 1), (Tokens{8}));
  EXPECT_EQ(propose({1, 2, 8, 1, 2, 9, 1, 2}, 1), (Tokens{9}));  // the latest place
  EXPECT_EQ(propose({5, 5, 5, 5}, 3), (Tokens{5}));              // may run into the present
}

TEST(PromptLookup, ProposesNothingWhereNothingRepeats) {
  EXPECT_TRUE(propose({}, 4).empty());
  EXPECT_TRUE(propose({1}, 4).empty());
  EXPECT_TRUE(propose({1, 1}, 4).empty());
  EXPECT_TRUE(propose({1, 2, 3, 4, 5}, 4).empty());
  EXPECT_TRUE(propose({1, 2, 3, 1, 2, 3}, 0).empty());
}

TEST(PromptLookup, EqualsASearchOverAllPlaces) {
  Rng rng(3);
  for (int round = 0; round < 200; ++round) {
    PromptLookup lookup;
    Tokens tokens;
    for (int i = 0; i < 60; ++i) {
      tokens.push_back(static_cast<int32_t>(rng.next() % 4));
      lookup.append(std::span(tokens).last(1));
      Tokens expected;
      for (size_t n = std::min<size_t>(3, tokens.size()); n >= 2 && expected.empty(); --n) {
        for (size_t at = tokens.size() - 1; at >= n && expected.empty(); --at) {
          if (std::equal(tokens.end() - static_cast<std::ptrdiff_t>(n), tokens.end(),
                         tokens.begin() + static_cast<std::ptrdiff_t>(at - n))) {
            const size_t end = std::min(tokens.size(), at + 5);
            expected.assign(tokens.begin() + static_cast<std::ptrdiff_t>(at),
                            tokens.begin() + static_cast<std::ptrdiff_t>(end));
          }
        }
      }
      ASSERT_EQ(lookup.propose(5), expected);
    }
  }
}

TEST(DraftLength, FollowsWhatIsAccepted) {
  DraftLength length(8);
  EXPECT_EQ(length.length(), 8);
  for (const int64_t expected : {4, 2, 1, 1}) {
    length.observe(length.length(), 0);
    EXPECT_EQ(length.length(), expected);
  }
  length.observe(1, 1);
  EXPECT_EQ(length.length(), 2);
  length.observe(2, 1);
  EXPECT_EQ(length.length(), 2);
  length.observe(2, 2);
  length.observe(4, 4);
  length.observe(8, 8);
  EXPECT_EQ(length.length(), 8);
}

}  // namespace
}  // namespace triax::engine
