#include "checkpoint/tensor_specs.h"

#include <algorithm>
#include <array>
#include <utility>

namespace triax::checkpoint {
namespace {

constexpr std::array<std::string_view, kParts> kPartNames = {
    "embedding", "lm head", "KDA",       "MLA",   "router",   "latent projections",
    "experts",   "shared",  "dense MLP", "norms", "attn res",
};

/// K3 pads A_log to this many entries.
constexpr int64_t kHeadPadding = 128;

using Shape = std::vector<int64_t>;

class SpecList {
 public:
  explicit SpecList(const ModelConfig& config)
      : config_(config),
        small_(config.family == Family::kKimiK3 ? ElementType::kF32 : ElementType::kBf16) {}

  std::vector<TensorSpec> take() && { return std::move(specs_); }

  void model() {
    matrix("model.embed_tokens", Part::kEmbedding, Role::kDense, config_.vocab, config_.hidden);
    for (int64_t i = 0; i < config_.layer_count(); ++i) {
      layer(i);
    }
    vector("model.norm.weight", Part::kNorm, {config_.hidden});
    if (config_.attn_res_block > 0) {
      attn_res("model.output_attn_res");
    }
    if (!config_.tie_word_embeddings) {
      matrix("lm_head", Part::kLmHead, Role::kDense, config_.vocab, config_.hidden);
    }
  }

 private:
  void layer(int64_t index) {
    const std::string at = "model.layers." + std::to_string(index) + ".";
    vector(at + "input_layernorm.weight", Part::kNorm, {config_.hidden});
    vector(at + "post_attention_layernorm.weight", Part::kNorm, {config_.hidden});
    if (config_.attn_res_block > 0) {
      attn_res(at + "self_attention_res");
      attn_res(at + "mlp_res");
    }
    if (config_.layers[static_cast<size_t>(index)] == LayerKind::kKda) {
      kda(at + "self_attn.");
    } else {
      mla(at + "self_attn.");
    }
    if (config_.is_moe(index)) {
      moe(at + "block_sparse_moe.");
    } else {
      mlp(at + "mlp.", Part::kDenseMlp, config_.dense_width);
    }
  }

  void attn_res(const std::string& name) {
    vector(name + "_norm.weight", Part::kAttnRes, {config_.hidden});
    vector(name + "_proj.weight", Part::kAttnRes, {1, config_.hidden}).accepted = {
        {config_.hidden}};
  }

  void kda(const std::string& at) {
    const KdaConfig& kda = config_.kda;
    const int64_t d = config_.hidden;
    const int64_t width = kda.width();
    for (const char* name : {"q", "k", "v"}) {
      matrix(at + name + "_proj", Part::kKda, Role::kDense, width, d);
      vector(at + name + "_conv1d.weight", Part::kKda, {width, 1, kda.conv_taps}, small_)
          .accepted = {{width, kda.conv_taps}};
    }
    matrix(at + "f_a_proj", Part::kKda, Role::kDense, kda.head_dim, d);
    matrix(at + "f_b_proj", Part::kKda, Role::kDense, width, kda.head_dim);
    if (kda.full_rank_gate) {
      matrix(at + "g_proj", Part::kKda, Role::kDense, width, d);
    } else {
      matrix(at + "g_a_proj", Part::kKda, Role::kDense, kda.head_dim, d);
      matrix(at + "g_b_proj", Part::kKda, Role::kDense, width, kda.head_dim);
    }
    matrix(at + "b_proj", Part::kKda, Role::kPlain, kda.heads, d);
    a_log(at + "A_log");
    vector(at + "dt_bias", Part::kKda, {width}, ElementType::kF32).accepted = {
        {kda.heads, kda.head_dim}};
    vector(at + "o_norm.weight", Part::kKda, {kda.head_dim}, small_);
    matrix(at + "o_proj", Part::kKda, Role::kDense, d, width);
  }

  void a_log(std::string name) {
    const int64_t heads = config_.kda.heads;
    const Shape padded = {std::max(heads, kHeadPadding)};
    const Shape broadcast = {1, 1, heads, 1};
    const bool k3 = config_.family == Family::kKimiK3;
    vector(std::move(name), Part::kKda, k3 ? padded : broadcast, ElementType::kF32).accepted = {
        k3 ? broadcast : padded, {heads}};
  }

  void mla(const std::string& at) {
    const MlaConfig& mla = config_.mla;
    const int64_t d = config_.hidden;
    const int64_t queries = mla.heads * mla.query_dim();
    const int64_t values = mla.heads * mla.value_dim;
    if (mla.q_lora > 0) {
      matrix(at + "q_a_proj", Part::kMla, Role::kDense, mla.q_lora, d);
      vector(at + "q_a_layernorm.weight", Part::kMla, {mla.q_lora});
      matrix(at + "q_b_proj", Part::kMla, Role::kDense, queries, mla.q_lora);
    } else {
      matrix(at + "q_proj", Part::kMla, Role::kDense, queries, d);
    }
    matrix(at + "kv_a_proj_with_mqa", Part::kMla, Role::kDense, mla.latent_dim(), d);
    vector(at + "kv_a_layernorm.weight", Part::kMla, {mla.kv_lora});
    matrix(at + "kv_b_proj", Part::kMla, Role::kDense, mla.heads * (mla.nope_dim + mla.value_dim),
           mla.kv_lora);
    if (mla.output_gate) {
      matrix(at + "g_proj", Part::kMla, Role::kDense, values, d);
    }
    matrix(at + "o_proj", Part::kMla, Role::kDense, d, values);
  }

  void moe(const std::string& at) {
    const MoeConfig& moe = config_.moe;
    const int64_t d = config_.hidden;
    matrix(at + "gate", Part::kRouter, Role::kPlain, moe.experts, d);
    vector(at + "gate.e_score_correction_bias", Part::kRouter, {moe.experts}, small_);
    if (moe.latent > 0) {
      matrix(at + "routed_expert_down_proj", Part::kLatent, Role::kDense, moe.latent, d);
      matrix(at + "routed_expert_up_proj", Part::kLatent, Role::kDense, d, moe.latent);
      if (moe.latent_norm) {
        vector(at + "routed_expert_norm.weight", Part::kLatent, {moe.latent});
      }
    }
    if (moe.shared_experts > 0) {
      mlp(at + "shared_experts.", Part::kShared, moe.shared_width());
    }
    for (int64_t e = 0; e < moe.experts; ++e) {
      const std::string expert = at + "experts." + std::to_string(e) + ".";
      matrix(expert + "w1", Part::kExperts, Role::kExpert, moe.width, config_.expert_io());
      matrix(expert + "w2", Part::kExperts, Role::kExpert, config_.expert_io(), moe.width);
      matrix(expert + "w3", Part::kExperts, Role::kExpert, moe.width, config_.expert_io());
    }
  }

  void mlp(const std::string& at, Part part, int64_t width) {
    matrix(at + "gate_proj", part, Role::kDense, width, config_.hidden);
    matrix(at + "up_proj", part, Role::kDense, width, config_.hidden);
    matrix(at + "down_proj", part, Role::kDense, config_.hidden, width);
  }

  void matrix(std::string name, Part part, Role role, int64_t rows, int64_t cols) {
    specs_.push_back({std::move(name), part, role, {rows, cols}, {}, ElementType::kBf16});
  }

  TensorSpec& vector(std::string name, Part part, Shape shape,
                     ElementType published = ElementType::kBf16) {
    specs_.push_back({std::move(name), part, Role::kVector, std::move(shape), {}, published});
    return specs_.back();
  }

  const ModelConfig& config_;
  ElementType small_;  // of the tensors that K3 keeps in float32
  std::vector<TensorSpec> specs_;
};

}  // namespace

std::string_view part_name(Part part) { return kPartNames[static_cast<size_t>(part)]; }

std::vector<TensorSpec> tensor_specs(const ModelConfig& config) {
  SpecList list(config);
  list.model();
  return std::move(list).take();
}

}  // namespace triax::checkpoint
