// The operations of OpsBench: their data, and what a call costs at least.
#include <fmt/core.h>

#include <cmath>
#include <numeric>

#include "app/ops_bench.h"
#include "dense/norm/norm.h"
#include "depth/attn_res/attn_res.h"
#include "model/sequence_state.h"
#include "sequence/kda/kda.h"
#include "sequence/kda/kda_fused.h"
#include "sequence/mla/mla.h"
#include "sequence/short_conv/short_conv.h"
#include "width/latent_moe/latent_moe.h"

namespace triax::app {
namespace {

/// Ends of `sequences` sequences of `tokens` each: [0, tokens, 2 tokens, ...].
std::vector<int64_t> ends(int64_t tokens, int64_t sequences) {
  std::vector<int64_t> cu(static_cast<size_t>(sequences) + 1);
  for (size_t i = 0; i < cu.size(); ++i) {
    cu[i] = static_cast<int64_t>(i) * tokens;
  }
  return cu;
}

std::vector<int32_t> first_integers(int64_t count) {
  std::vector<int32_t> all(static_cast<size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

/// Convolution, recurrence, norm and gate of a KDA layer: in one where the device has that.
Status kda_middle(const Device& device, const sequence::KdaFusedArgs& args, TensorView conv) {
  if (device.cuda != nullptr) {
    const Result<bool> fused = sequence::kda_fused(device, args);
    if (!fused.ok() || *fused) {
      return fused.status();
    }
  }
  const int64_t heads = args.kda.v.size(1);
  const int64_t dim = args.kda.v.size(2);
  if (Status s = sequence::short_conv(device, {.in = args.qkv,
                                               .weight = args.conv_weight,
                                               .cu_seqlens = args.kda.cu_seqlens,
                                               .slots = args.kda.slots,
                                               .windows = args.windows,
                                               .out = conv});
      !s.ok()) {
    return s;
  }
  sequence::KdaArgs kda = args.kda;
  const int64_t width = heads * dim;
  kda.q = conv.slice(1, 0, width).split_last(heads, dim);
  kda.k = conv.slice(1, width, 2 * width).split_last(heads, dim);
  kda.v = conv.slice(1, 2 * width, 3 * width).split_last(heads, dim);
  if (Status s = sequence::kda(device, kda); !s.ok()) {
    return s;
  }
  return sequence::kda_output(device, {.in = kda.out,
                                       .weight = args.norm_weight,
                                       .eps = args.norm_eps,
                                       .gate_logit = args.gate_logit,
                                       .out = kda.out});
}

/// Decode: the state once in and once out; prefill: the chunk form's count, C = 64 (spec 2.2), and
/// every input and result once.
Work kda_work(int64_t tokens, int64_t sequences, int64_t heads, int64_t dim, double inputs) {
  const auto n = static_cast<double>(sequences);
  const auto t = static_cast<double>(tokens);
  const auto h = static_cast<double>(heads);
  const auto d = static_cast<double>(dim);
  constexpr double kC = 64.0;
  const double states = 8.0 * n * h * d * d;
  if (tokens == 1) {
    return {states, 7.0 * n * h * d * d};
  }
  return {states + 4.0 * inputs * n * t * h * d,
          n * t / kC * h * (12.0 * kC * kC * kC + 8.0 * kC * kC * d + 6.0 * kC * d * d)};
}

}  // namespace

Status OpsBench::linear(int64_t tokens) {
  const Result<dense::Activations> precision = activations(false);
  const int64_t rows = config_.kda.width();
  std::vector<Tensor> memory;
  const Result<MatrixView> weight = matrix(flags_.dense, rows, config_.hidden, memory);
  if (!precision.ok() || !weight.ok()) {
    return precision.ok() ? weight.status() : precision.status();
  }
  const Tensor in = random({tokens, config_.hidden});
  Tensor out = zeros(DType::kF32, {tokens, rows});
  const Work work{static_cast<double>(weight->bytes()),
                  2.0 * static_cast<double>(tokens * rows * config_.hidden)};
  return run(fmt::format("linear {} [{} x {}] T={}", flags_.dense, rows, config_.hidden, tokens),
             work, out, [&] {
               return dense::linear(device_, {in.view(), *weight, out.view()}, *precision);
             });
}

Status OpsBench::norm(int64_t tokens) {
  const Tensor in = random({tokens, config_.hidden});
  const Tensor weight = random({config_.hidden}, 1.0);
  Tensor out = zeros(DType::kF32, {tokens, config_.hidden});
  const auto elements = static_cast<double>(tokens * config_.hidden);
  return run(fmt::format("rms_norm T={}", tokens), {8.0 * elements, 4.0 * elements}, out, [&] {
    return dense::rms_norm(device_, {in.view(), weight.view(), config_.norm_eps, out.view()});
  });
}

Status OpsBench::kda(int64_t tokens, int64_t sequences) {
  const int64_t heads = config_.kda.heads;
  const int64_t dim = config_.kda.head_dim;
  const int64_t width = heads * dim;
  const int64_t rows = tokens * sequences;
  const Result<dense::Activations> precision = activations(false);
  if (!precision.ok()) {
    return precision.status();
  }
  Tensor qkv = random({rows, 3 * width});
  const Tensor conv_weight = random({4, 3 * width});
  const Tensor decay = random({rows, heads, dim}, -4.0);
  const Tensor beta = random({rows, heads});
  const Tensor a_log = random({heads});
  const Tensor dt_bias = random({heads, dim});
  const Tensor norm = random({dim}, 1.0);
  const Tensor gate = random({rows, heads, dim});
  Tensor windows = zeros(DType::kF32, {sequences, 3, 3 * width});
  Tensor states = zeros(DType::kF32, {sequences, heads, dim, dim});
  Tensor conv = zeros(DType::kF32, {rows, 3 * width});
  Tensor out = zeros(DType::kF32, {rows, heads, dim});
  const std::vector<int64_t> cu = ends(tokens, sequences);
  const std::vector<int64_t> starts(static_cast<size_t>(sequences), 0);
  const std::vector<int32_t> slots = first_integers(sequences);
  sequence::KdaFusedArgs args;
  args.qkv = qkv.view();
  args.conv_weight = conv_weight.view();
  args.windows = windows.view();
  args.norm_weight = norm.view();
  args.norm_eps = config_.norm_eps;
  args.gate_logit = gate.view();
  args.precision = *precision == dense::Activations::kBf16 ? sequence::KdaPrecision::kBf16
                                                           : sequence::KdaPrecision::kExact;
  args.kda.gate = config_.kda.gate == checkpoint::GateKind::kBounded
                      ? sequence::DecayGate::kBounded
                      : sequence::DecayGate::kSoftplus;
  args.kda.q = qkv.view().slice(1, 0, width).split_last(heads, dim);
  args.kda.k = qkv.view().slice(1, width, 2 * width).split_last(heads, dim);
  args.kda.v = qkv.view().slice(1, 2 * width, 3 * width).split_last(heads, dim);
  args.kda.decay_logit = decay.view();
  args.kda.beta_logit = beta.view();
  args.kda.a_log = a_log.view();
  args.kda.dt_bias = dt_bias.view();
  args.kda.cu_seqlens = cu;
  args.kda.starts = starts;
  args.kda.slots = slots;
  args.kda.states = states.view();
  args.kda.out = out.view();
  // On a CPU the recurrence is timed by itself; a GPU's kernels hold its neighbours too.
  const bool whole = device_.cuda != nullptr || results_ != nullptr;
  const std::string name = whole ? "kda with conv, norm" : "kda";
  return run(fmt::format("{} H={} B={} T={}", name, heads, sequences, tokens),
             kda_work(tokens, sequences, heads, dim, whole ? 6.0 : 5.0), out, [&] {
               return whole ? kda_middle(device_, args, conv) : sequence::kda(device_, args.kda);
             });
}

Status OpsBench::mla(int64_t tokens, int64_t sequences, int64_t context) {
  const auto& mla = config_.mla;
  std::vector<Tensor> memory;
  const Result<MatrixView> kv_b =
      matrix(flags_.dense, mla.heads * (mla.nope_dim + mla.value_dim), mla.kv_lora, memory);
  const Result<dense::Activations> precision = activations(false);
  if (!kv_b.ok() || !precision.ok()) {
    return kv_b.ok() ? precision.status() : kv_b.status();
  }
  const bool bf16 = device_.cuda != nullptr && *precision == dense::Activations::kBf16 &&
                    model::takes_bf16_latents(config_, *device_.cuda);
  const int64_t length = context + tokens;
  const int64_t pages = (length + sequence::kLatentPage - 1) / sequence::kLatentPage;
  Tensor pool = zeros(bf16 ? DType::kBf16 : DType::kF32,
                      {sequences * pages, sequence::kLatentPage, mla.latent_dim()});
  const std::vector<int32_t> all_pages = first_integers(sequences * pages);
  std::vector<std::span<const int32_t>> tables;
  const Tensor latents = random({length, mla.latent_dim()});
  for (int64_t n = 0; n < sequences; ++n) {  // all alike, in pages of their own
    tables.push_back(
        std::span(all_pages).subspan(static_cast<size_t>(n * pages), static_cast<size_t>(pages)));
    const int64_t cu[] = {0, length};
    const int64_t starts[] = {0};
    if (Status s = sequence::mla_append(
            device_, {latents.view(), cu, starts, {pool.view(), std::span(tables).last(1)}});
        !s.ok()) {
      return s;
    }
  }
  const int64_t rows = tokens * sequences;
  const Tensor q = random({rows, mla.heads, mla.query_dim()});
  Tensor out = zeros(DType::kF32, {rows, mla.heads, mla.value_dim});
  const std::vector<int64_t> cu = ends(tokens, sequences);
  const std::vector<int64_t> starts(static_cast<size_t>(sequences), context);
  sequence::MlaArgs args;
  args.q = q.view();
  args.kv_b = *kv_b;
  args.value_dim = mla.value_dim;
  args.scale = 1.0f / std::sqrt(static_cast<float>(mla.query_dim()));
  args.cu_seqlens = cu;
  args.starts = starts;
  args.pages = {pool.view(), tables, all_pages};
  args.out = out.view();
  const auto t = static_cast<double>(tokens);
  const auto n = static_cast<double>(sequences);
  const auto heads = static_cast<double>(mla.heads);
  const double pairs = n * (t * static_cast<double>(context) + t * (t + 1.0) / 2.0);
  const double latent_bytes = n * static_cast<double>(dtype_bytes(pool.view().dtype())) *
                              static_cast<double>(length * mla.latent_dim());
  const double per_pair = tokens == 1
                              ? 2.0 * heads * static_cast<double>(mla.latent_dim() + mla.kv_lora)
                              : 2.0 * heads * static_cast<double>(mla.query_dim() + mla.value_dim);
  return run(fmt::format("mla H={} B={} T={} after {}", mla.heads, sequences, tokens, context),
             {latent_bytes + static_cast<double>(kv_b->bytes()), pairs * per_pair}, out,
             [&] { return sequence::mla(device_, args); });
}

Status OpsBench::attn_res(int64_t tokens) {
  constexpr int64_t kSources = 9;
  std::vector<Tensor> sources;
  std::vector<ConstTensorView> views;
  for (int64_t i = 0; i < kSources; ++i) {
    sources.push_back(random({tokens, config_.hidden}));
    views.push_back(sources.back().view());
  }
  const Tensor query = random({config_.hidden});
  Tensor out = zeros(DType::kF32, {tokens, config_.hidden});
  const auto elements = static_cast<double>(tokens * config_.hidden);
  return run(fmt::format("attn_res of {} sources T={}", kSources, tokens),
             {4.0 * elements * (kSources + 1), 6.0 * elements * kSources}, out, [&] {
               return depth::attn_res(device_, {views, query.view(), 1e-5f, out.view()});
             });
}

Status OpsBench::latent_moe(int64_t tokens, const model::ModelWeights& weights) {
  const Result<dense::Activations> experts = activations(true);
  const Result<dense::Activations> dense = activations(false);
  if (!experts.ok() || !dense.ok()) {
    return experts.ok() ? dense.status() : experts.status();
  }
  const auto& moe = config_.moe;
  const model::MoeWeights& layer = weights.layers.back().moe;
  const Tensor in = random({tokens, config_.hidden});
  Tensor out = zeros(DType::kF32, {tokens, config_.hidden});
  Tensor ids = zeros(DType::kI32, {tokens, moe.top_k});
  Tensor route_weights = zeros(DType::kF32, {tokens, moe.top_k});
  const width::LatentMoeArgs args{.weights = layer.view(),
                                  .activation = {},
                                  .scaling_factor = moe.scaling,
                                  .expert_precision = *experts,
                                  .dense_precision = *dense,
                                  .in = in.view(),
                                  .out = out.view(),
                                  .ids = ids.view(),
                                  .route_weights = route_weights.view()};
  const auto visits = static_cast<double>(tokens * moe.top_k);
  const auto count = static_cast<double>(moe.experts);
  const double hit = count * (1.0 - std::pow(1.0 - static_cast<double>(moe.top_k) / count,
                                             static_cast<double>(tokens)));
  const auto& expert = layer.experts.front();
  const auto expert_bytes =
      static_cast<double>(expert.gate.bytes() + expert.up.bytes() + expert.down.bytes());
  double bytes = hit * expert_bytes;
  double elements = 0.0;
  for (const MatrixView& m : {layer.router, layer.latent_down, layer.latent_up, layer.shared.gate,
                              layer.shared.up, layer.shared.down}) {
    bytes += m.empty() ? 0.0 : static_cast<double>(m.bytes());
    elements += static_cast<double>(m.rows * m.cols);
  }
  const double flops =
      2.0 * (visits * 3.0 * static_cast<double>(expert.gate.rows * expert.gate.cols) +
             static_cast<double>(tokens) * elements);
  return run(fmt::format("latent_moe {} of {} T={}", moe.top_k, moe.experts, tokens),
             {bytes, flops}, out, [&] { return width::latent_moe(device_, args); });
}

}  // namespace triax::app
