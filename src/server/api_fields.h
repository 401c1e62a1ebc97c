// Parts of a request that Anthropic's Messages API and OpenAI's Responses API share: tools, effort,
// schemas, sampling, and errors about them. Knows neither API.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"
#include "server/generation.h"
#include "text/chat.h"

namespace triax::server {

using MaybeError = std::optional<ApiError>;

/// The most that max_tokens may ask for; far above any context.
inline constexpr int64_t kTokensMax = int64_t{1} << 40;

/// "messages" and 3: "messages[3]".
std::string element(const std::string& path, size_t index);

/// `found` null: the field is absent.
ApiError wrong_field(std::string_view path, std::string_view expected,
                     const nlohmann::ordered_json* found);

/// The string "type" of the object `value`, which lies at `path`.
ApiResult<std::string> type_of(const nlohmann::ordered_json& value, const std::string& path);

/// About the type of the object at `path`.
ApiError unknown_type(const std::string& path, std::string_view expected, std::string_view found);

/// An error when there are more than `most`.
MaybeError check_count(std::string_view path, size_t count, int64_t most);

/// `text` as one more part of the content. A single part is none.
void append_part(const std::string& text, text::ChatMessage& message);

/// The OpenAI declaration, as models know it, of a tool with name, description and, under
/// `schema_key`, the schema of its arguments.
ApiResult<text::ToolSpec> function_tool(const nlohmann::ordered_json& tool, const std::string& path,
                                        const char* schema_key);

/// An error when calls are required and there is no tool; when there is none of tool_choice_name,
/// which came in `field`.
MaybeError need_tools(const text::ChatRequest& chat);
MaybeError need_tool(const text::ChatRequest& chat, std::string_view field);

/// How much to think. Kimi knows low, medium, high and max; "minimal" is low and "xhigh" is max
/// there, "none" turns thinking off.
MaybeError read_effort(const nlohmann::ordered_json& value, const std::string& path,
                       text::ChatRequest& chat);

/// The answer follows the member "schema" of `format`.
MaybeError read_schema(const nlohmann::ordered_json& format, const std::string& path,
                       const Limits& limits, text::ChatRequest& chat);

/// temperature and top_p, else the model's own.
void read_temperature(FieldReader& fields, const ModelInfo& model, dense::SamplingParams& sampling);

/// An array of strings, none empty.
void read_stop_list(FieldReader& fields, const char* key, const Limits& limits,
                    std::vector<std::string>& stops);

}  // namespace triax::server
