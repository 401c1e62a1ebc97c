#include "replay/served.h"

#include <gtest/gtest.h>

#include "replay/lanes.h"
#include "replay/trace_testing.h"

namespace triax::replay {
namespace {

ServedOptions options() {
  ServedOptions o;
  o.lanes.sessions = 6;
  o.lanes.duration_s = 1500;
  o.model = kimi_k3();
  o.machine.gpu = *gpu_of("b300");
  return o;
}

ServedResult serve(const std::vector<Trace>& traces, const cache::CacheConfig& config,
                   const ServedOptions& o) {
  Result<ServedResult> result = replay_served(traces, config, o, [](double) {});
  check(result.ok(), result.status().message());
  return std::move(*result);
}

TEST(Dependencies, ARequestWaitsForAllThatHadEndedBeforeIt) {
  const std::vector<Trace> traces =
      read_text(R"({"requests":[)"
                R"({"t":0,"in":64,"out":1,"hash_ids":[1],"api_time":10},)"
                R"({"t":2,"in":64,"out":1,"hash_ids":[1],"api_time":3},)"
                R"({"t":6,"in":64,"out":1,"hash_ids":[1],"api_time":1},)"
                R"({"t":12,"in":64,"out":1,"hash_ids":[1],"api_time":1}]})");
  Dependencies dependencies(traces[0], 0, 0.0);
  std::vector<Dependencies::Due> due;
  dependencies.take_due(&due);
  ASSERT_EQ(due.size(), 2u);  // nothing had ended before the first two
  EXPECT_DOUBLE_EQ(due[1].delay_s, 2.0);
  dependencies.done(0);
  dependencies.take_due(&due);
  EXPECT_TRUE(due.empty());  // the third came after the second's end
  dependencies.done(1);
  dependencies.take_due(&due);
  ASSERT_EQ(due.size(), 1u);
  EXPECT_EQ(due[0].index, 2);
  EXPECT_DOUBLE_EQ(due[0].delay_s, 1.0);
  EXPECT_FALSE(dependencies.drained());
  dependencies.done(2);
  dependencies.take_due(&due);
  ASSERT_EQ(due.size(), 1u);
  EXPECT_DOUBLE_EQ(due[0].delay_s, 2.0);  // since the first one's end, the latest
  dependencies.done(3);
  EXPECT_TRUE(dependencies.drained());
}

TEST(Lanes, MeasuredRequestsWaitForEveryWarmUp) {
  const std::vector<Trace> traces = synthetic_traces(8, 6, 30);
  LaneOptions o;
  o.sessions = 3;
  Lanes lanes(traces, o);
  EXPECT_EQ(lanes.warming(), 3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_DOUBLE_EQ(lanes.next_at(), 0.0);
    const Sending warm_up = lanes.take();
    EXPECT_TRUE(warm_up.warm_up);
    EXPECT_TRUE(std::isinf(lanes.next_at()) || lanes.next_at() == 0.0);
    lanes.done(warm_up.lane, warm_up.index, 10.0 + i);
  }
  EXPECT_EQ(lanes.warming(), 0);
  EXPECT_GE(lanes.next_at(), 12.0);
  EXPECT_FALSE(lanes.take().warm_up);
}

TEST(Served, EqualSeedsGiveEqualResultsWithinWhatIsPossible) {
  const std::vector<Trace> traces = synthetic_traces(6, 12, 40);
  for (const std::string policy : {"value", "prompt-end", "dense", "clairvoyant"}) {
    cache::CacheConfig config = small_config(policy, 3000000);
    config.running_state_bytes = 20000;
    const ServedResult once = serve(traces, config, options());
    const ServedResult twice = serve(traces, config, options());
    EXPECT_EQ(once.first_token_s, twice.first_token_s) << policy;
    EXPECT_EQ(once.counts.resumed_tokens, twice.counts.resumed_tokens) << policy;
    EXPECT_GT(once.counts.requests, 100) << policy;
    EXPECT_GT(once.counts.resumed_tokens, 0) << policy;
    EXPECT_LE(once.counts.resumed_tokens, once.counts.possible_tokens) << policy;
    EXPECT_GT(once.first_token(0.5), options().machine.step_s);
    EXPECT_LE(once.first_token(0.5), once.first_token(0.9));
    EXPECT_FALSE(once.samples.empty());
    for (const Sample& sample : once.samples) {
      EXPECT_LE(sample.used_bytes, 3000000);
    }
  }
}

TEST(Served, AnswersHaveTheRecordedLength) {
  const std::vector<Trace> traces = read_text(
      R"({"requests":[{"t":0,"in":640,"out":50,"hash_ids":[1,2,3,4,5,6,7,8,9,10],"api_time":1},)"
      R"({"t":3,"in":700,"out":70,"hash_ids":[1,2,3,4,5,6,7,8,9,10],"api_time":1}]})");
  ServedOptions o = options();
  o.lanes.sessions = 1;
  o.lanes.start_low = o.lanes.start_high = 0.0;
  o.lanes.requests = 5;  // the second turn, then both twice
  const ServedResult result = serve(traces, small_config("prompt-end", 1000000), o);
  EXPECT_EQ(result.counts.requests, 5);
  EXPECT_EQ(result.counts.prompt_tokens, 3 * 700 + 2 * 640);
  EXPECT_EQ(result.counts.resumed_tokens, 3 * 576);  // 640 tokens end with their last block's 64th
  EXPECT_GE(result.answer_tokens, 2 * (50 + 70));
}

TEST(Served, WhatCannotFitIsRefusedAndTheClockGoesOn) {
  const std::vector<Trace> traces = synthetic_traces(7, 6, 40);
  const ServedResult result = serve(traces, small_config("value", 60000), options());
  EXPECT_GT(result.counts.no_room, 0);
  EXPECT_GT(result.measured_s, options().lanes.duration_s);
}

TEST(Served, ResidentSessionsKeepTheirPrefixesUnderThrash) {
  const std::vector<Trace> traces = synthetic_traces(9, 40, 60);
  ServedOptions o = options();
  o.lanes.sessions = 32;
  const cache::CacheConfig config = small_config("prompt-end", 800000);
  const ServedResult all = serve(traces, config, o);
  o.sched.residency = 0.8;
  const ServedResult some = serve(traces, config, o);
  EXPECT_GT(some.counts.hit_rate(), all.counts.hit_rate() + 0.05);
}

TEST(Served, LowerTiersGiveBackWhatTheDeviceCannotHold) {
  const std::vector<Trace> traces = synthetic_traces(9, 40, 60);
  ServedOptions o = options();
  o.lanes.sessions = 32;
  cache::CacheConfig config = small_config("value", 800000);
  config.name_moves = false;
  const ServedResult alone = serve(traces, config, o);
  cache::TierConfig& ram = config.tiers[cache::index(cache::Tier::kRam)];
  ram.budget_bytes = 20000000;
  ram.state_bytes = 20000;
  ram.read_bytes_per_second = 1e9;
  const ServedResult tiers = serve(traces, config, o);
  EXPECT_GT(tiers.cache.tokens_loaded[1], 0);
  EXPECT_GT(tiers.counts.hit_rate(), alone.counts.hit_rate() + 0.05);
  EXPECT_LE(tiers.counts.resumed_tokens, tiers.counts.possible_tokens);
  ram.read_bytes_per_second = 1;  // slower than computing: nothing is loaded
  const ServedResult slow = serve(traces, config, o);
  EXPECT_EQ(slow.cache.tokens_loaded[1], 0);
}

TEST(Served, MooncakesRequestsComeAtTheirTimes) {
  std::string text;
  for (int i = 0; i < 50; ++i) {
    text += fmt::format(
        R"({{"timestamp":{},"input_length":2000,"output_length":20,"hash_ids":[{},{},{},{}]}})"
        "\n",
        i * 900, i % 3, 10 + i % 3, 100 + i, 1000 + i);
  }
  const std::vector<Trace> traces = read_text(text, TraceFormat::kMooncake);
  const ServedResult result =
      serve(traces, small_config("prompt-end+junction", 10000000), options());
  EXPECT_EQ(result.counts.requests, 50);
  EXPECT_EQ(result.counts.possible_tokens, 47 * 1024);
  EXPECT_GT(result.counts.resumed_tokens, 40 * 1024);
  const RecordedResult recorded = *replay_recorded(
      traces, small_config("prompt-end+junction", 10000000), LaneOptions{}, [](double) {});
  EXPECT_EQ(recorded.counts.requests, 50);
}

TEST(Cost, FollowsTheRoofline) {
  const ModelCost k3 = kimi_k3();
  Machine machine;
  machine.gpu = *gpu_of("b300");
  EXPECT_EQ(gpus_for(k3, machine.gpu), 8);
  EXPECT_EQ(gpus_for(k3, *gpu_of("h200")), 16);
  const StepPart one[] = {{1, 1000, false}};
  const double alone = step_seconds(k3, machine, one);
  // Dense weights, 16 of 896 experts, the state twice, the latents.
  const double bytes = 113.5e9 + 1446.5e9 * 16 / 896 + 2 * 449e6 + 1001 * 13824.0;
  EXPECT_NEAR(alone, bytes / (8 * 8e12 * 0.7) + 0.007, 1e-9);
  const StepPart chunk[] = {{8192, 0, true}};
  EXPECT_GT(step_seconds(k3, machine, chunk), alone);
  const StepPart late[] = {{8192, 500000, true}};
  EXPECT_GT(step_seconds(k3, machine, late), 2 * step_seconds(k3, machine, chunk));
  EXPECT_EQ(gpu_of("tpu").status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace triax::replay
