// Operations add up to the model, and their times behave.
#include "plan/roofline.h"

#include <gtest/gtest.h>

#include "checkpoint/shapes.h"
#include "checkpoint/summary.h"
#include "plan/weights.h"

namespace triax::plan {
namespace {

checkpoint::ModelConfig shape(std::string_view name) { return *checkpoint::named_shape(name, {}); }

StepModel model_of(const checkpoint::ModelConfig& config, const Parallel& parallel,
                   const Shares& shares = kIdeal) {
  const Formats formats = published_formats(config);
  return StepModel(config, formats, *shard(config, formats, parallel), *named_hardware("b300"),
                   shares);
}

bool product(const Operation& operation) {
  return operation.kernel == Kernel::kLinear || operation.kernel == Kernel::kExperts ||
         operation.kernel == Kernel::kRouter;
}

// Twice the active parameters ("104.2B active" for K3), convolutions and vectors aside.
TEST(PlanOperations, ProductsOfATokenAreTwiceTheActiveParameters) {
  for (const char* name : {"kimi-k3", "kimi-linear-48b", "tiny"}) {
    const checkpoint::ModelConfig config = shape(name);
    const auto active = static_cast<double>(checkpoint::summarize(config).total.active);
    double flops = 0;
    for (const OperationTime& t : model_of(config, {}).times(decode_load(config, 1, 0))) {
      flops += product(*t.operation) ? t.flops : 0;
    }
    EXPECT_NEAR(flops / (2 * active), 1, 0.005) << name;
  }
}

// A step that visits every expert reads every matrix once; the embedding it does not.
TEST(PlanOperations, ALargeStepReadsTheWholeModel) {
  const checkpoint::ModelConfig config = shape("kimi-k3");
  const StepModel model = model_of(config, {});
  double bytes = 0;
  for (const Operation& operation : model.list()) {
    Load once{};
    once[static_cast<size_t>(Per::kStep)] = once[static_cast<size_t>(Per::kDecodeStep)] = 1;
    once[static_cast<size_t>(Per::kVisited)] = 896;
    bytes += operation.layers * dot(operation.bytes, once);
  }
  PartBytes parts = model_bytes(config, published_formats(config));
  parts[static_cast<size_t>(checkpoint::Part::kEmbedding)] = 0;
  EXPECT_NEAR(bytes / sum(parts), 1, 0.0005);
}

TEST(PlanOperations, PartsOfAStepAddUp) {
  const checkpoint::ModelConfig config = shape("kimi-linear-48b");
  const StepPart parts[] = {{1, 1000, false}, {1, 1000, false}, {1, 1000, false}};
  EXPECT_EQ(load_of(config, parts), decode_load(config, 3, 1000));
  const StepPart prompt{512, 2048, true};
  EXPECT_EQ(load_of(config, std::span(&prompt, 1)), prefill_load(config, 1, 512, 2048));
}

TEST(PlanRoofline, MoreGpusTakeLessTimeAndStagesOverlapChunks) {
  const checkpoint::ModelConfig config = shape("kimi-k3");
  const Load load = decode_load(config, 16, 65536);
  EXPECT_LT(model_of(config, {.gpus = 8}).seconds(load), model_of(config, {}).seconds(load) / 4);
  const StepModel staged = model_of(config, {.gpus = 8, .tp = 1, .pp = 8});
  const StepModel whole = model_of(config, {});
  // One chunk goes through all stages; many keep them all busy.
  EXPECT_NEAR(staged.prefill_seconds(8192, 0, 8192) / whole.prefill_seconds(8192, 0, 8192), 1,
              0.05);
  EXPECT_NEAR(staged.prefill_seconds(524288, 0, 4096) * 8 / whole.prefill_seconds(524288, 0, 4096),
              1.055, 0.03);
}

TEST(PlanRoofline, TheSlowerOfMemoryAndArithmeticBinds) {
  const checkpoint::ModelConfig config = shape("kimi-k3");
  const StepModel model = model_of(config, {});
  const auto limit_of = [&](const Load& load, std::string_view name) {
    for (const OperationTime& t : model.times(load)) {
      if (t.operation->name == name) {
        return t.limit;
      }
    }
    return Limit::kLaunch;
  };
  EXPECT_EQ(limit_of(decode_load(config, 8, 4096), "routed experts"), Limit::kMemory);
  EXPECT_EQ(limit_of(prefill_load(config, 1, 65536, 0), "routed experts"), Limit::kCompute);
  EXPECT_EQ(limit_of(decode_load(config, 8, 4096), "KDA recurrence"), Limit::kMemory);
  EXPECT_EQ(limit_of(prefill_load(config, 1, 8192, 100000), "attention of prefill"),
            Limit::kCompute);
}

}  // namespace
}  // namespace triax::plan
