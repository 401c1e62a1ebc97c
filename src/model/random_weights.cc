// Weights of any shape without a checkpoint, for benchmarks: made straight in packed form.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/cpu.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "checkpoint/summary.h"
#include "device/cuda/cuda_queue.h"
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

  /// What was made so far is no longer needed: its memory is used anew.
  void reuse() {
    block_ = 0;
    used_ = 0;
  }

  /// Fills what was made since the last call, with all threads.
  void fill() {
    threads_.run(static_cast<int64_t>(parts_.size()),
                 [&](int64_t i, int) { fill_part(parts_[static_cast<size_t>(i)]); });
    parts_.clear();
  }

 private:
  /// Rows of a matrix that is not filled yet; the seed alone decides its values.
  struct Part {
    MatrixView rows;
    uint64_t seed;
  };

  MatrixView make(MatrixFormat format, int64_t rows, int64_t cols) {
    MatrixView matrix{format, rows, cols, nullptr, nullptr};
    matrix.data = take(rows * matrix.row_bytes());
    if (matrix.scale_row_bytes() > 0) {
      matrix.scales = take(rows * matrix.scale_row_bytes());
    }
    constexpr int64_t kPartElements = int64_t{1} << 20;
    const int64_t part = std::max<int64_t>(1, kPartElements / std::max<int64_t>(1, cols));
    for (int64_t begin = 0; begin < rows; begin += part) {
      parts_.push_back({matrix.row_range(begin, std::min(rows, begin + part)), rng_.next()});
    }
    return matrix;
  }

  static void fill_part(const Part& part) {
    const MatrixView& rows = part.rows;
    const double deviation = 1.0 / std::sqrt(static_cast<double>(rows.cols));
    Rng rng(part.seed);
    auto* data = static_cast<uint8_t*>(const_cast<void*>(rows.data));
    if (rows.scales != nullptr) {
      fill_packed(rng, rows, deviation, data,
                  static_cast<uint8_t*>(const_cast<void*>(rows.scales)));
      return;
    }
    Tensor values = Tensor::f32({rows.rows, rows.cols});
    for (int64_t i = 0; i < values.view().elements(); ++i) {
      values.data<float>()[i] = static_cast<float>(deviation * rng.normal());
    }
    const OwnedMatrix packed = quantize_matrix(rows.format, values);
    std::memcpy(data, packed.view.data, static_cast<size_t>(rows.rows * rows.row_bytes()));
  }

  /// Random codes, all with one scale: one draw for eight bytes instead of one for each value.
  static void fill_packed(Rng& rng, const MatrixView& matrix, double deviation, uint8_t* data,
                          uint8_t* scales) {
    const int64_t bytes = matrix.rows * matrix.row_bytes();
    for (int64_t i = 0; i < bytes; i += 8) {
      const uint64_t word = rng.next();
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
    while (block_ < weights_.owned.size() && used_ + bytes > weights_.owned[block_].bytes()) {
      ++block_;
      used_ = 0;
    }
    if (block_ == weights_.owned.size()) {
      weights_.owned.emplace_back(DType::kU8,
                                  std::initializer_list<int64_t>{std::max(bytes, kBlockBytes)});
      used_ = 0;
    }
    used_ += bytes;
    return weights_.owned[block_].data<uint8_t>() + used_ - bytes;
  }

  ModelWeights& weights_;
  RandomWeightsOptions options_;
  Rng rng_;
  ThreadPool threads_{hardware_threads()};
  std::vector<Part> parts_;
  size_t block_ = 0;  // in use
  int64_t used_ = 0;  // of it
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

/// Embedding, output head, final norm and query.
void random_ends(Maker& make, ModelWeights& weights) {
  const ModelConfig& config = weights.config;
  weights.embedding = make.bf16(config.vocab, config.hidden);
  weights.lm_head =
      config.tie_word_embeddings ? weights.embedding : make.dense(config.vocab, config.hidden);
  weights.final_norm = make.array({config.hidden}, 1.0, 0.1);
  if (config.attn_res_block > 0) {
    weights.final_query = make.array({config.hidden}, 0.0, 0.02);
  }
  make.fill();
}

void report(const RandomWeightsOptions& options, int64_t done, int64_t layers) {
  if (options.progress) {
    options.progress(static_cast<double>(done) / static_cast<double>(layers));
  }
}

/// Never more than a layer in this process.
Result<ModelWeights> random_on_gpu(const ModelConfig& config, const RandomWeightsOptions& options) {
  ModelWeights here;
  here.config = config;
  Maker make(here, options);
  WeightsUpload up(*options.cuda, config);
  random_ends(make, here);
  up.add_ends(here);
  for (int64_t i = 0; i < config.layer_count(); ++i) {
    if (Status s = up.wait(); !s.ok()) {
      return s;
    }
    make.reuse();
    const LayerWeights layer = random_layer(make, config, i);
    make.fill();
    up.add_layer(layer);
    if (Status s = up.wait(); !s.ok()) {
      return s;
    }
    report(options, i + 1, config.layer_count());
  }
  return up.finish();
}

}  // namespace

Result<ModelWeights> random_weights(const ModelConfig& config,
                                    const RandomWeightsOptions& options) {
  if (Status s = check_formats(config, options); !s.ok()) {
    return s;
  }
  if (options.cuda != nullptr) {
    try {
      return random_on_gpu(config, options);
    } catch (const CudaOutOfMemory& error) {
      return weights_do_not_fit(*options.cuda, error);
    }
  }
  if (Status s = check_memory(config, options); !s.ok()) {
    return s;
  }
  ModelWeights weights;
  weights.config = config;
  Maker make(weights, options);
  random_ends(make, weights);
  for (int64_t i = 0; i < config.layer_count(); ++i) {
    weights.layers.push_back(random_layer(make, config, i));
    make.fill();
    report(options, i + 1, config.layer_count());
  }
  return weights;
}

}  // namespace triax::model
