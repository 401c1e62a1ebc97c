// What a model writes behind a chat prompt, as a form: K3's XTML and K2's turns.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "text/chat.h"
#include "text/grammar/json_form.h"

namespace triax::text::internal {

/// `response`: the form of the response's text, free when absent. `request` names the tools.
/// Shape      K3: thinking, response, tools, the message's end; K2: text, the section of calls
/// Errors     kInvalidArgument when the tokenizer lacks a control token, or a tool that says
///            "strict": true has a schema that cannot be held; a tool choice without that tool
Result<FormId> chat_form(const Tokenizer& tokenizer, ChatFormat format, const ChatRequest& request,
                         Forms& forms, JsonForms& json, std::optional<FormId> response);

/// A tool's declaration as far as its calls matter.
struct ToolForm {
  std::string name;
  std::string parameters = {};  // JSON text of a schema; empty: none is given
  bool strict = false;
  std::string path = {};  // "tools[2].function.parameters"
};

/// The tools that may be called: all of them, or the one that tool_choice names.
/// Errors     kInvalidArgument for a declaration that is no JSON object, or an unknown choice
Result<std::vector<ToolForm>> callable_tools(const ChatRequest& request);

/// Arguments of a call as K3 writes them, one by one.
Result<FormId> k3_arguments(const Tokenizer& tokenizer, const ToolForm& tool, Forms& forms,
                            JsonForms& json);

/// The control token of this name.
Result<FormId> control(const Tokenizer& tokenizer, std::string_view name, Forms& forms);

}  // namespace triax::text::internal
