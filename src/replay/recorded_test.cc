#include "replay/recorded.h"

#include <gtest/gtest.h>

#include "replay/trace_testing.h"

namespace triax::replay {
namespace {

RecordedResult replay(const std::vector<Trace>& traces, const cache::CacheConfig& c,
                      const LaneOptions& options) {
  Result<RecordedResult> result = replay_recorded(traces, c, options, [](double) {});
  check(result.ok(), result.status().message());
  return *result;
}

// What prompt ends alone allow when nothing is ever evicted, from the definition: of all earlier
// requests' last whole block below the end, the longest that is a prefix.
TEST(Recorded, UnlimitedPromptEndsMatchTheDefinition) {
  SyntheticTraces source(5);
  const std::vector<Trace> traces = read_text(source.line(300));
  LaneOptions options;
  options.sessions = 1;
  options.start_low = options.start_high = 0.0;
  options.requests = std::ssize(traces[0].requests) - 1;
  const RecordedResult result =
      replay(traces, small_config("prompt-end", int64_t{1} << 40), options);
  std::vector<std::vector<cache::Key>> prompts;
  std::vector<KeyPath> paths(static_cast<size_t>(traces[0].agents), KeyPath(1));
  int64_t expected = 0;
  int64_t possible = 0;
  for (int32_t i = 0; i < std::ssize(traces[0].requests); ++i) {
    const TraceRequest& request = traces[0].requests[static_cast<size_t>(i)];
    KeyPath& path = paths[static_cast<size_t>(request.agent)];
    path.advance(traces[0], i);
    std::vector<cache::Key> keys = path.keys();
    int64_t best = 0;
    int64_t seen = 0;
    const int64_t limit = (request.prompt_tokens - 1) / 64;
    for (size_t j = 0; j < prompts.size(); ++j) {
      const auto same =
          std::mismatch(keys.begin(), keys.end(), prompts[j].begin(), prompts[j].end()).first -
          keys.begin();
      const int64_t end = (traces[0].requests[j].prompt_tokens - 1) / 64;
      best = std::max(best, end <= same && end <= limit ? end : 0);
      seen = std::max(seen, std::min<int64_t>(same, limit));
    }
    if (i > 0) {  // the first is the warm-up
      expected += 64 * best;
      possible += 64 * seen;
    }
    prompts.push_back(std::move(keys));
  }
  EXPECT_EQ(result.counts.requests, options.requests);
  EXPECT_EQ(result.counts.resumed_tokens, expected);
  EXPECT_EQ(result.counts.possible_tokens, possible);
  EXPECT_GT(expected, 0);
  EXPECT_LT(expected, possible);
}

TEST(Recorded, EqualSeedsGiveEqualResultsAndNoPolicyBeatsThePossible) {
  const std::vector<Trace> traces = synthetic_traces(6, 12, 40);
  LaneOptions options;
  options.sessions = 6;
  options.duration_s = 2000;
  for (const std::string& policy : cache::policy_names()) {
    const auto c = small_config(policy, 3000000);
    const RecordedResult once = replay(traces, c, options);
    const RecordedResult twice = replay(traces, c, options);
    EXPECT_EQ(once.counts.resumed_tokens, twice.counts.resumed_tokens) << policy;
    EXPECT_EQ(once.cache.states_written, twice.cache.states_written) << policy;
    EXPECT_GT(once.counts.requests, 100) << policy;
    EXPECT_GT(once.counts.resumed_tokens, 0) << policy;
    EXPECT_LE(once.counts.resumed_tokens, once.counts.possible_tokens) << policy;
    options.seed = 43;
    EXPECT_NE(replay(traces, c, options).counts.prompt_tokens, once.counts.prompt_tokens);
    options.seed = 42;
  }
}

TEST(Recorded, APoolSmallerThanAPromptServesWhatFits) {
  const std::vector<Trace> traces = synthetic_traces(7, 6, 40);
  LaneOptions options;
  options.sessions = 4;
  const RecordedResult result = replay(traces, small_config("value", 60000), options);
  EXPECT_GT(result.counts.no_room, 0);
  EXPECT_LT(result.counts.no_room, result.counts.requests);
}

}  // namespace
}  // namespace triax::replay
