// The prompt format of Kimi K2 and Kimi Linear: turns between <|im_...|> tokens.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/chat.h"

namespace triax::text {

/// Order: tools, default system message when asked for, messages, generation prefix. A call's id is
/// functions.NAME:INDEX, kept when the client's id has this form, else counted from 0 in each turn.
/// What the format has no words for is left out: reasoning, effort, tool choice, response format.
/// Errors     kInvalidArgument: a tool's JSON
Result<std::vector<Segment>> render_k2(const ChatRequest& request);

/// The tool's name in a call id: what stands between `functions.` (or the last dot of another
/// prefix) and `:INDEX`.
std::string_view k2_tool_name(std::string_view call_id);

}  // namespace triax::text
