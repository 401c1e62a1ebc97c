// The prompt format of Kimi K3 ("XTML"): tags between control tokens. The reverse is
// output_parser.h.
#pragma once

#include <vector>

#include "base/status.h"
#include "text/chat.h"

namespace triax::text {

/// Order: tools, thinking effort, messages, tool choice, response format, generation prefix.
/// Each control token, tag name, ` key`, `="`, value, `"` and text is a segment of its own.
/// Tool results that follow one another are put in the order of the calls they answer when all of
/// them name a call of the last assistant message; their index counts from 1 after each assistant
/// message. With thinking off no think block is written and reasoning of the history is dropped.
/// Errors     kInvalidArgument: a tool's JSON, the response schema, a tool result without a tool
Result<std::vector<Segment>> render_k3(const ChatRequest& request);

}  // namespace triax::text
