#include "model/footprint.h"

namespace triax::model {
namespace {

using checkpoint::LayerKind;

/// Sums one quantity over matrices.
template <typename F>
double sum(std::initializer_list<MatrixView> matrices, F&& quantity) {
  double total = 0.0;
  for (const MatrixView& matrix : matrices) {
    total += matrix.empty() ? 0.0 : quantity(matrix);
  }
  return total;
}

double bytes_of(const MatrixView& m) { return static_cast<double>(m.bytes()); }
double flops_of(const MatrixView& m) {
  return 2.0 * static_cast<double>(m.rows) * static_cast<double>(m.cols);
}

/// The layer's matrices but for the routed experts.
template <typename F>
double dense_part(const LayerWeights& w, F&& quantity) {
  return sum(
      {w.kda.q,          w.kda.k,           w.kda.v,         w.kda.o,           w.kda.b,
       w.kda.f_a,        w.kda.f_b,         w.kda.g,         w.kda.g_a,         w.kda.g_b,
       w.mla.q,          w.mla.q_a,         w.mla.q_b,       w.mla.kv_a,        w.mla.kv_b,
       w.mla.g,          w.mla.o,           w.mlp.gate,      w.mlp.up,          w.mlp.down,
       w.moe.router,     w.moe.latent_down, w.moe.latent_up, w.moe.shared.gate, w.moe.shared.up,
       w.moe.shared.down},
      quantity);
}

/// The experts that one token visits; all have the same size.
template <typename F>
double expert_part(const ModelWeights& weights, const LayerWeights& w, F&& quantity) {
  if (w.moe.experts.empty()) {
    return 0.0;
  }
  const width::MlpWeights& expert = w.moe.experts.front();
  return static_cast<double>(weights.config.moe.top_k) *
         sum({expert.gate, expert.up, expert.down}, quantity);
}

}  // namespace

DecodeBytes decode_bytes(const ModelWeights& weights, int64_t context) {
  const auto& config = weights.config;
  const double head = static_cast<double>(config.kda.head_dim);
  DecodeBytes bytes;
  bytes.dense = bytes_of(weights.lm_head);
  for (const LayerWeights& layer : weights.layers) {
    bytes.dense += dense_part(layer, bytes_of);
    bytes.experts += expert_part(weights, layer, bytes_of);
    if (layer.kind == LayerKind::kKda) {
      bytes.state += 4.0 * static_cast<double>(config.kda.heads) * head * head +
                     4.0 * 3.0 * 3.0 * static_cast<double>(config.kda.width());
    } else {
      bytes.latents +=
          4.0 * static_cast<double>(config.mla.latent_dim()) * static_cast<double>(context);
    }
  }
  return bytes;
}

double prefill_flops(const ModelWeights& weights, int64_t tokens) {
  const auto& config = weights.config;
  const auto t = static_cast<double>(tokens);
  const double head = static_cast<double>(config.kda.head_dim);
  double flops = flops_of(weights.lm_head);
  for (const LayerWeights& layer : weights.layers) {
    flops += t * (dense_part(layer, flops_of) + expert_part(weights, layer, flops_of));
    if (layer.kind == LayerKind::kKda) {
      flops += t * 7.0 * static_cast<double>(config.kda.heads) * head * head;
    } else {
      const double pairs = t * (t + 1.0) / 2.0;
      flops += pairs * 2.0 * static_cast<double>(config.mla.heads) *
               static_cast<double>(config.mla.query_dim() + config.mla.value_dim);
    }
  }
  return flops;
}

}  // namespace triax::model
