// config.json of a quantised checkpoint.
#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "checkpoint/json_fields.h"
#include "checkpoint/quantize.h"

namespace triax::checkpoint {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::string_view kMxfp4Format = "mxfp4-pack-quantized";
constexpr std::string_view kInt8Format = "int-quantized";

OrderedJson weights_of(std::string_view format) {
  const bool mxfp4 = format == kMxfp4Format;
  return {{"num_bits", mxfp4 ? 4 : 8}, {"type", mxfp4 ? "float" : "int"},
          {"strategy", "group"},       {"group_size", 32},
          {"symmetric", true},         {"dynamic", false},
          {"observer", "minmax"},      {"scale_dtype", mxfp4 ? "torch.uint8" : "torch.bfloat16"}};
}

OrderedJson group_of(std::string_view format, OrderedJson targets) {
  return {{"format", format},
          {"input_activations", nullptr},
          {"output_activations", nullptr},
          {"targets", std::move(targets)},
          {"weights", weights_of(format)}};
}

/// Patterns of the modules that hold int8 matrices.
OrderedJson int8_targets(const QuantizeOptions& options) {
  OrderedJson targets = OrderedJson::array();
  if (options.dense_int8) {
    targets = {"re:.*self_attn\\.(q|k|v|o|g|f_a|f_b|g_a|g_b|q_a|q_b|kv_b)_proj$",
               "re:.*self_attn\\.kv_a_proj_with_mqa$",
               "re:.*shared_experts\\.(gate|up|down)_proj$",
               "re:.*mlp\\.(gate|up|down)_proj$",
               "re:.*routed_expert_(down|up)_proj$",
               "re:.*lm_head$"};
  }
  if (options.embedding_int8) {
    targets.push_back("re:.*embed_tokens$");
  }
  return targets;
}

/// The group of that format that an earlier run or the vendor wrote, or null.
bool has_group(const OrderedJson& groups, std::string_view format, const OrderedJson& outer) {
  for (const auto& [name, group] : groups.items()) {
    const auto it = group.find("format");
    const OrderedJson& found = it != group.end() && !it->is_null() ? *it : outer;
    if (found == OrderedJson(format)) {
      return true;
    }
  }
  return false;
}

}  // namespace

Result<std::string> quantized_config(std::string_view json, const QuantizeOptions& options) {
  OrderedJson root = OrderedJson::parse(json.begin(), json.end(), nullptr, false);
  if (!root.is_object()) {
    return Status::data_loss("checkpoint: config.json: not a JSON object");
  }
  const bool nested = root.contains("text_config") && root["text_config"].is_object();
  OrderedJson& text = nested ? root["text_config"] : root;
  OrderedJson& holder =
      !nested || text.contains("quantization_config") || !root.contains("quantization_config")
          ? text
          : root;
  const OrderedJson before =
      holder.contains("quantization_config") && holder["quantization_config"].is_object()
          ? holder["quantization_config"]
          : OrderedJson::object();
  const OrderedJson groups_before = before.value("config_groups", OrderedJson::object());
  const OrderedJson outer = before.value("format", OrderedJson());
  const bool mxfp4 = options.experts_mxfp4 || has_group(groups_before, kMxfp4Format, outer);
  const bool int8_before = has_group(groups_before, kInt8Format, outer);
  const OrderedJson targets = int8_targets(options);
  if (!mxfp4 && targets.empty() && !int8_before) {
    return root.dump(2) + "\n";
  }
  OrderedJson groups = OrderedJson::object();
  if (mxfp4) {
    groups["group_0"] = group_of(kMxfp4Format, {"re:.*block_sparse_moe\\.experts\\..*"});
  }
  if (!targets.empty()) {
    groups["group_1"] = group_of(kInt8Format, targets);
  } else if (int8_before) {
    groups["group_1"] = group_of(kInt8Format, int8_targets({.dense_int8 = true}));
  }
  const std::string_view format =
      groups.size() == 2 ? "mixed-precision" : (mxfp4 ? kMxfp4Format : kInt8Format);
  holder["quantization_config"] = {
      {"quant_method", "compressed-tensors"}, {"format", format},
      {"quantization_status", "compressed"},  {"config_groups", groups},
      {"ignore", OrderedJson::array()},       {"kv_cache_scheme", nullptr},
      {"global_compression_ratio", nullptr}};
  return root.dump(2) + "\n";
}

}  // namespace triax::checkpoint
