// An MLA layer: latents into their pages, attention over them, the optional gate (spec 2.3).
#include <cmath>

#include "model/step.h"
#include "sequence/mla/mla.h"

namespace triax::model {
namespace {

/// Queries, new latents (already normalised) and gate logits of the step's tokens.
struct Projections {
  TensorView q;        // [T, H (D + E)]
  TensorView latents;  // [T, R + E]
  TensorView gate;     // [T, H V] or empty
};

Status project(const Step& step, const MlaWeights& w, const dense::NormInput& input,
               Workspace::Scope& scope, const Projections& out) {
  const ConstTensorView x = input.x;
  const auto& mla = step.config.mla;
  const bool low_rank = w.q.empty();
  const TensorView q_low = take(scope, step.tokens, mla.q_lora);
  const dense::Product first[] = {{x, low_rank ? w.q_a : w.q, low_rank ? q_low : out.q},
                                  {x, w.kv_a, out.latents},
                                  {x, w.g, out.gate}};
  const size_t count = w.g.empty() ? 2 : 3;
  if (Status s = step.norm_linear("mla projections", input, std::span(first).first(count));
      !s.ok()) {
    return s;
  }
  const TensorView compressed = out.latents.slice(1, 0, mla.kv_lora);
  if (Status s = step.norm({compressed, w.kv_norm.view(), step.config.latent_norm_eps, compressed});
      !s.ok()) {
    return s;
  }
  if (!low_rank) {
    return {};
  }
  if (Status s = step.norm({q_low, w.q_norm.view(), step.config.latent_norm_eps, q_low}); !s.ok()) {
    return s;
  }
  return step.linear("mla projections", {q_low, w.q_b, out.q});
}

}  // namespace

Status mla_layer(const Step& step, int64_t layer, const MlaWeights& w,
                 const dense::NormInput& input, TensorView out) {
  const auto& mla = step.config.mla;
  const int64_t query_dim = mla.nope_dim + mla.shared_dim;
  const int64_t value_width = mla.heads * mla.value_dim;
  Workspace::Scope scope(*step.device.workspace);
  Projections projected = {take(scope, step.tokens, mla.heads * query_dim),
                           take(scope, step.tokens, mla.kv_lora + mla.shared_dim), TensorView()};
  if (!w.g.empty()) {
    projected.gate = take(scope, step.tokens, value_width);
  }
  if (Status s = project(step, w, input, scope, projected); !s.ok()) {
    return s;
  }
  const sequence::LatentPages pages{step.pool.latents(layer), step.tables, step.flat_tables};
  if (Status s = sequence::mla_append(step.device, {.latents = projected.latents,
                                                    .cu_seqlens = step.cu_seqlens,
                                                    .starts = step.starts,
                                                    .pages = pages});
      !s.ok()) {
    return s;
  }
  const TensorView attended = take(scope, step.tokens, value_width);
  sequence::MlaArgs args;
  args.q = projected.q.split_last(mla.heads, query_dim);
  args.kv_b = w.kv_b;
  args.kv_b_bf16 = w.kv_b_bf16;
  args.value_dim = mla.value_dim;
  args.scale = 1.0f / std::sqrt(static_cast<float>(query_dim));
  args.cu_seqlens = step.cu_seqlens;
  args.starts = step.starts;
  args.pages = pages;
  if (!w.g.empty()) {
    args.gate_logit = projected.gate.split_last(mla.heads, mla.value_dim);
  }
  args.out = attended.split_last(mla.heads, mla.value_dim);
  if (Status s = step.run("mla", [&] { return sequence::mla(step.device, args); }); !s.ok()) {
    return s;
  }
  return step.linear("mla projections", {attended, w.o, out});
}

}  // namespace triax::model
