#include "plan/weights.h"

#include <algorithm>
#include <numeric>

namespace triax::plan {
namespace {

using checkpoint::LayerKind;
using checkpoint::ModelConfig;
using checkpoint::Part;

double real(int64_t n) { return static_cast<double>(n); }

/// Collects the matrices of a layer.
class List {
 public:
  List(const ModelConfig& config, const Formats& formats)
      : config_(config),
        formats_(formats),
        small_(config.family == checkpoint::Family::kKimiK3 ? Format::kF32 : Format::kBf16),
        d_(real(config.hidden)) {}

  std::vector<Matrix> take() && { return std::move(list_); }

  void add(const char* name, Part part, Cut cut, double rows, double cols) {
    list_.push_back({name, part, cut, rows, cols, 1, formats_.dense});
  }
  void plain(const char* name, Part part, Cut cut, double rows, double cols,
             Format format = Format::kBf16) {
    list_.push_back({name, part, cut, rows, cols, 1, format});
  }

  void kda() {
    const checkpoint::KdaConfig& kda = config_.kda;
    const double width = real(kda.width()), rank = real(kda.head_dim);
    for (const char* name : {"q_proj", "k_proj", "v_proj"}) {
      add(name, Part::kKda, Cut::kTensor, width, d_);
    }
    plain("conv1d", Part::kKda, Cut::kTensor, 3 * width, real(kda.conv_taps), small_);
    add("f_a_proj", Part::kKda, Cut::kReplicated, rank, d_);
    add("f_b_proj", Part::kKda, Cut::kTensor, width, rank);
    if (kda.full_rank_gate) {
      add("g_proj", Part::kKda, Cut::kTensor, width, d_);
    } else {
      add("g_a_proj", Part::kKda, Cut::kReplicated, rank, d_);
      add("g_b_proj", Part::kKda, Cut::kTensor, width, rank);
    }
    plain("b_proj", Part::kKda, Cut::kTensor, real(kda.heads), d_);
    const int64_t padded = config_.family == checkpoint::Family::kKimiK3
                               ? std::max<int64_t>(kda.heads, 128)
                               : kda.heads;
    plain("A_log", Part::kKda, Cut::kReplicated, 1, real(padded), Format::kF32);
    plain("dt_bias", Part::kKda, Cut::kTensor, 1, width, Format::kF32);
    plain("o_norm", Part::kKda, Cut::kReplicated, 1, rank, small_);
    add("o_proj", Part::kKda, Cut::kTensor, d_, width);
  }

  void mla() {
    const checkpoint::MlaConfig& mla = config_.mla;
    const double queries = real(mla.heads * mla.query_dim());
    const double values = real(mla.heads * mla.value_dim);
    if (mla.q_lora > 0) {
      add("q_a_proj", Part::kMla, Cut::kReplicated, real(mla.q_lora), d_);
      plain("q_a_layernorm", Part::kMla, Cut::kReplicated, 1, real(mla.q_lora));
      add("q_b_proj", Part::kMla, Cut::kTensor, queries, real(mla.q_lora));
    } else {
      add("q_proj", Part::kMla, Cut::kTensor, queries, d_);
    }
    add("kv_a_proj", Part::kMla, Cut::kReplicated, real(mla.latent_dim()), d_);
    plain("kv_a_layernorm", Part::kMla, Cut::kReplicated, 1, real(mla.kv_lora));
    add("kv_b_proj", Part::kMla, Cut::kTensor, real(mla.heads * (mla.nope_dim + mla.value_dim)),
        real(mla.kv_lora));
    if (mla.output_gate) {
      add("g_proj", Part::kMla, Cut::kTensor, values, d_);
    }
    add("o_proj", Part::kMla, Cut::kTensor, d_, values);
  }

  void mlp(Part part, double width) {
    add("gate_proj", part, Cut::kTensor, width, d_);
    add("up_proj", part, Cut::kTensor, width, d_);
    add("down_proj", part, Cut::kTensor, d_, width);
  }

  void moe() {
    const checkpoint::MoeConfig& moe = config_.moe;
    const double latent = real(moe.latent), io = real(config_.expert_io());
    plain("gate", Part::kRouter, Cut::kReplicated, real(moe.experts), d_);
    plain("e_score_correction_bias", Part::kRouter, Cut::kReplicated, 1, real(moe.experts), small_);
    if (moe.latent > 0) {
      add("routed_expert_down_proj", Part::kLatent, Cut::kReplicated, latent, d_);
      add("routed_expert_up_proj", Part::kLatent, Cut::kReplicated, d_, latent);
      if (moe.latent_norm) {
        plain("routed_expert_norm", Part::kLatent, Cut::kReplicated, 1, latent);
      }
    }
    if (moe.shared_experts > 0) {
      mlp(Part::kShared, real(moe.shared_width()));
    }
    for (const char* name : {"w1", "w3", "w2"}) {
      list_.push_back({name, Part::kExperts, Cut::kExperts, real(moe.width), io, real(moe.experts),
                       formats_.experts});
    }
  }

  /// Norm weight and pseudo-query of one mix.
  void attn_res(const char* name) { plain(name, Part::kAttnRes, Cut::kReplicated, 2, d_); }

 private:
  const ModelConfig& config_;
  const Formats& formats_;
  Format small_;  // of the vectors that K3 keeps in float32
  double d_;
  std::vector<Matrix> list_;
};

void add_to(const std::vector<Matrix>& matrices, PartBytes* bytes) {
  for (const Matrix& matrix : matrices) {
    (*bytes)[static_cast<size_t>(matrix.part)] += matrix.bytes();
  }
}

void add_to(const std::vector<Matrix>& matrices, const Sharding& sharding, PartBytes* bytes) {
  for (const Matrix& matrix : matrices) {
    (*bytes)[static_cast<size_t>(matrix.part)] += matrix.gpu_bytes(sharding);
  }
}

}  // namespace

double Matrix::gpu_bytes(const Sharding& sharding) const {
  switch (cut) {
    case Cut::kReplicated:
      return bytes();
    case Cut::kTensor:
      return bytes() / real(sharding.tp);
    case Cut::kExperts:
      return bytes() / real(sharding.stage_gpus());
  }
  return bytes();
}

std::vector<Matrix> layer_matrices(const ModelConfig& config, const Formats& formats,
                                   int64_t index) {
  List list(config, formats);
  list.plain("input_layernorm", Part::kNorm, Cut::kReplicated, 1, real(config.hidden));
  list.plain("post_attention_layernorm", Part::kNorm, Cut::kReplicated, 1, real(config.hidden));
  if (config.attn_res_block > 0) {
    list.attn_res("self_attention_res");
    list.attn_res("mlp_res");
  }
  if (config.layers[static_cast<size_t>(index)] == LayerKind::kKda) {
    list.kda();
  } else {
    list.mla();
  }
  if (config.is_moe(index)) {
    list.moe();
  } else {
    list.mlp(Part::kDenseMlp, real(config.dense_width));
  }
  return std::move(list).take();
}

std::vector<Matrix> embedding_matrices(const ModelConfig& config) {
  const Formats bf16;
  List list(config, bf16);
  list.add("embed_tokens", Part::kEmbedding, Cut::kTensor, real(config.vocab), real(config.hidden));
  return std::move(list).take();
}

std::vector<Matrix> head_matrices(const ModelConfig& config, const Formats& formats) {
  List list(config, formats);
  list.plain("norm", Part::kNorm, Cut::kReplicated, 1, real(config.hidden));
  if (config.attn_res_block > 0) {
    list.attn_res("output_attn_res");
  }
  if (!config.tie_word_embeddings) {
    list.add("lm_head", Part::kLmHead, Cut::kTensor, real(config.vocab), real(config.hidden));
  }
  return std::move(list).take();
}

PartBytes model_bytes(const ModelConfig& config, const Formats& formats) {
  PartBytes bytes{};
  add_to(embedding_matrices(config), &bytes);
  for (int64_t i = 0; i < config.layer_count(); ++i) {
    add_to(layer_matrices(config, formats, i), &bytes);
  }
  add_to(head_matrices(config, formats), &bytes);
  return bytes;
}

PartBytes stage_gpu_bytes(const ModelConfig& config, const Formats& formats,
                          const Sharding& sharding, int64_t stage) {
  PartBytes bytes{};
  if (stage == 0 || (stage == sharding.pp - 1 && config.tie_word_embeddings)) {
    add_to(embedding_matrices(config), sharding, &bytes);
  }
  const int64_t end = stage_begin(config, sharding, stage + 1);
  for (int64_t i = stage_begin(config, sharding, stage); i < end; ++i) {
    add_to(layer_matrices(config, formats, i), sharding, &bytes);
  }
  if (stage == sharding.pp - 1) {
    add_to(head_matrices(config, formats), sharding, &bytes);
  }
  return bytes;
}

double sum(const PartBytes& bytes) { return std::accumulate(bytes.begin(), bytes.end(), 0.0); }

}  // namespace triax::plan
