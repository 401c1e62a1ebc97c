#include "server/api_fields.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

namespace triax::server {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

std::string element(const std::string& path, size_t index) {
  return fmt::format("{}[{}]", path, index);
}

ApiError wrong_field(std::string_view path, std::string_view expected, const Json* found) {
  return ApiError::bad_field(path, fmt::format("expected {}, found {}", expected,
                                               found == nullptr ? "nothing" : shown(*found)));
}

ApiResult<std::string> type_of(const Json& value, const std::string& path) {
  if (!value.is_object()) {
    return wrong_field(path, "an object", &value);
  }
  const Json* type = FieldReader(value, path).find("type");
  if (type == nullptr || !type->is_string()) {
    return wrong_field(path + ".type", "a string", type);
  }
  return type->get<std::string>();
}

ApiError unknown_type(const std::string& path, std::string_view expected, std::string_view found) {
  constexpr std::array kMedia = {"image", "document", "input_image", "input_file", "input_audio"};
  const bool media = std::find(kMedia.begin(), kMedia.end(), found) != kMedia.end();
  return ApiError::bad_field(
      path + ".type",
      fmt::format("expected {}, found \"{}\"{}", expected, found.substr(0, 64),
                  media ? "; this engine reads text only, no images or other media" : ""));
}

MaybeError check_count(std::string_view path, size_t count, int64_t most) {
  if (static_cast<int64_t>(count) <= most) {
    return {};
  }
  return ApiError::bad_field(path, fmt::format("at most {} are allowed, found {}", most, count));
}

void append_part(const std::string& text, text::ChatMessage& message) {
  // The first part alone leaves no trace; the second makes it a part.
  if (message.content_parts.empty() && !message.content.empty()) {
    message.content_parts.push_back(message.content.size());
  }
  if (!message.content_parts.empty()) {
    message.content_parts.push_back(text.size());
  }
  message.content += text;
}

ApiResult<text::ToolSpec> function_tool(const Json& tool, const std::string& path,
                                        const char* schema_key) {
  FieldReader fields(tool, path);
  text::ToolSpec spec;
  fields.string("name", spec.name);
  if (spec.name.empty()) {
    fields.fail("name", "a tool needs a name");
  }
  std::string description;
  fields.string("description", description);
  const Json* schema = fields.object(schema_key);
  if (!fields.ok()) {
    return *fields.error();
  }
  Json function = {{"name", spec.name}};
  if (!description.empty()) {
    function["description"] = description;
  }
  if (schema != nullptr) {
    function["parameters"] = *schema;
  }
  if (const Json* strict = fields.find("strict"); strict != nullptr && strict->is_boolean()) {
    function["strict"] = *strict;
  }
  spec.json = json_text({{"type", "function"}, {"function", std::move(function)}});
  return spec;
}

MaybeError need_tools(const text::ChatRequest& chat) {
  if (!chat.tools.empty()) {
    return {};
  }
  return ApiError::bad_field("tool_choice", "a call is required, but there are no tools");
}

MaybeError need_tool(const text::ChatRequest& chat, std::string_view field) {
  for (const text::ToolSpec& tool : chat.tools) {
    if (tool.name == chat.tool_choice_name) {
      return {};
    }
  }
  return ApiError::bad_field(field,
                             fmt::format("no tool is named {}", shown(chat.tool_choice_name)));
}

MaybeError read_effort(const Json& value, const std::string& path, text::ChatRequest& chat) {
  using text::ThinkingEffort;
  constexpr std::array<std::pair<const char*, ThinkingEffort>, 6> kEfforts = {
      {{"minimal", ThinkingEffort::kLow},
       {"low", ThinkingEffort::kLow},
       {"medium", ThinkingEffort::kMedium},
       {"high", ThinkingEffort::kHigh},
       {"xhigh", ThinkingEffort::kMax},
       {"max", ThinkingEffort::kMax}}};
  if (value == "none") {
    chat.thinking = false;
    return {};
  }
  for (const auto& [name, effort] : kEfforts) {
    if (value == name) {
      chat.thinking_effort = effort;
      return {};
    }
  }
  return wrong_field(path, R"("none", "minimal", "low", "medium", "high", "xhigh" or "max")",
                     &value);
}

MaybeError read_schema(const Json& format, const std::string& path, const Limits& limits,
                       text::ChatRequest& chat) {
  FieldReader fields(format, path);
  const Json* schema = fields.object("schema");
  if (schema == nullptr) {
    return fields.ok() ? wrong_field(path + ".schema", "an object (a JSON schema)", nullptr)
                       : fields.error();
  }
  chat.response_format = text::ResponseFormat::kJsonSchema;
  chat.response_schema = json_text(*schema);
  if (static_cast<int64_t>(chat.response_schema.size()) > limits.schema_bytes) {
    return ApiError::bad_field(path + ".schema",
                               fmt::format("{} bytes exceed the limit of {}",
                                           chat.response_schema.size(), limits.schema_bytes));
  }
  return {};
}

void read_temperature(FieldReader& fields, const ModelInfo& model,
                      dense::SamplingParams& sampling) {
  if (model.defaults) {
    sampling.temperature = model.defaults->temperature.value_or(sampling.temperature);
    sampling.top_p = model.defaults->top_p.value_or(sampling.top_p);
  }
  double temperature = sampling.temperature;
  double top_p = sampling.top_p;
  fields.number("temperature", 0.0, 2.0, temperature);
  fields.number("top_p", 0.0, 1.0, top_p);
  sampling.temperature = static_cast<float>(temperature);
  sampling.top_p = static_cast<float>(top_p);
  if (!(top_p > 0.0)) {
    fields.fail("top_p", "expected a number above 0 and at most 1, found 0");
  }
}

void read_stop_list(FieldReader& fields, const char* key, const Limits& limits,
                    std::vector<std::string>& stops) {
  const Json* value = fields.array(key);
  if (value == nullptr) {
    return;
  }
  if (MaybeError error = check_count(fields.path(key), value->size(), limits.stops)) {
    return fields.fail(*error);
  }
  for (size_t i = 0; i < value->size(); ++i) {
    const Json& stop = (*value)[i];
    if (!stop.is_string() || stop.get_ref<const std::string&>().empty() ||
        static_cast<int64_t>(stop.get_ref<const std::string&>().size()) > limits.stop_bytes) {
      return fields.fail(wrong_field(element(fields.path(key), i),
                                     fmt::format("a string of 1 to {} bytes", limits.stop_bytes),
                                     &stop));
    }
    stops.push_back(stop.get<std::string>());
  }
}

}  // namespace triax::server
