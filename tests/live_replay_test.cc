// Recorded sessions through the engine and through the simulator: what is predicted is measured,
// and what was reused is what a cold run computes.
#include "app/live_replay.h"

#include <gtest/gtest.h>

#include "golden.h"
#include "replay/scale.h"
#include "replay/trace_testing.h"

namespace triax::app {
namespace {

constexpr double kStep_s = 0.05;

std::unique_ptr<engine::Engine> boot_engine() {
  engine::EngineOptions options;
  options.context_tokens = 2048;
  options.threads = 1;
  auto engine = engine::Engine::open(testing::boot_directory(), options);
  check(engine.ok(), engine.status().message());
  return std::move(*engine);
}

std::vector<replay::Trace> sessions(int64_t factor) {
  std::vector<replay::Trace> traces;
  for (const replay::Trace& trace : replay::synthetic_traces(21, 16, 20)) {
    traces.push_back(replay::scaled(trace, factor));
  }
  return traces;
}

TEST(LiveReplay, TheEngineHitsWhatTheSimulatorPredicts) {
  const std::unique_ptr<engine::Engine> engine = boot_engine();
  const std::vector<replay::Trace> traces = sessions(24);
  LiveOptions options;
  options.lanes = {.sessions = 6, .requests = 40};
  options.batch.memory_bytes = 8'000'000;  // of 6 sessions a few
  options.batch.poison = true;
  options.batch.sched.step_tokens = 256;
  options.batch.sched.chunk_tokens = 128;
  options.batch.sched.sequences_max = 4;
  options.batch.sched.residency = 0.8;
  options.check_share = 0.25;
  options.step_s = [] { return kStep_s; };

  replay::ServedOptions served;
  served.lanes = options.lanes;
  served.sched = options.batch.sched;
  served.step_s = [](std::span<const replay::StepPart>) { return kStep_s; };
  served.agents_apart = true;
  const auto batch = engine::BatchEngine::create(*engine, options.batch);
  ASSERT_TRUE(batch.ok()) << batch.status().message();
  const auto predicted =
      replay::replay_served(traces, (*batch)->memory().cache().config(), served, [](double) {});
  ASSERT_TRUE(predicted.ok()) << predicted.status().message();
  const auto measured = replay_live(traces, *engine, options, [](double) {});
  ASSERT_TRUE(measured.ok()) << measured.status().message();

  EXPECT_EQ(measured->counts.requests, 40);
  EXPECT_GT(measured->counts.hit_rate(), 0.2);
  EXPECT_LT(measured->counts.hit_rate(), measured->counts.possible() - 0.05);  // there is pressure
  EXPECT_NEAR(measured->counts.hit_rate(), predicted->counts.hit_rate(), 0.01);
  EXPECT_GE(measured->recomputed.answers, 5);
  EXPECT_GT(measured->recomputed.reused_tokens, 0);
  EXPECT_EQ(measured->recomputed.mismatches, 0) << measured->recomputed.worst;
}

TEST(LiveReplay, OneWrongTokenIsAMismatch) {
  const std::unique_ptr<engine::Engine> engine = boot_engine();
  std::vector<int32_t> prompt;
  replay::synthesise({}, 200, 1, engine->config().vocab, &prompt);
  engine::BatchOptions options;
  const auto batch = engine::BatchEngine::create(*engine, options);
  ASSERT_TRUE(batch.ok());
  engine::BatchRequest request;
  request.prompt = prompt;
  request.max_tokens = 4;
  request.sampling.temperature = 0.0f;
  request.sampling.top_logprobs = 20;
  ASSERT_TRUE((*batch)->submit(request, 0.0).ok());
  std::vector<engine::BatchEvent> events;
  while ((*batch)->busy()) {
    ASSERT_TRUE((*batch)->step(0.0, events).ok());
  }
  std::vector<dense::SampledToken> answer;
  for (const engine::BatchEvent& event : events) {
    if (event.kind == engine::BatchEvent::Kind::kToken) {
      answer.push_back(event.token);
    }
  }
  ASSERT_EQ(answer.size(), 4u);
  EXPECT_LE(*recompute(*engine, prompt, answer), kLogprobBound);
  for (const size_t at : {0, 63, 199}) {
    std::vector<int32_t> other = prompt;
    other[at] = (other[at] + 1) % 1000;
    EXPECT_GT(*recompute(*engine, other, answer), kLogprobBound) << "token " << at;
  }
}

TEST(LiveReplay, StepTimesAreMeasured) {
  const std::unique_ptr<engine::Engine> engine = boot_engine();
  const Result<StepTimes> times = measure_steps(*engine);
  ASSERT_TRUE(times.ok()) << times.status().message();
  const replay::StepPart brief[] = {{1, 100, false}};
  const replay::StepPart chunk[] = {{512, 0, true}};
  EXPECT_GT((*times)(brief), 0.0);
  EXPECT_GT((*times)(chunk), (*times)(brief));
}

}  // namespace
}  // namespace triax::app
