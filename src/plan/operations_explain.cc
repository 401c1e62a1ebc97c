#include <fmt/format.h>

#include "plan/operations.h"
#include "plan/pipeline.h"

namespace triax::plan {
namespace {

void explain_sequence(const checkpoint::ModelConfig& config, const Formats& formats,
                      Explanations* to) {
  Explanations& out = *to;
  const double dim = static_cast<double>(config.kda.head_dim);
  const double state = format_bytes(formats.state);
  if (config.count(checkpoint::LayerKind::kKda) > 0) {
    out.push_back({"KDA prefill, a chunk of one head", "12 C^3 + 8 C^2 D + 6 C D^2 FLOPs",
                   fmt::format("C = 16, D = {:.0f}: {:.0f}", dim, kda_chunk_flops(16, dim)),
                   "seeds, FlashKDA: six C x C x C products of the inverse, four C x C x D, three "
                   "C x D x D"});
    out.push_back({"the same over two kernels", "8 C^2 + 22 C D bytes",
                   fmt::format("C = 16, D = {:.0f}: {:.0f}", dim, kda_chunk_bytes(16, dim)),
                   "seeds, FlashKDA: six tensors and two C x C go through memory"});
    out.push_back(
        {"in one kernel, a token of one head", "10 D + 2 bytes",
         fmt::format("{:.0f}: q, k, v, g read, o written in bf16, and beta", kda_fused_bytes(dim)),
         "docs/kernels/kda.md"});
    out.push_back({"KDA decode, a token of one head", "7 D^2 FLOPs, 2 x bytes x D^2 bytes",
                   fmt::format("{:.0f} FLOPs, {:.0f} bytes", kda_decode_flops(dim),
                               kda_decode_bytes(dim, state)),
                   "seeds: the state is read and written (8 D^2 in fp32)"});
  }
  const checkpoint::MlaConfig& mla = config.mla;
  if (config.count(checkpoint::LayerKind::kMla) > 0) {
    out.push_back({"MLA expanded, a pair of one head", "2 (d_qk + d_v)",
                   fmt::format("2 ({} + {}) = {:.0f}", mla.query_dim(), mla.value_dim,
                               mla_expanded_pair_flops(mla)),
                   "seeds: prefill is MHA-192/128"});
    out.push_back({"MLA absorbed, a pair of one head", "2 (latent + kv_lora)",
                   fmt::format("2 ({} + {}) = {:.0f}", mla.latent_dim(), mla.kv_lora,
                               mla_absorbed_pair_flops(mla)),
                   "seeds: decode is MQA-576/512"});
    out.push_back({"new tokens from which expanding a long context is cheaper",
                   "kv_lora (nope + d_v) / ((latent + kv_lora) - (d_qk + d_v))",
                   fmt::format("{:.0f}", mla_crossover_tokens(mla)),
                   "the two forms set equal; a context token is expanded once"});
  }
}

void explain_width_and_depth(const checkpoint::ModelConfig& config, Explanations* to) {
  Explanations& out = *to;
  if (config.moe.experts > 0) {
    out.push_back(
        {"routed experts, a token", "6 K d m FLOPs",
         fmt::format(
             "6 x {} x {} x {} = {:.4g}", config.moe.top_k, config.expert_io(), config.moe.width,
             6.0 * static_cast<double>(config.moe.top_k * config.expert_io() * config.moe.width)),
         "seeds: up, gate and down projection"});
    out.push_back(
        {"experts that t tokens visit", "N (1 - (1 - K / N)^t)",
         fmt::format("t = 32: {:.1f} of {}", visited_experts(config, 32), config.moe.experts),
         "routes as if at random"});
  }
  if (config.attn_res_block > 0) {
    const double sublayers = 2 * static_cast<double>(config.attn_res_block);
    const double blocks = attn_res_sources(config) - 1;
    out.push_back({"Attention Residuals in two phases, a sublayer", "(N / S + 5) d, residual 3 d",
                   fmt::format("({:.0f} / {:.0f} + 5) d = {:.2f} d", blocks, sublayers,
                               attn_res_two_phase_io(blocks, sublayers)),
                   "Attention Residuals report: 5.5 d for N = 8, S = 16"});
  }
}

}  // namespace

Explanations explain_operations(const checkpoint::ModelConfig& config, const Formats& formats) {
  Explanations out;
  explain_sequence(config, formats, &out);
  explain_width_and_depth(config, &out);
  out.push_back({"time of an operation", "max(FLOPs / rate, bytes / bandwidth)",
                 "ideal: data sheet; estimate: measured shares of it, or 0.5, 0.7 and 3 us",
                 "roofline; docs/plan.md"});
  return out;
}

}  // namespace triax::plan
