// Published figures about memory, from the config and the data sheets alone.
#include "plan/memory.h"

#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/shapes.h"
#include "checkpoint/summary.h"

namespace triax::plan {
namespace {

checkpoint::ModelConfig shape(std::string_view name) {
  auto config = checkpoint::named_shape(name, {});
  EXPECT_TRUE(config.ok());
  return *config;
}

Formats fp8_latents(const checkpoint::ModelConfig& config) {
  Formats formats = published_formats(config);
  formats.latents = Format::kFp8;
  return formats;
}

MemoryPlan memory_of(const checkpoint::ModelConfig& config, std::string_view hardware,
                     const Parallel& parallel, const MemoryOptions& options = {}) {
  const Formats formats = fp8_latents(config);
  const auto sharding = shard(config, formats, parallel);
  EXPECT_TRUE(sharding.ok()) << sharding.status().message();
  const auto plan = plan_memory(config, formats, *sharding, *named_hardware(hardware), options);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return *plan;
}

TEST(PlanWeights, MatchTheTensorsOfTheFilesToTheByte) {
  for (const char* name : {"kimi-k3", "kimi-linear-48b", "tiny"}) {
    const checkpoint::ModelConfig config = shape(name);
    const checkpoint::ModelSummary summary = checkpoint::summarize(config);
    const PartBytes bytes = model_bytes(config, published_formats(config));
    for (size_t i = 0; i < bytes.size(); ++i) {
      EXPECT_DOUBLE_EQ(bytes[i], static_cast<double>(summary.parts[i].bytes))
          << name << " " << checkpoint::part_name(static_cast<checkpoint::Part>(i));
    }
  }
}

// "text 1,559,965,606,912 bytes" of the index of moonshotai/Kimi-K3 (spec 3.1); the seeds round the
// checkpoint to 1.56 TB.
TEST(PlanMemory, K3Weighs1560GBAndDoesNotFit8B200) {
  const auto plan = memory_of(shape("kimi-k3"), "b200", {.gpus = 8});
  EXPECT_EQ(plan.weights_total, 1559965606912.0);
  EXPECT_FALSE(plan.fits);
  EXPECT_GT(plan.weights_total, 8 * 180e9);  // not even without anything else
  EXPECT_GT(plan.short_bytes, (1559965606912.0 - 8 * 180e9) / 8);
  EXPECT_EQ(plan.gpus_needed, 16);
  EXPECT_TRUE(memory_of(shape("kimi-k3"), "b300", {.gpus = 8}).fits);
  EXPECT_TRUE(memory_of(shape("kimi-k3"), "b200", {.gpus = 16, .tp = 8, .pp = 2}).fits);
}

// "434 MB" and "31 thousand tokens a checkpoint": shared anchor on serving, section 0; the seeds'
// 128 x 128 = "16,384 numbers" a head.
TEST(PlanMemory, K3StateOfASequenceIs434MBand31ThousandTokens) {
  const checkpoint::ModelConfig config = shape("kimi-k3");
  EXPECT_EQ(config.kda.head_dim * config.kda.head_dim, 16384);
  const SequenceBytes bytes = sequence_bytes(config, fp8_latents(config));
  EXPECT_NEAR(bytes.state, 434e6, 0.5e6);
  EXPECT_EQ(bytes.state, 69.0 * 96 * 16384 * 4);
  EXPECT_NEAR(bytes.windows / 2, 15.3e6, 0.05e6);  // "+ 15-25 MB conv windows": bf16; ours are fp32
  EXPECT_EQ(bytes.latents_per_token, 13824);       // "13.8 KB (fp8)"
  EXPECT_NEAR(bytes.checkpoint_tokens(), 31.4e3, 50);
}

// The same under plain TP8, where latents are replicated and states cut: "3.9K tokens per rank".
TEST(PlanMemory, K3CheckpointIs3900TokensOfARankUnderTp8) {
  const auto plan = memory_of(shape("kimi-k3"), "b300", {.gpus = 8});
  EXPECT_EQ(plan.gpu.latents_per_token, 13824);
  EXPECT_NEAR(plan.sequence.state / 8 / plan.gpu.latents_per_token, 3.9e3, 50);
  const auto dcp = memory_of(shape("kimi-k3"), "b300", {.gpus = 8, .dcp = 8});
  EXPECT_EQ(dcp.gpu.latents_per_token, 13824.0 / 8);
  EXPECT_NEAR(dcp.tiers[0].tokens / plan.tiers[0].tokens, 8, 0.01);  // published: "about 7.9"
}

// InferenceX's log of 8 x B300, TP8, fp8 latents: 42.23 GiB of room a GPU and 3,249,215 tokens; the
// seeds round to 3.25 M. Latents alone give 42.23 GiB / 13,824 B = 3.28 M. The engine there
// (vLLM) has pages of equal bytes: 814,080 B of state make pages of 1,536 tokens, 24 layers a
// group, and a request of 1,048,576 tokens holds 683 pages and two of each of three groups of KDA
// layers.
TEST(PlanMemory, K3On8B300Holds3249215TokensIn42GiB) {
  const checkpoint::ModelConfig config = shape("kimi-k3");
  const Formats formats = fp8_latents(config);
  const auto sharding = shard(config, formats, {.gpus = 8});
  const double room = 42.23 * 0x1p30;
  const EqualPages pages = equal_page_tokens(config, formats, *sharding, room);
  EXPECT_EQ(pages.block_tokens, 1536);
  EXPECT_EQ(pages.blocks_per_request, 689);
  EXPECT_EQ(pages.tokens, 3249215);
  EXPECT_NEAR(room / 13824, 3.25e6, 0.01 * 3.25e6);
}

// With bf16 latents the same rule gives pages of 768 tokens, as Infera's tests have them.
TEST(PlanMemory, EqualPagesOfBf16LatentsHave768Tokens) {
  const checkpoint::ModelConfig config = shape("kimi-k3");
  const Formats formats = published_formats(config);
  EXPECT_EQ(
      equal_page_tokens(config, formats, *shard(config, formats, {.gpus = 8}), 45e9).block_tokens,
      768);
}

// The room that our own sum leaves on a B300 is larger than the 42.23 GiB of that log, by what that
// engine needed beside weights; the sum must at least not be smaller.
TEST(PlanMemory, RoomOnB300IsNotBelowThePublishedOne) {
  const auto plan = memory_of(shape("kimi-k3"), "b300", {.gpus = 8});
  EXPECT_GT(plan.gpu.room, 42.23 * 0x1p30);
  EXPECT_LT(plan.gpu.room, 1.3 * 42.23 * 0x1p30);
}

// Kimi Linear report: "up to 75% less KV cache" than all layers MLA. 7 of 27 layers keep latents:
// 74% in the limit of long contexts.
TEST(PlanMemory, KimiLinearSavesThreeQuartersOfTheCache) {
  const checkpoint::ModelConfig config = shape("kimi-linear-48b");
  const SequenceBytes bytes = sequence_bytes(config, published_formats(config));
  EXPECT_EQ(bytes.latents_per_token, 8064);  // spec section 0
  const double full_mla = 27.0 * 576 * 2;
  const double saving = 1 - (bytes.latents_per_token + bytes.checkpoint() / 1048576) / full_mla;
  EXPECT_NEAR(saving, 0.75, 0.015);
}

TEST(PlanMemory, StatesRunningAndDraftsTakeRoom) {
  const checkpoint::ModelConfig config = shape("kimi-k3");
  const Formats formats = fp8_latents(config);
  MemoryOptions options{.concurrency = 0};
  const double idle = memory_of(config, "b300", {.gpus = 8}, options).gpu.room;
  options.concurrency = 10;
  const MemoryPlan busy = memory_of(config, "b300", {.gpus = 8}, options);
  EXPECT_NEAR(idle - busy.gpu.room, 10 * busy.sequence.checkpoint() / 8, 1);
  options.draft = *named_draft("dspark", config, formats);
  const MemoryPlan drafting = memory_of(config, "b300", {.gpus = 8}, options);
  EXPECT_LT(drafting.gpu.room, busy.gpu.room);
  // InferenceX #2380: "about 25% of GPU KV"; 5 of 24 + 5 layers are 17%, the draft's weights more.
  EXPECT_NEAR(1 - drafting.tiers[0].tokens / busy.tiers[0].tokens, 0.25, 0.08);
}

TEST(PlanMemory, KimiLinearFitsOneH200) {
  const auto plan = memory_of(shape("kimi-linear-48b"), "h200", {.gpus = 1});
  EXPECT_TRUE(plan.fits);
  EXPECT_NEAR(plan.weights_total, 98.2e9, 0.1e9);
  EXPECT_FALSE(memory_of(shape("kimi-linear-48b"), "h100", {.gpus = 1}).fits);
}

TEST(PlanMemory, StagesHoldTheWholeModelTogether) {
  const checkpoint::ModelConfig config = shape("kimi-k3");
  const Formats formats = published_formats(config);
  const auto sharding = shard(config, formats, {.gpus = 16, .tp = 1, .ep = 1, .pp = 16});
  ASSERT_TRUE(sharding.ok()) << sharding.status().message();
  double all = 0;
  for (int64_t stage = 0; stage < 16; ++stage) {
    all += sum(stage_gpu_bytes(config, formats, *sharding, stage));
  }
  EXPECT_EQ(all, sum(model_bytes(config, formats)));
}

struct Wrong {
  Parallel parallel;
  const char* option;
  const char* field;
};

TEST(PlanSharding, ACutThatDoesNotDivideNamesTheField) {
  const checkpoint::ModelConfig config = shape("kimi-k3");
  for (const Wrong& wrong :
       {Wrong{{.gpus = 5}, "tp is 5", "num_heads = 96"},
        Wrong{{.gpus = 8, .tp = 3}, "tp is 3", "gpus / pp = 8"},
        Wrong{{.gpus = 8, .pp = 3}, "pp is 3", "gpus = 8"},
        Wrong{{.gpus = 96, .pp = 96}, "pp is 96", "93 layers"},
        Wrong{{.gpus = 8, .dcp = 3}, "dcp is 3", "tp = 8"},
        Wrong{{.gpus = 8, .ep = 3}, "ep is 3", "gpus / pp = 8"},
        Wrong{{.gpus = 256, .tp = 1, .ep = 256}, "ep is 256", "num_experts = 896"},
        Wrong{{.gpus = -1}, "gpus is -1", "expected"},
        Wrong{{.gpus = 8, .tp = -2}, "tp is -2", "expected"}}) {
    const auto sharding = shard(config, published_formats(config), wrong.parallel);
    ASSERT_FALSE(sharding.ok());
    EXPECT_EQ(sharding.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(sharding.status().message().find(wrong.option), std::string::npos)
        << sharding.status().message();
    EXPECT_NE(sharding.status().message().find(wrong.field), std::string::npos)
        << sharding.status().message();
  }
}

TEST(PlanMemory, NegativeOptionsAreErrorsByName) {
  const checkpoint::ModelConfig config = shape("tiny");
  const Formats formats = published_formats(config);
  const auto plan = plan_memory(config, formats, *shard(config, formats, {}),
                                *named_hardware("h200"), {.context = -1});
  ASSERT_FALSE(plan.ok());
  EXPECT_NE(plan.status().message().find("context is -1"), std::string::npos);
}

TEST(PlanFormats, AreReadByNameAndErrorsNameTheWord) {
  const checkpoint::ModelConfig config = shape("kimi-k3");
  const auto formats = parse_formats("dense=int8,latents=fp8", config);
  ASSERT_TRUE(formats.ok());
  EXPECT_EQ(formats->experts, Format::kMxfp4);
  EXPECT_EQ(formats->dense, Format::kInt8);
  EXPECT_EQ(formats->latents, Format::kFp8);
  EXPECT_EQ(parse_formats("bf16", config)->experts, Format::kBf16);
  for (const char* wrong : {"int3", "latent=fp8", "state=", "dense=fp8,,"}) {
    EXPECT_EQ(parse_formats(wrong, config).status().code(), StatusCode::kInvalidArgument) << wrong;
  }
}

}  // namespace
}  // namespace triax::plan
