#include "checkpoint/shapes.h"

#include <fmt/core.h>

namespace triax::checkpoint {
namespace {

/// Three KDA layers, then one MLA layer; the last layer is MLA, too.
std::vector<LayerKind> hybrid_layers(int64_t count) {
  std::vector<LayerKind> layers(static_cast<size_t>(count), LayerKind::kKda);
  for (size_t i = 3; i < layers.size(); i += 4) {
    layers[i] = LayerKind::kMla;
  }
  layers.back() = LayerKind::kMla;
  return layers;
}

/// What all K3-type models share; sizes follow.
ModelConfig k3_base() {
  ModelConfig config;
  config.family = Family::kKimiK3;
  config.kda.gate = GateKind::kBounded;
  config.kda.lower_bound = -5.0f;
  config.kda.full_rank_gate = true;
  config.kda.head_dim = 128;
  config.mla.nope_dim = 128;
  config.mla.shared_dim = 64;
  config.mla.value_dim = 128;
  config.mla.output_gate = true;
  config.moe.shared_experts = 2;
  config.moe.latent_norm = true;
  config.moe.first_dense = 1;
  config.activation.kind = ActivationKind::kSitu;
  return config;
}

ModelConfig kimi_k3() {
  ModelConfig config = k3_base();
  config.hidden = 7168;
  config.vocab = 163840;
  config.layers = hybrid_layers(93);
  config.kda.heads = 96;
  config.mla.heads = 96;
  config.mla.q_lora = 1536;
  config.mla.kv_lora = 512;
  config.attn_res_block = 12;
  config.moe.experts = 896;
  config.moe.top_k = 16;
  config.moe.width = 3072;
  config.moe.latent = 3584;
  config.dense_width = 33792;
  config.max_position = 1048576;
  config.quantization = {{"group_0", "mxfp4-pack-quantized", "float", 4, 32}};
  return config;
}

ModelConfig tiny() {
  ModelConfig config = k3_base();
  config.hidden = 256;
  config.vocab = 8192;
  config.layers = hybrid_layers(12);
  config.kda.heads = 2;
  config.mla.heads = 2;
  config.mla.q_lora = 128;
  config.mla.kv_lora = 128;
  config.attn_res_block = 4;
  config.moe.experts = 48;
  config.moe.top_k = 4;
  config.moe.width = 128;
  config.moe.latent = 128;
  config.dense_width = 768;
  config.max_position = 2048;
  return config;
}

ModelConfig kimi_linear_48b() {
  ModelConfig config;
  config.hidden = 2304;
  config.vocab = 163840;
  config.layers = hybrid_layers(27);
  config.kda.heads = 32;
  config.kda.head_dim = 128;
  config.mla.heads = 32;
  config.mla.nope_dim = 128;
  config.mla.shared_dim = 64;
  config.mla.value_dim = 128;
  config.mla.kv_lora = 512;
  config.moe.experts = 256;
  config.moe.top_k = 8;
  config.moe.shared_experts = 1;
  config.moe.width = 1024;
  config.moe.scaling = 2.446f;
  config.moe.first_dense = 1;
  config.dense_width = 9216;
  config.max_position = 1048576;
  return config;
}

}  // namespace

Result<ModelConfig> named_shape(std::string_view name, const ShapeOptions& options) {
  ModelConfig config;
  if (name == "kimi-k3") {
    config = kimi_k3();
  } else if (name == "kimi-linear-48b") {
    config = kimi_linear_48b();
  } else if (name == "tiny") {
    config = tiny();
  } else {
    return Status::invalid_argument(
        fmt::format("shape '{}' is not one of kimi-k3, kimi-linear-48b, tiny", name));
  }
  if (options.layers > config.layer_count()) {
    return Status::invalid_argument(fmt::format("{} has {} layers, {} were asked for", name,
                                                config.layer_count(), options.layers));
  }
  if (options.layers > 0) {
    config.layers.resize(static_cast<size_t>(options.layers));
  }
  if (options.vocab > 0) {
    config.vocab = options.vocab;
  }
  return config;
}

}  // namespace triax::checkpoint
