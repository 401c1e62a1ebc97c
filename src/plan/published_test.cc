// Published figures of the seeds and reports, from first principles: each with its source, within
// its own rounding.
#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/shapes.h"
#include "plan/kv.h"
#include "plan/moe.h"
#include "plan/pipeline.h"

namespace triax::plan {
namespace {

checkpoint::ModelConfig shape(std::string_view name) { return *checkpoint::named_shape(name, {}); }

StepModel model_of(const checkpoint::ModelConfig& config, std::string_view hardware, int64_t gpus,
                   const Shares& shares, Attention attention = Attention::kLatent) {
  Formats formats = published_formats(config);
  return StepModel(config, formats, *shard(config, formats, {.gpus = gpus}),
                   *named_hardware(hardware), shares, nullptr, attention);
}

// Seeds: "K2 moved 8 x 7168 = 57,344 values per token, and K3 moves 16 x 3584 = 57,344".
TEST(Published, K2AndK3Move57344ValuesAToken) {
  EXPECT_EQ(values_per_token(shape("kimi-k3")), 57344);
  checkpoint::ModelConfig k2 = shape("kimi-k3");
  k2.moe.latent = 0;
  k2.moe.experts = 384;
  k2.moe.top_k = 8;
  EXPECT_EQ(values_per_token(k2), 57344);
  EXPECT_EQ(sparsity(k2), 48);  // "from K2's 48 to K3's 56"
}

// Seeds: "Routing densely to all 896 would cost E/k = 56 times what top-k costs".
TEST(Published, K3SparsityIs56) { EXPECT_EQ(sparsity(shape("kimi-k3")), 56); }

// Seeds, FlashKDA: 12 C^3 + 8 C^2 D + 6 C D^2 and 8 C^2 + 22 C D; anchors: 117,760, 143,360 and
// 212,992 FLOPs a token and head for C = 16, 32, 64; 47,104 bytes for 16 tokens; 1,282 in one
// kernel.
TEST(Published, KdaChunkCostsMatchTheAnchors) {
  EXPECT_EQ(kda_chunk_flops(16, 128) / 16, 117760);
  EXPECT_EQ(kda_chunk_flops(32, 128) / 32, 143360);
  EXPECT_EQ(kda_chunk_flops(64, 128) / 64, 212992);
  EXPECT_EQ(kda_chunk_bytes(16, 128), 47104);
  EXPECT_EQ(kda_fused_bytes(128), 1282);
}

// Seeds: decode 7 D^2 FLOPs and 8 D^2 bytes; anchors: "131,072 B per head per token".
TEST(Published, KdaDecodeReadsAndWrites131072BytesAHead) {
  EXPECT_EQ(kda_decode_flops(128), 7 * 16384);
  EXPECT_EQ(kda_decode_bytes(128, 4), 131072);
}

// Anchors, section 6: floor of T = 8192, H = 96 at 4.3 TB/s is 0.234 ms.
TEST(Published, KdaPrefillFloorIs234Microseconds) {
  EXPECT_NEAR(8192.0 * 96 * kda_fused_bytes(128) / 4.3e12, 0.234e-3, 0.0005e-3);
}

// Seeds: MHA-192/128 expanded, MQA-576/512 absorbed.
TEST(Published, MlaPairsAre640And2176Flops) {
  const checkpoint::MlaConfig& mla = shape("kimi-k3").mla;
  EXPECT_EQ(mla_expanded_pair_flops(mla), 2 * (192 + 128));
  EXPECT_EQ(mla_absorbed_pair_flops(mla), 2 * (576 + 512));
  EXPECT_NEAR(mla_crossover_tokens(mla), 512.0 * 256 / 768, 1e-9);
}

// Seeds: "93 layers into 8 blocks of 12 ... counting the embedding, that leaves 9 sources rather
// than 93", "81 pairwise scores"; N d against L d.
TEST(Published, AttnResHas9SourcesInsteadOf93Layers) {
  const checkpoint::ModelConfig config = shape("kimi-k3");
  EXPECT_EQ(attn_res_sources(config), 9);
  EXPECT_EQ(attn_res_sources(config) * attn_res_sources(config), 81);
  const double ratio =
      static_cast<double>(config.layer_count()) / attn_res_sources(config);  // L d / (N d)
  EXPECT_NEAR(ratio, 10.3, 0.05);  // "falls by an order of magnitude"
}

// Attention Residuals report, as the issue quotes it: 5.5 d against 3 d (N = 8 blocks of S = 16
// sublayers).
TEST(Published, AttnResTwoPhasesMove5Point5dAgainst3d) {
  EXPECT_EQ(attn_res_two_phase_io(8, 16), 5.5);
  EXPECT_EQ(kResidualIo, 3);
}

// Seeds: cross-stage caching cuts the cost of a transition from O(C) to O(P), V times.
TEST(Published, PipelineCachingCutsTransitionsVTimes) {
  const PipelineShape shape{.P = 4, .V = 8, .sources = 8};
  EXPECT_EQ(shape.naive_blocks(), 32 * 31 / 2 * 0.25);
  EXPECT_EQ(shape.cached_blocks(), (4 * 3 / 2 + 7 * 16) * 0.25);
  EXPECT_NEAR(shape.naive_peak_blocks() / shape.cached_peak_blocks(), shape.V, 0.26);  // C-1 for C
  // Summed hand-overs agree with counting every transition by hand.
  double naive = 0, cached = 0;
  for (int chunk = 1; chunk < 32; ++chunk) {
    naive += chunk * 0.25;
    cached += std::min(chunk, 4) * 0.25;
  }
  EXPECT_DOUBLE_EQ(shape.naive_blocks(), naive);
  EXPECT_NEAR(shape.cached_blocks(), cached, 4 * 0.25);  // the turn of a round is counted whole
  const PipelineShape once{.P = 8, .V = 1, .sources = 8};
  EXPECT_EQ(once.naive_blocks(), once.cached_blocks());
}

// Seeds: T_comm / T_comp = (P F) / (6 m B) (1 - 1 / E); only m is the model's. m = 2,048 (K2) to
// 3,072 (K3) makes a third less of it. F / (3 m B) is P = 2 and many ranks.
TEST(Published, CommunicationRatioFallsByAThirdFromK2ToK3) {
  MoeTraffic k3{.t = 8192,
                .K = 16,
                .N = 896,
                .E = 32,
                .d = 3584,
                .m = 3072,
                .P = 4,
                .F = 989.5e12,
                .B = 50e9};
  EXPECT_DOUBLE_EQ(k3.ratio(), k3.comm_seconds() / k3.compute_seconds());
  MoeTraffic k2 = k3;
  k2.m = 2048;
  EXPECT_DOUBLE_EQ(k3.ratio() / k2.ratio(), 2.0 / 3.0);
  k2.K = 8;
  k2.d = 7168;
  EXPECT_DOUBLE_EQ(k3.bytes_per_gpu(), k2.bytes_per_gpu());
  // By hand: 4 x 989.5e12 / (6 x 2048 x 50e9) x 31 / 32 = 6.24 and, with 3,072, 4.16.
  EXPECT_NEAR(k2.ratio(), 6.24, 0.005);
  EXPECT_NEAR(k3.ratio(), 4.16, 0.005);
  k3.P = 2;
  k3.E = 1e9;
  EXPECT_NEAR(k3.ratio() / k3.short_ratio(), 1, 1e-6);
}

// Seeds: N' l = N d; l-MoE_acc keeps compute, weight traffic and all-to-all, l-MoE_eff divides
// them.
TEST(Published, LatentVariantsKeepTheirBudgets) {
  const auto v = latent_variants(7168, 2, 448, 8, 3072, Format::kMxfp4);
  EXPECT_EQ(v[1].parameters, v[0].parameters);
  EXPECT_EQ(v[2].parameters, v[0].parameters);
  EXPECT_EQ(v[2].flops_per_token, v[0].flops_per_token);
  EXPECT_EQ(v[2].network_values_per_token, v[0].network_values_per_token);
  EXPECT_EQ(v[1].flops_per_token, v[0].flops_per_token / 2);
  EXPECT_EQ(v[1].weight_bytes_per_token, v[0].weight_bytes_per_token / 2);
}

// Kimi Linear report: up to 6x the decoding throughput of full MLA at 1M tokens, 11.48 to 1.84 ms a
// token (their machine and batch are not stated, so the pair itself cannot be derived). Our
// estimate at one H200, batch 1: about 8.3 ms to 3.2 ms; with the weights shared by a large batch
// the ratio tends to what caches weigh: 27 / 7 at equal batches.
TEST(Published, KimiLinearDecodesAMillionTokensSeveralTimesFaster) {
  const checkpoint::ModelConfig config = shape("kimi-linear-48b");
  const checkpoint::ModelConfig full = baseline_config(config, Baseline::kFullMla);
  const StepModel hybrid = model_of(config, "h200", 1, kIdeal);
  const StepModel mla = model_of(full, "h200", 1, kIdeal);
  const auto ratio = [&](double batch) {
    return mla.seconds(decode_load(full, batch, 1048576)) /
           hybrid.seconds(decode_load(config, batch, 1048576));
  };
  EXPECT_GT(ratio(1), 2.0);
  EXPECT_LT(ratio(1), 11.48 / 1.84);
  EXPECT_GT(ratio(64), ratio(1));
  EXPECT_LT(ratio(64), 27.0 / 7.0);
  EXPECT_NEAR(ratio(4096), 27.0 / 7.0, 0.5);
  // And almost four times the sequences fit the same memory, which is how more than 4x comes about.
  const double cache = cache_bytes(sequence_bytes(config, published_formats(config)), 1048576);
  const double cache_full = cache_bytes(sequence_bytes(full, published_formats(config)), 1048576);
  EXPECT_NEAR(cache_full / cache, 3.85, 0.05);
}

// Seeds: "the benefits of hybrid linear attention become more pronounced as sequence length
// increases": the hybrid's KV throughput, which a split of prefill and decode has to carry, is
// below that of both baselines, ever more so.
TEST(Published, HybridNeedsLessBandwidthThanItsBaselines) {
  const checkpoint::ModelConfig config = shape("kimi-k3");
  const StepModel hybrid = model_of(config, "b300", 8, kIdeal);
  double before = 0;
  for (const double context : {16384.0, 131072.0, 1048576.0}) {
    const double own = kv_throughput(hybrid, context, 8192).bytes_per_second();
    for (const Baseline baseline : {Baseline::kFullMla, Baseline::kGqa}) {
      const checkpoint::ModelConfig other = baseline_config(config, baseline);
      const StepModel model = model_of(other, "b300", 8, kIdeal, baseline_attention(baseline));
      EXPECT_GT(kv_throughput(model, context, 8192).bytes_per_second(), own) << context;
    }
    EXPECT_NE(own, before);
    before = own;
  }
}

// Seeds and anchors: a 32K grid of checkpoints costs as many bytes as the fp8 latents themselves.
TEST(Published, AGridOf32KCostsAsMuchAsTheLatents) {
  const checkpoint::ModelConfig config = shape("kimi-k3");
  Formats formats = published_formats(config);
  formats.latents = Format::kFp8;
  const StepModel model(config, formats, *shard(config, formats, {.gpus = 8}),
                        *named_hardware("b300"), Shares{});
  const Spacing wide = checkpoint_spacing(model, 32768, 131072, 8192);
  EXPECT_NEAR(wide.of_latents, 1, 0.05);
  const Spacing dense = checkpoint_spacing(model, 1536, 131072, 8192);
  EXPECT_NEAR(dense.of_latents, 20, 2.5);  // "about 20 times"
  EXPECT_LT(dense.recompute_s, wide.recompute_s);
}

TEST(PlanKv, BreakEvenIsWhereLoadingTakesAsLong) {
  const checkpoint::ModelConfig config = shape("kimi-k3");
  const StepModel model = model_of(config, "b300", 8, Shares{});
  const SequenceBytes bytes = sequence_bytes(config, model.formats());
  const double rate = 2e9, at = break_even_tokens(model, rate, 8192, 1048576);
  ASSERT_TRUE(std::isfinite(at));
  EXPECT_LE(load_seconds(bytes, at, rate), model.prefill_seconds(at, 0, 8192));
  EXPECT_GT(load_seconds(bytes, at - 1, rate), model.prefill_seconds(at - 1, 0, 8192));
  EXPECT_TRUE(std::isinf(break_even_tokens(model, 0, 8192, 1048576)));
}

}  // namespace
}  // namespace triax::plan
