// A KDA layer: projections, short convolution, the recurrence, norm and gate (spec 2.2).
#include "model/observed.h"
#include "model/step.h"
#include "sequence/kda/kda.h"
#include "sequence/kda/kda_fused.h"
#include "sequence/short_conv/short_conv.h"

namespace triax::model {
namespace {

/// Everything the recurrence needs, projected from x in two rounds of products.
struct Projections {
  TensorView qkv;    // [T, 3 H K]
  TensorView decay;  // [T, H K]
  TensorView gate;   // [T, H V]
  TensorView beta;   // [T, H]
};

Status project(const Step& step, const KdaWeights& w, const dense::NormInput& input,
               Workspace::Scope& scope, const Projections& out) {
  const ConstTensorView x = input.x;
  const auto& kda = step.config.kda;
  const int64_t width = kda.heads * kda.head_dim;
  // Side by side, as their weights may lie: one product then.
  const TensorView low = take(scope, step.tokens, w.f_a.rows + w.g_a.rows);
  const TensorView decay_low = low.slice(1, 0, w.f_a.rows);
  const TensorView gate_low = low.slice(1, w.f_a.rows, w.f_a.rows + w.g_a.rows);
  const bool full_rank = !w.g.empty();
  const dense::Product first[] = {
      {x, w.q, out.qkv.slice(1, 0, width)},
      {x, w.k, out.qkv.slice(1, width, 2 * width)},
      {x, w.v, out.qkv.slice(1, 2 * width, 3 * width)},
      {x, w.f_a, decay_low},
      {x, full_rank ? w.g : w.g_a, full_rank ? out.gate : gate_low},
      {x, w.b, out.beta},
  };
  if (Status s = step.norm_linear("kda projections", input, first); !s.ok()) {
    return s;
  }
  const dense::Product second[] = {{decay_low, w.f_b, out.decay}, {gate_low, w.g_b, out.gate}};
  return step.linear("kda projections", std::span(second).first(full_rank ? 1 : 2));
}

sequence::KdaArgs recurrence(const Step& step, int64_t layer, const KdaWeights& w,
                             const Projections& in, TensorView conv) {
  const auto& kda = step.config.kda;
  const int64_t width = kda.heads * kda.head_dim;
  const auto heads = [&](TensorView view) { return view.split_last(kda.heads, kda.head_dim); };
  sequence::KdaArgs args;
  args.rule = sequence::Rule::kKda;
  args.gate = kda.gate == checkpoint::GateKind::kBounded ? sequence::DecayGate::kBounded
                                                         : sequence::DecayGate::kSoftplus;
  args.lower_bound = kda.lower_bound;
  args.q = heads(conv.slice(1, 0, width));
  args.k = heads(conv.slice(1, width, 2 * width));
  args.v = heads(conv.slice(1, 2 * width, 3 * width));
  args.decay_logit = heads(in.decay);
  args.beta_logit = in.beta;
  args.a_log = w.a_log.view();
  args.dt_bias = w.dt_bias.view();
  args.cu_seqlens = step.cu_seqlens;
  args.starts = step.starts;
  args.slots = step.slots;
  args.states = step.pool.kda_states(layer);
  args.out = heads(in.qkv.slice(1, 0, width));  // the raw projections are no longer needed
  return args;
}

/// On a GPU: everything between the two rounds of projections at once, where it can; the result
/// lies in the first columns of `conv`.
Result<bool> run_fused(const Step& step, int64_t layer, const KdaWeights& w,
                       const Projections& projected, TensorView conv) {
  if (step.device.cuda == nullptr) {
    return false;
  }
  const auto& kda = step.config.kda;
  sequence::KdaFusedArgs args;
  args.qkv = projected.qkv;
  args.conv_weight = w.conv.view();
  args.windows = step.pool.conv_windows(layer);
  args.kda = recurrence(step, layer, w, projected, conv);
  args.kda.out = conv.slice(1, 0, kda.width()).split_last(kda.heads, kda.head_dim);
  args.norm_weight = w.o_norm.view();
  args.norm_eps = step.config.norm_eps;
  args.gate_logit = projected.gate.split_last(kda.heads, kda.head_dim);
  args.precision = step.options.dense == dense::Activations::kBf16 ? sequence::KdaPrecision::kBf16
                                                                   : sequence::KdaPrecision::kExact;
  bool done = false;
  const Status status = step.run("kda", [&]() -> Status {
    const Result<bool> ran = sequence::kda_fused(step.device, args);
    done = ran.ok() && *ran;
    return ran.status();
  });
  if (!status.ok()) {
    return status;
  }
  return done;
}

/// Convolution, recurrence, norm and gate, one after another; the result lies in the first columns
/// of projected.qkv.
Status run_parts(const Step& step, int64_t layer, const KdaWeights& w, const Projections& projected,
                 TensorView conv) {
  const sequence::ShortConvArgs conv_args{.in = projected.qkv,
                                          .weight = w.conv.view(),
                                          .cu_seqlens = step.cu_seqlens,
                                          .slots = step.slots,
                                          .windows = step.pool.conv_windows(layer),
                                          .out = conv};
  if (Status s =
          step.run("short_conv", [&] { return sequence::short_conv(step.device, conv_args); });
      !s.ok()) {
    return s;
  }
  const sequence::KdaArgs args = recurrence(step, layer, w, projected, conv);
  if (Status s = step.run("kda", [&] { return sequence::kda(step.device, args); }); !s.ok()) {
    return s;
  }
  const sequence::KdaOutputArgs output{
      .in = args.out,
      .weight = w.o_norm.view(),
      .eps = step.config.norm_eps,
      .gate_logit = projected.gate.split_last(step.config.kda.heads, step.config.kda.head_dim),
      .out = args.out};
  return step.run("kda_output", [&] { return sequence::kda_output(step.device, output); });
}

}  // namespace

Status kda_layer(const Step& step, int64_t layer, const KdaWeights& w,
                 const dense::NormInput& input, TensorView out) {
  const auto& kda = step.config.kda;
  const int64_t width = kda.heads * kda.head_dim;
  Workspace::Scope scope(*step.device.workspace);
  const Projections projected = {take(scope, step.tokens, 3 * width),
                                 take(scope, step.tokens, width), take(scope, step.tokens, width),
                                 take(scope, step.tokens, kda.heads)};
  if (Status s = project(step, w, input, scope, projected); !s.ok()) {
    return s;
  }
  if (Status s = observe_decay(step, layer, w, projected.decay); !s.ok()) {
    return s;
  }
  const TensorView conv = take(scope, step.tokens, 3 * width);
  const Result<bool> fused = run_fused(step, layer, w, projected, conv);
  if (!fused.ok()) {
    return fused.status();
  }
  if (*fused) {
    return step.linear("kda projections", {conv.slice(1, 0, width), w.o, out});
  }
  if (Status s = run_parts(step, layer, w, projected, conv); !s.ok()) {
    return s;
  }
  return step.linear("kda projections", {projected.qkv.slice(1, 0, width), w.o, out});
}

}  // namespace triax::model
