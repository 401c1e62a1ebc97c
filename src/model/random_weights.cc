// Weights of any shape without a checkpoint, for benchmarks: made straight in packed form.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/cpu.h"
#include "base/rng.h"
#include "checkpoint/summary.h"
#include "model/weights.h"

namespace triax::model {
namespace {

using checkpoint::ModelConfig;

/// Makes matrices whose entries have a standard deviation of about cols^-1/2, so that activations
/// keep their size from layer to layer.
class Maker {
 public:
  Maker(ModelWeights& weights, const RandomWeightsOptions& options)
      : weights_(weights), options_(options), rng_(options.seed) {}

  MatrixView expert(int64_t rows, int64_t cols) { return make(options_.experts, rows, cols); }
  MatrixView dense(int64_t rows, int64_t cols) { return make(options_.dense, rows, cols); }
  MatrixView bf16(int64_t rows, int64_t cols) { return make(MatrixFormat::kBf16, rows, cols); }

  Tensor array(std::initializer_list<int64_t> shape, double mean, double deviation) {
    Tensor tensor = Tensor::f32(shape);
    for (int64_t i = 0; i < tensor.view().elements(); ++i) {
      tensor.data<float>()[i] = static_cast<float>(mean + deviation * rng_.normal());
    }
    return tensor;
  }

 private:
  MatrixView make(MatrixFormat format, int64_t rows, int64_t cols) {
    const double deviation = 1.0 / std::sqrt(static_cast<double>(cols));
    MatrixView matrix{format, rows, cols, nullptr, nullptr};
    auto* data = take(rows * matrix.row_bytes());
    matrix.data = data;
    if (format == MatrixFormat::kMxfp4 || format == MatrixFormat::kInt8) {
      uint8_t* scales = take(rows * matrix.scale_row_bytes());
      matrix.scales = scales;
      fill_packed(matrix, deviation, data, scales);
      return matrix;
    }
    const OwnedMatrix values = quantize_matrix(format, array({rows, cols}, 0.0, deviation));
    std::memcpy(data, values.view.data, static_cast<size_t>(rows * matrix.row_bytes()));
    return matrix;
  }

  /// Random codes, all with one scale: one draw for eight bytes instead of one for each value.
  void fill_packed(const MatrixView& matrix, double deviation, uint8_t* data, uint8_t* scales) {
    const int64_t bytes = matrix.rows * matrix.row_bytes();
    for (int64_t i = 0; i < bytes; i += 8) {
      const uint64_t word = rng_.next();
      std::memcpy(data + i, &word, static_cast<size_t>(std::min<int64_t>(8, bytes - i)));
    }
    const int64_t scale_bytes = matrix.rows * matrix.scale_row_bytes();
    if (matrix.format == MatrixFormat::kMxfp4) {
      constexpr double kCodeDeviation = 2.9;  // of 16 equally likely E2M1 codes
      const int exponent = static_cast<int>(std::lround(std::log2(deviation / kCodeDeviation)));
      std::memset(scales, 127 + exponent, static_cast<size_t>(scale_bytes));
      return;
    }
    constexpr double kCodeDeviation = 73.9;  // of 256 equally likely integers
    const Bf16 scale = to_bf16(static_cast<float>(deviation / kCodeDeviation));
    for (int64_t i = 0; i < scale_bytes; i += 2) {
      std::memcpy(scales + i, &scale, 2);
    }
  }

  /// Memory from large blocks, so that the system backs it with large pages.
  uint8_t* take(int64_t bytes) {
    constexpr int64_t kBlockBytes = int64_t{1} << 28;
    constexpr int64_t kAlignment = 64;
    bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (weights_.owned.empty() || used_ + bytes > weights_.owned.back().bytes()) {
      weights_.owned.emplace_back(DType::kU8,
                                  std::initializer_list<int64_t>{std::max(bytes, kBlockBytes)});
      used_ = 0;
    }
    used_ += bytes;
    return weights_.owned.back().data<uint8_t>() + used_ - bytes;
  }

  ModelWeights& weights_;
  RandomWeightsOptions options_;
  Rng rng_;
  int64_t used_ = 0;  // of the last block
};

KdaWeights random_kda(Maker& make, const ModelConfig& config) {
  const auto& kda = config.kda;
  const int64_t d = config.hidden;
  KdaWeights w;
  w.q = make.dense(kda.width(), d);
  w.k = make.dense(kda.width(), d);
  w.v = make.dense(kda.width(), d);
  w.o = make.dense(d, kda.width());
  w.b = make.bf16(kda.heads, d);
  w.f_a = make.dense(kda.head_dim, d);
  w.f_b = make.dense(kda.width(), kda.head_dim);
  if (kda.full_rank_gate) {
    w.g = make.dense(kda.width(), d);
  } else {
    w.g_a = make.dense(kda.head_dim, d);
    w.g_b = make.dense(kda.width(), kda.head_dim);
  }
  w.conv = make.array({kda.conv_taps, 3 * kda.width()}, 0.0, 0.5);
  w.a_log = make.array({kda.heads}, 0.0, 0.5);
  w.dt_bias = make.array({kda.heads, kda.head_dim}, -4.0, 1.0);
  w.o_norm = make.array({kda.head_dim}, 1.0, 0.1);
  return w;
}

MlaWeights random_mla(Maker& make, const ModelConfig& config) {
  const auto& mla = config.mla;
  const int64_t d = config.hidden;
  MlaWeights w;
  if (mla.q_lora > 0) {
    w.q_a = make.dense(mla.q_lora, d);
    w.q_b = make.dense(mla.heads * mla.query_dim(), mla.q_lora);
    w.q_norm = make.array({mla.q_lora}, 1.0, 0.1);
  } else {
    w.q = make.dense(mla.heads * mla.query_dim(), d);
  }
  w.kv_a = make.dense(mla.latent_dim(), d);
  w.kv_b = make.dense(mla.heads * (mla.nope_dim + mla.value_dim), mla.kv_lora);
  w.kv_norm = make.array({mla.kv_lora}, 1.0, 0.1);
  if (mla.output_gate) {
    w.g = make.dense(mla.heads * mla.value_dim, d);
  }
  w.o = make.dense(d, mla.heads * mla.value_dim);
  return w;
}

width::MlpWeights random_mlp(Maker& make, int64_t hidden, int64_t width) {
  return {.gate = make.dense(width, hidden),
          .up = make.dense(width, hidden),
          .down = make.dense(hidden, width)};
}

MoeWeights random_moe(Maker& make, const ModelConfig& config) {
  const auto& moe = config.moe;
  MoeWeights w;
  w.router = make.bf16(moe.experts, config.hidden);
  w.router_bias = make.array({moe.experts}, 0.0, 0.05);
  if (moe.latent > 0) {
    w.latent_down = make.dense(moe.latent, config.hidden);
    w.latent_up = make.dense(config.hidden, moe.latent);
  }
  if (moe.latent_norm) {
    w.latent_norm = make.array({moe.latent}, 1.0, 0.1);
  }
  const int64_t io = config.expert_io();
  for (int64_t e = 0; e < moe.experts; ++e) {
    w.experts.push_back({.gate = make.expert(moe.width, io),
                         .up = make.expert(moe.width, io),
                         .down = make.expert(io, moe.width)});
  }
  if (moe.shared_experts > 0) {
    w.shared = random_mlp(make, config.hidden, moe.shared_width());
  }
  return w;
}

LayerWeights random_layer(Maker& make, const ModelConfig& config, int64_t index) {
  LayerWeights layer;
  layer.kind = config.layers[static_cast<size_t>(index)];
  layer.dense = !config.is_moe(index);
  layer.attn_norm = make.array({config.hidden}, 1.0, 0.1);
  layer.ffn_norm = make.array({config.hidden}, 1.0, 0.1);
  if (config.attn_res_block > 0) {
    layer.attn_query = make.array({config.hidden}, 0.0, 0.02);
    layer.ffn_query = make.array({config.hidden}, 0.0, 0.02);
  }
  if (layer.kind == checkpoint::LayerKind::kKda) {
    layer.kda = random_kda(make, config);
  } else {
    layer.mla = random_mla(make, config);
  }
  if (layer.dense) {
    layer.mlp = random_mlp(make, config.hidden, config.dense_width);
  } else {
    layer.moe = random_moe(make, config);
  }
  return layer;
}

Status check_formats(const ModelConfig& config, const RandomWeightsOptions& options) {
  const auto blocked = [](MatrixFormat f) {
    return f == MatrixFormat::kMxfp4 || f == MatrixFormat::kInt8;
  };
  const int64_t widths[] = {config.hidden,
                            config.moe.width,
                            config.expert_io(),
                            config.dense_width,
                            config.kda.width(),
                            config.kda.head_dim,
                            config.mla.kv_lora,
                            config.mla.q_lora,
                            config.moe.shared_width(),
                            config.mla.heads * config.mla.value_dim};
  for (int64_t width : widths) {
    if (width % kScaleBlock != 0 && (blocked(options.experts) || blocked(options.dense))) {
      return Status::invalid_argument(fmt::format(
          "random weights: a width of {} is not a multiple of {}, which {} or {} needs; "
          "choose bf16",
          width, kScaleBlock, matrix_format_name(options.experts),
          matrix_format_name(options.dense)));
    }
  }
  return {};
}

double bits_per_weight(MatrixFormat format) {
  const MatrixView block{format, 1, kScaleBlock, nullptr, nullptr};
  return 8.0 * static_cast<double>(block.bytes()) / static_cast<double>(kScaleBlock);
}

Status check_memory(const ModelConfig& config, const RandomWeightsOptions& options) {
  const checkpoint::ModelSummary summary = checkpoint::summarize(config);
  const auto experts = static_cast<double>(
      summary.parts[static_cast<size_t>(checkpoint::Part::kExperts)].parameters);
  const double rest = static_cast<double>(summary.total.parameters) - experts;
  const double bytes =
      (experts * bits_per_weight(options.experts) + rest * bits_per_weight(options.dense)) / 8.0;
  const Memory memory = system_memory();
  if (memory.available_bytes > 0 && bytes > 0.95 * static_cast<double>(memory.available_bytes)) {
    return Status::resource_exhausted(
        fmt::format("random weights: this shape needs about {:.1f} GB, {:.1f} GB are available; "
                    "use fewer layers (--layers) or a smaller vocabulary (--vocab)",
                    bytes / 1e9, static_cast<double>(memory.available_bytes) / 1e9));
  }
  return {};
}

}  // namespace

Result<ModelWeights> random_weights(const ModelConfig& config,
                                    const RandomWeightsOptions& options) {
  if (Status s = check_formats(config, options); !s.ok()) {
    return s;
  }
  if (Status s = check_memory(config, options); !s.ok()) {
    return s;
  }
  ModelWeights weights;
  weights.config = config;
  Maker make(weights, options);
  weights.embedding = make.bf16(config.vocab, config.hidden);
  weights.lm_head =
      config.tie_word_embeddings ? weights.embedding : make.dense(config.vocab, config.hidden);
  weights.final_norm = make.array({config.hidden}, 1.0, 0.1);
  if (config.attn_res_block > 0) {
    weights.final_query = make.array({config.hidden}, 0.0, 0.02);
  }
  for (int64_t i = 0; i < config.layer_count(); ++i) {
    weights.layers.push_back(random_layer(make, config, i));
    if (options.progress) {
      options.progress(static_cast<double>(i + 1) / static_cast<double>(config.layer_count()));
    }
  }
  return weights;
}

}  // namespace triax::model
