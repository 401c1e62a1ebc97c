#include "checkpoint/summary.h"

#include <algorithm>

#include "tensor/matrix.h"

namespace triax::checkpoint {
namespace {

constexpr int64_t kF32Bytes = 4;
constexpr int64_t kBf16Bytes = 2;

bool has_format(const ModelConfig& config, std::string_view format) {
  return std::any_of(config.quantization.begin(), config.quantization.end(),
                     [&](const QuantizationGroup& group) { return group.format == format; });
}

int64_t elements(const TensorSpec& spec) {
  int64_t n = 1;
  for (int64_t size : spec.shape) {
    n *= size;
  }
  return n;
}

/// Parameters that one of the layer's tokens multiplies with, on average.
int64_t active_parameters(const ModelConfig& config, const PartSummary& part, Part which) {
  if (which == Part::kEmbedding) {
    return config.tie_word_embeddings ? part.parameters : 0;
  }
  return which == Part::kExperts && config.moe.experts > 0
             ? part.parameters / config.moe.experts * config.moe.top_k
             : part.parameters;
}

void add_bytes(ModelSummary& summary, Part part, ElementType type, int64_t bytes) {
  summary.bytes_by_type[type] += bytes;
  summary.parts[static_cast<size_t>(part)].bytes += bytes;
}

}  // namespace

ModelSummary summarize(const ModelConfig& config) {
  ModelSummary summary;
  const bool mxfp4 = has_format(config, "mxfp4-pack-quantized");
  const bool int8 = has_format(config, "int-quantized");
  for (const TensorSpec& spec : tensor_specs(config)) {
    const int64_t n = elements(spec);
    summary.parts[static_cast<size_t>(spec.part)].parameters += n;
    const bool blocks = spec.role != Role::kVector && spec.shape[1] % kScaleBlock == 0;
    if (blocks && spec.role == Role::kExpert && mxfp4) {
      add_bytes(summary, spec.part, ElementType::kU8, n / 2 + n / kScaleBlock);
    } else if (blocks && spec.role == Role::kDense && int8 && spec.part != Part::kEmbedding) {
      add_bytes(summary, spec.part, ElementType::kI8, n);
      add_bytes(summary, spec.part, ElementType::kBf16, n / kScaleBlock * kBf16Bytes);
    } else {
      add_bytes(summary, spec.part, spec.published, n * element_bytes(spec.published));
    }
  }
  for (size_t i = 0; i < summary.parts.size(); ++i) {
    PartSummary& part = summary.parts[i];
    part.active = active_parameters(config, part, static_cast<Part>(i));
    summary.total.parameters += part.parameters;
    summary.total.active += part.active;
    summary.total.bytes += part.bytes;
  }
  const int64_t kda_layers = config.count(LayerKind::kKda);
  const int64_t mla_layers = config.count(LayerKind::kMla);
  summary.kda_state_bytes = kda_layers * config.kda.width() * config.kda.head_dim * kF32Bytes;
  summary.conv_window_bytes =
      kda_layers * 3 * config.kda.width() * (config.kda.conv_taps - 1) * kF32Bytes;
  summary.latent_bytes_per_token = mla_layers * config.mla.latent_dim() * kBf16Bytes;
  if (summary.latent_bytes_per_token > 0) {
    summary.checkpoint_cost_tokens = static_cast<double>(summary.kda_state_bytes) /
                                     static_cast<double>(summary.latent_bytes_per_token);
  }
  return summary;
}

}  // namespace triax::checkpoint
