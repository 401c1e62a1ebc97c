// Binding: names of the checkpoint to places in the layers. What is absent by config stays empty.
#include "model/weights.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

namespace triax::model {
namespace {

using checkpoint::LayerKind;
using checkpoint::ModelConfig;

/// Looks names up under a prefix; remembers the first failure, so that a caller asks once.
class Binder {
 public:
  explicit Binder(const checkpoint::Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  void enter(std::string prefix) { prefix_ = std::move(prefix); }

  MatrixView matrix(std::string_view name) {
    Result<MatrixView> found = checkpoint_.matrix(fmt::format("{}{}", prefix_, name));
    return found.ok() ? *found : fail<MatrixView>(found.status());
  }

  /// A vector as an array of that shape.
  Tensor array(std::string_view name, std::initializer_list<int64_t> shape) {
    Result<std::vector<float>> values = checkpoint_.vector(fmt::format("{}{}", prefix_, name));
    if (!values.ok()) {
      return fail<Tensor>(values.status());
    }
    Tensor tensor = Tensor::f32(shape);
    check(tensor.view().elements() == static_cast<int64_t>(values->size()),
          "bind: a vector that passed validation has another size");
    std::memcpy(tensor.data<float>(), values->data(), values->size() * sizeof(float));
    return tensor;
  }

  const Status& status() const { return status_; }

 private:
  template <typename T>
  T fail(const Status& status) {
    if (status_.ok()) {
      status_ = status;
    }
    return T();
  }

  const checkpoint::Checkpoint& checkpoint_;
  std::string prefix_;
  Status status_;
};

/// The pseudo-query times the weight of the norm in front of it.
Tensor depth_query(Binder& bind, const std::string& norm, const std::string& proj, int64_t hidden) {
  const Tensor weight = bind.array(norm, {hidden});
  Tensor query = bind.array(proj, {hidden});
  if (bind.status().ok()) {
    for (int64_t i = 0; i < hidden; ++i) {
      query.data<float>()[i] *= weight.data<float>()[i];
    }
  }
  return query;
}

/// The three convolutions side by side, taps outermost: [C, 1, 4] x 3 to [4, 3 C].
Tensor join_convolutions(Binder& bind, int64_t channels, int64_t taps) {
  Tensor joined = Tensor::f32({taps, 3 * channels});
  int64_t offset = 0;
  for (const char* name : {"q_conv1d", "k_conv1d", "v_conv1d"}) {
    const Tensor weight = bind.array(name, {channels, taps});
    if (!bind.status().ok()) {
      return joined;
    }
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t tap = 0; tap < taps; ++tap) {
        joined.data<float>()[tap * 3 * channels + offset + c] =
            weight.data<float>()[c * taps + tap];
      }
    }
    offset += channels;
  }
  return joined;
}

KdaWeights bind_kda(Binder& bind, const ModelConfig& config) {
  const auto& kda = config.kda;
  KdaWeights w;
  w.q = bind.matrix("q_proj");
  w.k = bind.matrix("k_proj");
  w.v = bind.matrix("v_proj");
  w.o = bind.matrix("o_proj");
  w.b = bind.matrix("b_proj");
  w.f_a = bind.matrix("f_a_proj");
  w.f_b = bind.matrix("f_b_proj");
  if (kda.full_rank_gate) {
    w.g = bind.matrix("g_proj");
  } else {
    w.g_a = bind.matrix("g_a_proj");
    w.g_b = bind.matrix("g_b_proj");
  }
  w.conv = join_convolutions(bind, kda.width(), kda.conv_taps);
  w.a_log = bind.array("A_log", {kda.heads});
  w.dt_bias = bind.array("dt_bias", {kda.heads, kda.head_dim});
  w.o_norm = bind.array("o_norm", {kda.head_dim});
  return w;
}

MlaWeights bind_mla(Binder& bind, const ModelConfig& config) {
  const auto& mla = config.mla;
  MlaWeights w;
  if (mla.q_lora > 0) {
    w.q_a = bind.matrix("q_a_proj");
    w.q_b = bind.matrix("q_b_proj");
    w.q_norm = bind.array("q_a_layernorm", {mla.q_lora});
  } else {
    w.q = bind.matrix("q_proj");
  }
  w.kv_a = bind.matrix("kv_a_proj_with_mqa");
  w.kv_b = bind.matrix("kv_b_proj");
  w.kv_norm = bind.array("kv_a_layernorm", {mla.kv_lora});
  if (mla.output_gate) {
    w.g = bind.matrix("g_proj");
  }
  w.o = bind.matrix("o_proj");
  return w;
}

width::MlpWeights bind_mlp(Binder& bind, const std::string& name) {
  return {.gate = bind.matrix(name + "gate_proj"),
          .up = bind.matrix(name + "up_proj"),
          .down = bind.matrix(name + "down_proj")};
}

MoeWeights bind_moe(Binder& bind, const ModelConfig& config) {
  const auto& moe = config.moe;
  MoeWeights w;
  w.router = bind.matrix("gate");
  w.router_bias = bind.array("gate.e_score_correction_bias", {moe.experts});
  if (moe.latent > 0) {
    w.latent_down = bind.matrix("routed_expert_down_proj");
    w.latent_up = bind.matrix("routed_expert_up_proj");
  }
  if (moe.latent_norm) {
    w.latent_norm = bind.array("routed_expert_norm", {moe.latent});
  }
  w.experts.reserve(static_cast<size_t>(moe.experts));
  for (int64_t e = 0; e < moe.experts; ++e) {
    const std::string name = fmt::format("experts.{}.", e);
    w.experts.push_back({.gate = bind.matrix(name + "w1"),
                         .up = bind.matrix(name + "w3"),
                         .down = bind.matrix(name + "w2")});
  }
  if (moe.shared_experts > 0) {
    w.shared = bind_mlp(bind, "shared_experts.");
  }
  return w;
}

LayerWeights bind_layer(Binder& bind, const ModelConfig& config, int64_t index) {
  const std::string prefix = fmt::format("model.layers.{}.", index);
  LayerWeights layer;
  layer.kind = config.layers[static_cast<size_t>(index)];
  layer.dense = !config.is_moe(index);
  bind.enter(prefix);
  layer.attn_norm = bind.array("input_layernorm", {config.hidden});
  layer.ffn_norm = bind.array("post_attention_layernorm", {config.hidden});
  if (config.attn_res_block > 0) {
    layer.attn_query =
        depth_query(bind, "self_attention_res_norm", "self_attention_res_proj", config.hidden);
    layer.ffn_query = depth_query(bind, "mlp_res_norm", "mlp_res_proj", config.hidden);
  }
  bind.enter(prefix + "self_attn.");
  if (layer.kind == LayerKind::kKda) {
    layer.kda = bind_kda(bind, config);
  } else {
    layer.mla = bind_mla(bind, config);
  }
  if (layer.dense) {
    bind.enter(prefix + "mlp.");
    layer.mlp = bind_mlp(bind, "");
  } else {
    bind.enter(prefix + "block_sparse_moe.");
    layer.moe = bind_moe(bind, config);
  }
  return layer;
}

}  // namespace

width::LatentMoeWeights MoeWeights::view() const {
  width::LatentMoeWeights view;
  view.router = router;
  view.router_bias = router_bias.view();
  view.experts = experts;
  view.latent_down = latent_down;
  view.latent_up = latent_up;
  view.latent_norm = latent_norm.view();
  view.shared = shared;
  view.tables = tables;
  return view;
}

Result<ModelWeights> bind_weights(std::shared_ptr<const checkpoint::Checkpoint> checkpoint) {
  Binder bind(*checkpoint);
  ModelWeights weights;
  weights.config = checkpoint->config();
  const ModelConfig& config = weights.config;
  weights.embedding = bind.matrix("model.embed_tokens");
  weights.lm_head = bind.matrix("lm_head");
  weights.final_norm = bind.array("model.norm", {config.hidden});
  if (config.attn_res_block > 0) {
    weights.final_query = depth_query(bind, "model.output_attn_res_norm",
                                      "model.output_attn_res_proj", config.hidden);
  }
  for (int64_t i = 0; i < config.layer_count() && bind.status().ok(); ++i) {
    weights.layers.push_back(bind_layer(bind, config, i));
  }
  if (!bind.status().ok()) {
    return bind.status();
  }
  weights.checkpoint = std::move(checkpoint);
  return weights;
}

}  // namespace triax::model
