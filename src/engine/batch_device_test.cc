// The batch engine on every kind of device: reuse, branches, drafts, preemption and the memory
// tier, against cold runs on the same device.
#include "engine/batch_testing.h"

namespace triax::testing {
namespace {

class BatchDeviceTest : public ::testing::TestWithParam<TestDevice> {};

TEST_P(BatchDeviceTest, MixedRequestsUnderPressureEqualColdRuns) {
  engine::EngineOptions settings;
  settings.backend = GetParam().backend;
  settings.isa = GetParam().isa;
  settings.threads = GetParam().threads;
  settings.context_tokens = 1024;
  Result<std::unique_ptr<engine::Engine>> engine =
      engine::Engine::create(small_weights(), settings);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  BatchOptions options;
  options.policy = "prompt-end+junction";
  options.sched.step_tokens = 256;
  options.sched.chunk_tokens = 128;
  options.sched.sequences_max = 16;
  options.memory_bytes = int64_t{64} << 20;
  const int64_t sequence = BatchRunner(**engine, options).batch().memory().bytes(384);
  options.memory_bytes = 4 * sequence * (settings.backend == Backend::kCuda ? 2 : 1);
  options.tiers.ram_bytes = 8 * sequence;
  BatchRunner runner(**engine, options);
  Rng rng(21);
  std::vector<std::pair<RequestId, BatchRequest>> asked;
  for (uint64_t i = 0; i < 24; ++i) {
    BatchRequest r;
    r.prompt = joined(random_tokens(100 + 64 * static_cast<int64_t>(rng.below(3)), rng.below(5)),
                      random_tokens(1 + static_cast<int64_t>(rng.below(70)), 100 + i));
    r.sampling.temperature = i % 2 == 0 ? 0.0f : 0.8f;
    r.sampling.seed = i;
    r.max_tokens = 1 + static_cast<int64_t>(rng.below(40));
    r.choices = i % 6 == 1 ? 2 : 1;
    r.draft_tokens = 3;
    r.drafter = [](std::span<const int32_t> tokens, int64_t count) {  // right now and then
      return std::vector<int32_t>(static_cast<size_t>(count), tokens.back());
    };
    asked.emplace_back(runner.submit(r), r);
    for (uint64_t steps = rng.below(4); steps > 0; --steps) {
      runner.step();
    }
  }
  runner.run();
  for (const auto& [id, r] : asked) {
    for (int32_t choice = 0; choice < r.choices; ++choice) {
      expect_same(runner.answer(id, choice), cold_answer(**engine, r, choice));
    }
  }
  EXPECT_GT(runner.batch().counters().reused_tokens, 0);
  EXPECT_GT(runner.batch().counters().drafted_tokens, 0);
}

std::vector<TestDevice> batch_devices() {
  std::vector<TestDevice> devices;
  for (const TestDevice& device : test_devices()) {
    if (device.backend != Backend::kReference && device.isa == best_isa() && device.threads != 3) {
      devices.push_back(device);
    }
  }
  return devices;
}

INSTANTIATE_TEST_SUITE_P(Devices, BatchDeviceTest, ::testing::ValuesIn(batch_devices()),
                         [](const auto& param_info) { return param_info.param.name(); });

}  // namespace
}  // namespace triax::testing
