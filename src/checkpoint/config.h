// What a model is: sizes and switches read from a Hugging Face config.json. Plain data; Kimi K3,
// Kimi Linear and mixtures of both differ in values only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace triax::checkpoint {

/// How a layer moves information along the sequence.
enum class LayerKind { kKda, kMla };

/// How the decay logit becomes the decay (sequence/kda/kda.h, DecayGate).
enum class GateKind { kBounded, kSoftplus };

/// What stands between the two halves of a gated MLP (width/situ/situ.h).
enum class ActivationKind { kSilu, kSitu };

/// Whose names and number types the tensors follow.
///   kKimiK3      config nested in text_config, names begin with "language_model.", small tensors
///                (conv, o_norm, correction bias) float32, A_log padded
///   kKimiLinear  flat config, no prefix, those small tensors bf16, A_log [1, 1, H, 1]
enum class Family { kKimiK3, kKimiLinear };

/// Kimi Delta Attention. The value width of a head equals head_dim.
struct KdaConfig {
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t conv_taps = 4;
  GateKind gate = GateKind::kSoftplus;
  float lower_bound = 0.0f;     // kBounded only; < 0
  bool full_rank_gate = false;  // output gate g_proj; else g_b_proj g_a_proj of rank head_dim

  int64_t width() const { return heads * head_dim; }
};

/// Gated multi-head latent attention without positions.
struct MlaConfig {
  int64_t heads = 0;
  int64_t nope_dim = 0;    // features of q and k that are per head
  int64_t shared_dim = 0;  // features of k that all heads share (qk_rope_head_dim, never rotated)
  int64_t value_dim = 0;
  int64_t q_lora = 0;  // 0: one q_proj
  int64_t kv_lora = 0;
  bool output_gate = false;

  int64_t query_dim() const { return nope_dim + shared_dim; }
  /// Values that the cache keeps for a token.
  int64_t latent_dim() const { return kv_lora + shared_dim; }
};

struct MoeConfig {
  int64_t experts = 0;  // 0: every layer is dense
  int64_t top_k = 0;
  int64_t shared_experts = 0;  // fused to one MLP of shared_experts * width; 0: none
  int64_t width = 0;           // of one expert
  int64_t latent = 0;          // width that the routed experts read and write; 0: hidden
  bool latent_norm = false;    // norm of the experts' sum before it goes up again
  bool renormalize = true;
  float scaling = 1.0f;
  int64_t first_dense = 0;  // layers [0, first_dense) have the dense MLP

  int64_t shared_width() const { return shared_experts * width; }
};

struct ActivationConfig {
  ActivationKind kind = ActivationKind::kSilu;
  float beta = 4.0f;          // kSitu only
  float linear_beta = 25.0f;  // kSitu only
};

/// One group of quantization_config.config_groups. Informative: how a tensor is stored is read from
/// the tensor's own name and type, since published patterns and files disagree (spec 1.1).
struct QuantizationGroup {
  std::string name;    // "group_0"
  std::string format;  // "mxfp4-pack-quantized", "int-quantized"
  std::string type;    // "float", "int"
  int64_t bits = 0;
  int64_t group_size = 0;
};

struct ModelConfig {
  Family family = Family::kKimiLinear;
  int64_t hidden = 0;
  int64_t vocab = 0;
  std::vector<LayerKind> layers;  // index = layer, from 0
  KdaConfig kda;
  MlaConfig mla;
  int64_t attn_res_block = 0;  // layers per block of Block Attention Residuals; 0: plain residual
  MoeConfig moe;
  int64_t dense_width = 0;
  ActivationConfig activation;
  float norm_eps = 1e-5f;
  float latent_norm_eps = 1e-6f;  // q_a_layernorm, kv_a_layernorm: the class default, spec 2.1
  int64_t max_position = 0;
  int64_t mtp_layers = 0;  // further prediction layers in the files; not used
  bool tie_word_embeddings = false;
  int32_t bos_id = -1;  // -1: none
  int32_t pad_id = -1;
  std::vector<int32_t> eos_ids;
  std::vector<QuantizationGroup> quantization;
  std::vector<std::string> notes;  // fields that are present and have no effect here

  int64_t layer_count() const { return static_cast<int64_t>(layers.size()); }
  int64_t count(LayerKind kind) const;
  bool is_moe(int64_t layer) const { return moe.experts > 0 && layer >= moe.first_dense; }
  int64_t moe_layers() const;
  /// Width that the routed experts read and write.
  int64_t expert_io() const { return moe.latent > 0 ? moe.latent : hidden; }
  /// What the tensors' names begin with in the files.
  std::string_view name_prefix() const {
    return family == Family::kKimiK3 ? "language_model." : "";
  }
};

/// generation_config.json; what is absent there is absent here.
struct GenerationConfig {
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<int64_t> max_new_tokens;
  std::vector<int32_t> eos_ids;
};

/// The model that `json` describes, every field in range and consistent with the others: no
/// product of its sizes overflows int64, layer lists partition the layers.
/// `source` is what messages call the text, for instance the file's path.
/// Errors     kInvalidArgument names field, expected and found; kDataLoss for text that is no JSON
/// Source     spec section 1
Result<ModelConfig> parse_config(std::string_view json, std::string_view source = "config.json");
Result<GenerationConfig> parse_generation_config(
    std::string_view json, std::string_view source = "generation_config.json");

/// The same from a file, or from config.json of a directory.
Result<ModelConfig> load_config(const std::string& path);

/// generation_config.json of `directory`; no value when there is none.
Result<std::optional<GenerationConfig>> load_generation_config(const std::string& directory);

}  // namespace triax::checkpoint
