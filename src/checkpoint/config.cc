#include "checkpoint/config.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>

#include "base/mapped_file.h"
#include "checkpoint/json_fields.h"

namespace triax::checkpoint {
namespace {

// Far above any published model, and low enough that no product of a few sizes overflows.
constexpr int64_t kLayersMax = 4096;
constexpr int64_t kHeadsMax = 1 << 14;
constexpr int64_t kHeadDimMax = 1 << 12;
constexpr int64_t kWidthMax = 1 << 20;
constexpr int64_t kVocabMax = 1 << 24;
constexpr int64_t kExpertsMax = 1 << 16;
constexpr int64_t kExpertMatricesMax = 1 << 20;  // layers * experts
constexpr int64_t kPositionMax = int64_t{1} << 31;
constexpr int64_t kParametersMax = int64_t{1} << 50;
constexpr size_t kConfigBytesMax = 16U << 20;

std::vector<LayerKind> read_layers(Fields& linear, int64_t count) {
  std::vector<int> seen(static_cast<size_t>(count), 0);
  std::vector<LayerKind> layers(static_cast<size_t>(count), LayerKind::kMla);
  const auto place = [&](const char* field, LayerKind kind) {
    for (int64_t one_based : linear.integers(field, 1, count)) {
      const auto layer = static_cast<size_t>(one_based - 1);
      layers[layer] = kind;
      if (++seen[layer] > 1) {
        linear.fail(field,
                    fmt::format("every layer 1 to {} once in kda_layers or full_attn_layers; "
                                "layer {} stands twice",
                                count, one_based));
      }
    }
  };
  place("kda_layers", LayerKind::kKda);
  place("full_attn_layers", LayerKind::kMla);
  const auto missing = std::find(seen.begin(), seen.end(), 0);
  if (missing != seen.end()) {
    linear.fail(
        "full_attn_layers",
        fmt::format("every layer 1 to {} in kda_layers or full_attn_layers; layer {} stands "
                    "in neither",
                    count, missing - seen.begin() + 1));
  }
  return layers;
}

KdaConfig read_kda(Fields& linear) {
  KdaConfig kda;
  kda.heads = linear.integer("num_heads", 1, kHeadsMax);
  kda.head_dim = linear.integer("head_dim", 1, kHeadDimMax);
  linear.expect_integer("short_conv_kernel_size", 4, "only four taps are implemented");
  kda.conv_taps = linear.integer("short_conv_kernel_size", 1, kHeadDimMax);
  if (linear.has("gate_lower_bound")) {
    kda.gate = GateKind::kBounded;
    kda.lower_bound = linear.number("gate_lower_bound", -1e4, -1e-4);
  }
  kda.full_rank_gate = linear.flag_or("use_full_rank_gate", false);
  return kda;
}

MlaConfig read_mla(Fields& text) {
  MlaConfig mla;
  mla.heads = text.integer("num_attention_heads", 1, kHeadsMax);
  text.expect_integer("num_key_value_heads", mla.heads,
                      "latent attention has one key head for each query head");
  mla.nope_dim = text.integer("qk_nope_head_dim", 1, kHeadDimMax);
  mla.shared_dim = text.integer("qk_rope_head_dim", 1, kHeadDimMax);
  mla.value_dim = text.integer("v_head_dim", 1, kHeadDimMax);
  mla.q_lora = text.integer_or("q_lora_rank", 0, 0, kWidthMax);
  mla.kv_lora = text.integer("kv_lora_rank", 1, kWidthMax);
  mla.output_gate = text.flag_or("mla_use_output_gate", false);
  if (!text.flag_or("mla_use_nope", false)) {
    text.fail("mla_use_nope", "true", "rotary positions are not implemented");
  }
  text.expect_absent("rope_scaling", "rotary positions are not implemented");
  text.expect_flag("attention_bias", false, "projections with a bias are not implemented");
  return mla;
}

void check_router(Fields& text) {
  text.expect_one_of("moe_router_activation_func", {"sigmoid"});
  text.expect_one_of("topk_method", {"noaux_tc"});
  constexpr std::string_view kGroups = "group-limited routing is not implemented";
  text.expect_integer("num_expert_group", 1, kGroups);
  text.expect_integer("topk_group", 1, kGroups);
  text.expect_integer("moe_layer_freq", 1, "every layer after the first dense ones must be sparse");
}

MoeConfig read_moe(Fields& text, int64_t layers) {
  MoeConfig moe;
  moe.experts = text.integer_or("num_experts", 0, 0, kExpertsMax);
  moe.first_dense = text.integer_or("first_k_dense_replace", 0, 0, layers);
  if (moe.experts == 0) {
    return moe;
  }
  check_router(text);
  if (moe.experts * (layers - moe.first_dense) > kExpertMatricesMax) {
    text.fail("num_experts", fmt::format("at most {} experts over all layers", kExpertMatricesMax));
  }
  moe.top_k = text.integer("num_experts_per_token", 1, moe.experts);
  moe.shared_experts = text.integer_or("num_shared_experts", 0, 0, 1024);
  moe.width = text.integer("moe_intermediate_size", 1, kWidthMax);
  moe.latent = text.integer_or("routed_expert_hidden_size", 0, 0, kWidthMax);
  if (moe.latent > 0) {
    if (!text.has("latent_moe_use_norm")) {
      text.fail("latent_moe_use_norm", "true or false",
                "with routed_expert_hidden_size it decides whether the experts' sum is normalised");
    }
    moe.latent_norm = text.flag_or("latent_moe_use_norm", false);
  }
  moe.renormalize = text.flag_or("moe_renormalize", true);
  moe.scaling = text.number_or("routed_scaling_factor", 1.0f, 1e-4, 1e4);
  return moe;
}

ActivationConfig read_activation(Fields& text) {
  ActivationConfig activation;
  text.expect_one_of("hidden_act", {"silu", "situ"});
  if (text.text_or("hidden_act", "") == "situ") {
    activation.kind = ActivationKind::kSitu;
    activation.beta = text.number("activation_situ_beta", 1e-3, 1e4);
    activation.linear_beta = text.number("activation_situ_linear_beta", 1e-3, 1e4);
  } else if (!text.has("hidden_act")) {
    text.fail("hidden_act", "\"silu\" or \"situ\"");
  }
  return activation;
}

QuantizationGroup read_group(Fields& group, const std::string& name,
                             const std::string& default_format) {
  QuantizationGroup result;
  result.name = name;
  result.format = group.text_or("format", default_format);
  const bool mxfp4 = result.format == "mxfp4-pack-quantized";
  if (!mxfp4 && result.format != "int-quantized") {
    group.fail("format", "\"mxfp4-pack-quantized\" or \"int-quantized\"",
               "weights of other formats cannot be read");
  }
  std::optional<Fields> weights = group.object("weights");
  if (!weights) {
    group.fail("weights", "an object");
    return result;
  }
  result.bits = mxfp4 ? 4 : 8;
  result.type = mxfp4 ? "float" : "int";
  result.group_size = 32;
  weights->expect_integer("num_bits", result.bits, "the format stores just that");
  weights->expect_integer("group_size", 32, "scales of other blocks are not implemented");
  weights->expect_one_of("type", {result.type});
  weights->expect_one_of("strategy", {"group"});
  weights->expect_flag("symmetric", true, "zero points are not implemented");
  weights->expect_flag("dynamic", false, "weights are quantised once");
  return result;
}

std::vector<QuantizationGroup> read_quantization(Fields& holder) {
  std::vector<QuantizationGroup> groups;
  std::optional<Fields> quantization = holder.object("quantization_config");
  if (!quantization) {
    return groups;
  }
  quantization->expect_one_of("quant_method", {"compressed-tensors"});
  const std::string format = quantization->text_or("format", "");
  std::optional<Fields> config_groups = quantization->object("config_groups");
  if (!config_groups) {
    return groups;
  }
  const Json& object = *quantization->find("config_groups");
  for (const auto& [name, value] : object.items()) {
    if (std::optional<Fields> group = config_groups->object(name)) {
      groups.push_back(read_group(*group, name, format));
    }
  }
  return groups;
}

void read_ids(Fields& root, Fields& text, ModelConfig& config) {
  const int64_t last = config.vocab - 1;
  const auto first_with = [&](const char* name) -> Fields& { return root.has(name) ? root : text; };
  config.bos_id =
      static_cast<int32_t>(first_with("bos_token_id").integer_or("bos_token_id", -1, 0, last));
  config.pad_id =
      static_cast<int32_t>(first_with("pad_token_id").integer_or("pad_token_id", -1, 0, last));
  config.eos_ids = first_with("eos_token_id").ids("eos_token_id", last);
}

void read_positions(Fields& text, ModelConfig& config) {
  const char* field =
      text.has("max_position_embeddings") ? "max_position_embeddings" : "model_max_length";
  config.max_position = text.integer(field, 1, kPositionMax);
}

void add_notes(Fields& text, ModelConfig& config) {
  if (text.has("rope_theta")) {
    config.notes.push_back(text.full_name("rope_theta") + " has no effect: mla_use_nope is true");
  }
  if (config.mtp_layers > 0) {
    config.notes.push_back(fmt::format("{} is {}: layers that predict further tokens are not used",
                                       text.full_name("num_nextn_predict_layers"),
                                       config.mtp_layers));
  }
}

void check_parameters(Fields& text, const ModelConfig& config) {
  // Every matrix is at most kWidthMax x 2^26, so doubles cannot overflow where int64 would.
  const auto d = static_cast<double>(config.hidden);
  const auto n = [](int64_t x) { return static_cast<double>(x); };
  const MlaConfig& mla = config.mla;
  const double heads = n(mla.heads);
  const double attention =
      std::max(6.0 * d * n(config.kda.width()), 2.0 * heads * (d + n(mla.q_lora) + n(mla.kv_lora)) *
                                                    n(mla.query_dim() + 2 * mla.value_dim));
  const double experts =
      3.0 * n(config.moe.experts) * n(config.expert_io()) * n(config.moe.width) +
      d * (3.0 * n(config.moe.shared_width()) + 2.0 * n(config.moe.latent) + n(config.moe.experts));
  const double total =
      2.0 * d * n(config.vocab) +
      n(config.layer_count()) * (attention + experts + 3.0 * d * n(config.dense_width));
  if (total > n(kParametersMax)) {
    text.fail("hidden_size",
              fmt::format("a model of at most 2^50 parameters, these sizes give {:.3g}", total));
  }
}

void read_text(Fields& text, ModelConfig& config) {
  text.expect_one_of("model_type", {"kimi_linear"});
  config.hidden = text.integer("hidden_size", 1, kWidthMax);
  config.vocab = text.integer("vocab_size", 1, kVocabMax);
  const int64_t layers = text.integer("num_hidden_layers", 1, kLayersMax);
  if (std::optional<Fields> linear = text.object("linear_attn_config")) {
    config.kda = read_kda(*linear);
    config.layers = read_layers(*linear, layers);
  } else {
    text.fail("linear_attn_config", "an object with kda_layers and full_attn_layers");
  }
  config.mla = read_mla(text);
  config.attn_res_block = text.integer_or("attn_res_block_size", 0, 1, kLayersMax);
  config.moe = read_moe(text, layers);
  const bool dense = config.moe.experts == 0 || config.moe.first_dense > 0;
  config.dense_width = dense ? text.integer("intermediate_size", 1, kWidthMax) : 0;
  config.activation = read_activation(text);
  config.norm_eps = text.number("rms_norm_eps", 1e-12, 1e-1);
  config.mtp_layers = text.integer_or("num_nextn_predict_layers", 0, 0, 64);
  read_positions(text, config);
}

Status check_size(std::string_view json, std::string_view source) {
  if (json.size() > kConfigBytesMax) {
    return Status::invalid_argument(
        fmt::format("checkpoint: {}: {} bytes, expected at most {}; is this a config?", source,
                    json.size(), kConfigBytesMax));
  }
  return {};
}

Result<Json> parse_object(std::string_view json, std::string_view source) {
  if (Status status = check_size(json, source); !status.ok()) {
    return status;
  }
  Result<Json> value = parse_json(json, source);
  if (value.ok() && !value->is_object()) {
    return Status::invalid_argument(
        fmt::format("checkpoint: {}: is {}, expected an object", source, json_excerpt(*value)));
  }
  return value;
}

Result<MappedFile> map_text(const std::string& path) {
  Result<MappedFile> mapped = MappedFile::open(path);
  if (!mapped.ok()) {
    return Status(mapped.status().code(), "checkpoint: " + mapped.status().message());
  }
  return mapped;
}

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

}  // namespace

int64_t ModelConfig::count(LayerKind kind) const {
  return std::count(layers.begin(), layers.end(), kind);
}

int64_t ModelConfig::moe_layers() const {
  return moe.experts == 0 ? 0 : layer_count() - moe.first_dense;
}

Result<ModelConfig> parse_config(std::string_view json, std::string_view source) {
  Result<Json> value = parse_object(json, source);
  if (!value.ok()) {
    return value.status();
  }
  Status status;
  Fields root(*value, std::string(source), "", status);
  root.expect_one_of("model_type", {"kimi_k3", "kimi_linear"});
  if (!root.has("model_type")) {
    root.fail("model_type", "\"kimi_k3\" or \"kimi_linear\"");
  }
  std::optional<Fields> nested = root.object("text_config");
  Fields& text = nested ? *nested : root;
  if (!nested && root.text_or("model_type", "") == "kimi_k3") {
    root.fail("text_config", "an object", "a kimi_k3 config holds the text model there");
  }
  ModelConfig config;
  config.family = nested ? Family::kKimiK3 : Family::kKimiLinear;
  if (status.ok()) {
    read_text(text, config);
  }
  if (status.ok()) {
    read_ids(root, text, config);
    config.tie_word_embeddings = text.flag_or("tie_word_embeddings", false);
    root.expect_flag("tie_word_embeddings", config.tie_word_embeddings,
                     "it contradicts text_config.tie_word_embeddings");
    config.quantization = read_quantization(text.has("quantization_config") ? text : root);
    check_parameters(text, config);
    add_notes(text, config);
  }
  if (!status.ok()) {
    return status;
  }
  return config;
}

Result<GenerationConfig> parse_generation_config(std::string_view json, std::string_view source) {
  Result<Json> value = parse_object(json, source);
  if (!value.ok()) {
    return value.status();
  }
  Status status;
  Fields root(*value, std::string(source), "", status);
  GenerationConfig config;
  if (root.has("temperature")) {
    config.temperature = root.number("temperature", 0.0, 100.0);
  }
  if (root.has("top_p")) {
    config.top_p = root.number("top_p", 0.0, 1.0);
  }
  if (root.has("max_new_tokens")) {
    config.max_new_tokens = root.integer("max_new_tokens", 1, kPositionMax);
  }
  config.eos_ids = root.ids("eos_token_id", kVocabMax - 1);
  if (!status.ok()) {
    return status;
  }
  return config;
}

Result<ModelConfig> load_config(const std::string& path) {
  std::error_code error;
  const bool directory = std::filesystem::is_directory(path, error);
  const std::string file =
      directory ? (std::filesystem::path(path) / "config.json").string() : path;
  Result<MappedFile> mapped = map_text(file);
  return mapped.ok() ? parse_config(text_of(*mapped), file) : mapped.status();
}

Result<std::optional<GenerationConfig>> load_generation_config(const std::string& directory) {
  const std::string file = (std::filesystem::path(directory) / "generation_config.json").string();
  Result<MappedFile> mapped = map_text(file);
  if (mapped.status().code() == StatusCode::kNotFound) {
    return std::optional<GenerationConfig>();
  }
  if (!mapped.ok()) {
    return mapped.status();
  }
  Result<GenerationConfig> config = parse_generation_config(text_of(*mapped), file);
  return config.ok() ? Result<std::optional<GenerationConfig>>(*config) : config.status();
}

}  // namespace triax::checkpoint
