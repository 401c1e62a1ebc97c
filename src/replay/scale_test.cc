#include "replay/scale.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "replay/deck.h"
#include "replay/trace_testing.h"

namespace triax::replay {
namespace {

using cache::kBlock;
using cache::Key;

/// Names of every request, in order, as one play has them.
std::vector<std::vector<Key>> names(const Trace& trace) {
  const Play play{.trace = &trace, .number = 7};
  PlayKeys keys(play);
  std::vector<std::vector<Key>> out(trace.requests.size());
  for (int32_t i = 0; i < std::ssize(out); ++i) {
    const auto own = keys.keys_of(i);
    out[static_cast<size_t>(i)].assign(own.begin(), own.end());
  }
  return out;
}

int64_t common(const std::vector<Key>& a, const std::vector<Key>& b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

TEST(Scale, PromptsShareTheBlocksOfWhatTheyShared) {
  for (const int64_t factor : {1, 3, 8}) {
    for (const Trace& trace : synthetic_traces(11, 6, 30)) {
      const Trace shorter = scaled(trace, factor);
      const auto before = names(trace);
      const auto after = names(shorter);
      ASSERT_EQ(after.size(), before.size());
      for (size_t i = 0; i < after.size(); ++i) {
        ASSERT_EQ(std::ssize(after[i]), std::ssize(before[i]) / factor);
        const TraceRequest& request = shorter.requests[i];
        EXPECT_GE(request.prompt_tokens, std::ssize(after[i]) * kBlock);
        EXPECT_GE(request.answer_tokens, 1);
        EXPECT_DOUBLE_EQ(request.start_s, trace.requests[i].start_s);
        for (size_t j = 0; j < i; ++j) {
          ASSERT_EQ(common(after[i], after[j]), common(before[i], before[j]) / factor);
        }
      }
    }
  }
}

TEST(Scale, FactorOneChangesNothing) {
  const std::vector<Trace> traces = synthetic_traces(3, 1, 30);
  const Trace same = scaled(traces[0], 1);
  EXPECT_TRUE(std::ranges::equal(same.keys, traces[0].keys));
  for (size_t i = 0; i < same.requests.size(); ++i) {
    EXPECT_EQ(same.requests[i].prompt_tokens, traces[0].requests[i].prompt_tokens);
    EXPECT_EQ(same.requests[i].shared, traces[0].requests[i].shared);
  }
}

TEST(Synthesise, EqualNamesHaveEqualTokens) {
  constexpr int64_t kVocab = 500;
  std::map<std::vector<int32_t>, Key> seen;
  for (const Trace& trace : synthetic_traces(5, 2, 15)) {
    const auto requests = names(trace);
    for (size_t i = 0; i < requests.size(); ++i) {
      const int64_t prompt = trace.requests[i].prompt_tokens;
      std::vector<int32_t> tokens = {1, 2, 3};  // appended to
      synthesise(requests[i], prompt, i, kVocab, &tokens);
      ASSERT_EQ(std::ssize(tokens), 3 + prompt);
      EXPECT_TRUE(std::ranges::all_of(tokens, [](int32_t t) { return t >= 0 && t < kVocab; }));
      for (size_t block = 0; block < requests[i].size(); ++block) {
        const auto at = tokens.begin() + 3 + static_cast<std::ptrdiff_t>(block * kBlock);
        const auto [found, added] = seen.emplace(std::vector(at, at + kBlock), requests[i][block]);
        ASSERT_TRUE(found->second == requests[i][block]) << "two names with the same tokens";
      }
    }
  }
  std::vector<int32_t> once, again, other;
  const Key key = cache::root_key(1, 2);
  synthesise(std::span(&key, 1), 70, 5, kVocab, &once);
  synthesise(std::span(&key, 1), 70, 5, kVocab, &again);
  synthesise(std::span(&key, 1), 70, 6, kVocab, &other);
  EXPECT_EQ(once, again);
  EXPECT_TRUE(std::equal(once.begin(), once.begin() + kBlock, other.begin()));
  EXPECT_NE(once, other);
}

}  // namespace
}  // namespace triax::replay
