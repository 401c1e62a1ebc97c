// From the JSON of an OpenAI chat request to a ChatRequest, and tools back to JSON. Knows no HTTP;
// sampling parameters and all other fields of the body are the server's.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/chat.h"

namespace triax::text {

/// Reads messages, tools, tool_choice, response_format, thinking (a bool or {"type": "enabled" |
/// "disabled"}), thinking_effort or reasoning_effort ("low", "medium", "high", "max"; "none" turns
/// thinking off), add_generation_prompt. Other fields are not looked at.
/// Content is a string, null where there may be none, or an array of {"type": "text", "text"};
/// images and other media are refused. The role "developer" is read as system.
/// Errors     kInvalidArgument; the message is "FIELD: what is wrong", e.g.
///            "messages[2].content[0].type: expected \"text\", found \"image_url\"; ..."
Result<ChatRequest> parse_chat_request(std::string_view json);

/// The same for a body that parse_json (json_text.h) has read and whose limits hold.
Result<ChatRequest> read_chat_request(const nlohmann::ordered_json& body);

enum class KeyOrder { kAsGiven, kSorted };

/// The tools as a compact JSON array.
/// Errors     kInvalidArgument when a declaration is no JSON, named as `path`[index]
Result<std::string> tools_to_json(const std::vector<ToolSpec>& tools, KeyOrder order,
                                  const std::string& path);

}  // namespace triax::text
