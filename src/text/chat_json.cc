#include "text/chat_json.h"

#include <fmt/core.h>

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "text/json_text.h"

namespace triax::text {
namespace {

using Json = nlohmann::ordered_json;

enum class Presence { kRequired, kOptional };

// What a message shows of a value: itself if it is short, else its type.
std::string found(const Json& value) {
  if (value.is_string() && value.get_ref<const std::string&>().size() <= 40) {
    return quote_json(value.get_ref<const std::string&>());
  }
  if (value.is_number() || value.is_boolean() || value.is_null()) {
    return value.dump();
  }
  return value.is_object() ? "an object" : value.is_array() ? "an array" : "a string";
}

Status wrong(const std::string& path, std::string_view expected, const Json& value) {
  return Status::invalid_argument(
      fmt::format("{}: expected {}, found {}", path, expected, found(value)));
}

std::string child(const std::string& path, std::string_view key) {
  return path.empty() ? std::string(key) : fmt::format("{}.{}", path, key);
}

std::string element(const std::string& path, size_t index) {
  return fmt::format("{}[{}]", path, index);
}

// The member, or null when it is absent or JSON null, which clients send for "not set".
const Json* member(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

Status read_string(const Json& object, const char* key, const std::string& path, Presence presence,
                   std::string& out) {
  const Json* value = member(object, key);
  if (value == nullptr) {
    return presence == Presence::kOptional
               ? Status()
               : Status::invalid_argument(child(path, key) + ": expected a string, found nothing");
  }
  if (!value->is_string()) {
    return wrong(child(path, key), "a string", *value);
  }
  out = value->get<std::string>();
  return {};
}

Status read_bool(const Json& object, const char* key, bool& out) {
  if (const Json* value = member(object, key)) {
    if (!value->is_boolean()) {
      return wrong(key, "true or false", *value);
    }
    out = value->get<bool>();
  }
  return {};
}

// One of `names`, by its place.
Status read_choice(const Json& value, const std::string& path,
                   std::initializer_list<std::string_view> names, size_t& out) {
  std::string expected;
  out = 0;
  for (std::string_view name : names) {
    if (value.is_string() && value.get_ref<const std::string&>() == name) {
      return {};
    }
    expected += fmt::format("{}\"{}\"", expected.empty() ? "" : " or ", name);
    ++out;
  }
  return wrong(path, expected, value);
}

Status read_part(const Json& part, const std::string& path, ChatMessage& message) {
  if (!part.is_object()) {
    return wrong(path, "an object", part);
  }
  const Json* type = member(part, "type");
  if (type == nullptr || !type->is_string()) {
    return wrong(child(path, "type"), "a string", type != nullptr ? *type : Json());
  }
  if (type->get_ref<const std::string&>() != "text") {
    return Status::invalid_argument(fmt::format(
        "{}: expected \"text\", found {}; this engine reads text only, no images or other media",
        child(path, "type"), found(*type)));
  }
  std::string text;
  if (Status s = read_string(part, "text", path, Presence::kRequired, text); !s.ok()) {
    return s;
  }
  message.content_parts.push_back(text.size());
  message.content += text;
  return {};
}

Status read_content(const Json& object, const std::string& path, Presence presence,
                    ChatMessage& message) {
  const std::string field = child(path, "content");
  const Json* content = member(object, "content");
  if (content == nullptr) {
    return presence == Presence::kOptional
               ? Status()
               : Status::invalid_argument(field + ": expected a string or an array, found nothing");
  }
  if (content->is_string()) {
    message.content = content->get<std::string>();
    return {};
  }
  if (!content->is_array()) {
    return wrong(field, "a string or an array", *content);
  }
  for (size_t i = 0; i < content->size(); ++i) {
    if (Status s = read_part((*content)[i], element(field, i), message); !s.ok()) {
      return s;
    }
  }
  if (message.content_parts.size() == 1) {
    message.content_parts.clear();
  }
  return {};
}

Status read_call(const Json& value, const std::string& path, ToolCall& call) {
  if (!value.is_object()) {
    return wrong(path, "an object", value);
  }
  if (Status s = read_string(value, "id", path, Presence::kOptional, call.id); !s.ok()) {
    return s;
  }
  const std::string function_path = child(path, "function");
  const Json* function = member(value, "function");
  if (function == nullptr || !function->is_object()) {
    return wrong(function_path, "an object", function != nullptr ? *function : Json());
  }
  if (Status s = read_string(*function, "name", function_path, Presence::kRequired, call.name);
      !s.ok()) {
    return s;
  }
  if (const Json* arguments = member(*function, "arguments")) {
    if (!arguments->is_string() && !arguments->is_object()) {
      return wrong(child(function_path, "arguments"), "a string that holds a JSON object",
                   *arguments);
    }
    call.arguments = arguments->is_string() ? arguments->get<std::string>() : arguments->dump();
  }
  return {};
}

Status read_calls(const Json& object, const std::string& path, std::vector<ToolCall>& calls) {
  const Json* value = member(object, "tool_calls");
  if (value == nullptr) {
    return {};
  }
  const std::string field = child(path, "tool_calls");
  if (!value->is_array()) {
    return wrong(field, "an array", *value);
  }
  calls.resize(value->size());
  for (size_t i = 0; i < calls.size(); ++i) {
    if (Status s = read_call((*value)[i], element(field, i), calls[i]); !s.ok()) {
      return s;
    }
  }
  return {};
}

Status read_tool(const Json& value, const std::string& path, ToolSpec& tool) {
  if (!value.is_object()) {
    return wrong(path, "an object", value);
  }
  if (const Json* type = member(value, "type")) {
    size_t choice = 0;
    if (Status s = read_choice(*type, child(path, "type"), {"function"}, choice); !s.ok()) {
      return s;
    }
  }
  const std::string function_path = child(path, "function");
  const Json* function = member(value, "function");
  if (function == nullptr || !function->is_object()) {
    return wrong(function_path, "an object", function != nullptr ? *function : Json());
  }
  if (Status s = read_string(*function, "name", function_path, Presence::kRequired, tool.name);
      !s.ok()) {
    return s;
  }
  if (tool.name.empty()) {
    return Status::invalid_argument(child(function_path, "name") + ": a tool needs a name");
  }
  if (const Json* parameters = member(*function, "parameters");
      parameters != nullptr && !parameters->is_object()) {
    return wrong(child(function_path, "parameters"), "an object (a JSON schema)", *parameters);
  }
  tool.json = value.dump();
  return {};
}

Status read_tools(const Json& object, const std::string& path, std::vector<ToolSpec>& tools) {
  const Json* value = member(object, "tools");
  if (value == nullptr) {
    return {};
  }
  const std::string field = child(path, "tools");
  if (!value->is_array()) {
    return wrong(field, "an array", *value);
  }
  tools.resize(value->size());
  for (size_t i = 0; i < tools.size(); ++i) {
    if (Status s = read_tool((*value)[i], element(field, i), tools[i]); !s.ok()) {
      return s;
    }
  }
  return {};
}

Status read_role(const Json& value, const std::string& path, Role& role) {
  const Json* field = member(value, "role");
  size_t choice = 0;
  if (Status s = read_choice(field != nullptr ? *field : Json(), child(path, "role"),
                             {"system", "developer", "user", "assistant", "tool"}, choice);
      !s.ok()) {
    return s;
  }
  constexpr Role kRoles[] = {Role::kSystem, Role::kSystem, Role::kUser, Role::kAssistant,
                             Role::kTool};
  role = kRoles[choice];
  return {};
}

Status read_reasoning(const Json& value, const std::string& path, ChatMessage& message) {
  if (Status s =
          read_string(value, "reasoning_content", path, Presence::kOptional, message.reasoning);
      !s.ok() || !message.reasoning.empty()) {
    return s;
  }
  return read_string(value, "reasoning", path, Presence::kOptional, message.reasoning);
}

Status read_message(const Json& value, const std::string& path, ChatMessage& message) {
  if (!value.is_object()) {
    return wrong(path, "an object", value);
  }
  if (Status s = read_role(value, path, message.role); !s.ok()) {
    return s;
  }
  if (Status s = read_string(value, "name", path, Presence::kOptional, message.name); !s.ok()) {
    return s;
  }
  Presence content = Presence::kRequired;
  Status status;
  if (message.role == Role::kSystem) {
    status = read_tools(value, path, message.tools);
    content = message.tools.empty() ? Presence::kRequired : Presence::kOptional;
  } else if (message.role == Role::kAssistant) {
    status = read_calls(value, path, message.tool_calls);
    if (status.ok()) {
      status = read_reasoning(value, path, message);
    }
    content = Presence::kOptional;
  } else if (message.role == Role::kTool) {
    status = read_string(value, "tool_call_id", path, Presence::kOptional, message.tool_call_id);
    content = Presence::kOptional;
  }
  return status.ok() ? read_content(value, path, content, message) : status;
}

Status read_messages(const Json& body, std::vector<ChatMessage>& messages) {
  const Json* value = member(body, "messages");
  if (value == nullptr || !value->is_array()) {
    return wrong("messages", "an array", value != nullptr ? *value : Json());
  }
  if (value->empty()) {
    return Status::invalid_argument("messages: expected at least one message, found none");
  }
  messages.resize(value->size());
  for (size_t i = 0; i < messages.size(); ++i) {
    if (Status s = read_message((*value)[i], element("messages", i), messages[i]); !s.ok()) {
      return s;
    }
  }
  return {};
}

Status read_thinking(const Json& body, ChatRequest& request) {
  if (const Json* thinking = member(body, "thinking"); thinking != nullptr) {
    if (thinking->is_object()) {
      const Json* type = member(*thinking, "type");
      size_t choice = 0;
      if (Status s = read_choice(type != nullptr ? *type : Json(), "thinking.type",
                                 {"enabled", "disabled"}, choice);
          !s.ok()) {
        return s;
      }
      request.thinking = choice == 0;
    } else if (thinking->is_boolean()) {
      request.thinking = thinking->get<bool>();
    } else {
      return wrong("thinking", "true, false or an object with a type", *thinking);
    }
  }
  for (const char* key : {"reasoning_effort", "thinking_effort"}) {
    if (const Json* effort = member(body, key)) {
      size_t choice = 0;
      if (Status s = read_choice(*effort, key, {"low", "medium", "high", "max", "none"}, choice);
          !s.ok()) {
        return s;
      }
      constexpr ThinkingEffort kEfforts[] = {ThinkingEffort::kLow, ThinkingEffort::kMedium,
                                             ThinkingEffort::kHigh, ThinkingEffort::kMax};
      if (choice == 4) {
        request.thinking = false;
      } else {
        request.thinking_effort = kEfforts[choice];
      }
    }
  }
  return {};
}

bool declares(const ChatRequest& request, std::string_view name) {
  const auto among = [name](const std::vector<ToolSpec>& tools) {
    for (const ToolSpec& tool : tools) {
      if (tool.name == name) {
        return true;
      }
    }
    return false;
  };
  bool declared = among(request.tools);
  for (const ChatMessage& message : request.messages) {
    declared = declared || among(message.tools);
  }
  return declared;
}

// Messages and tools are there already.
Status read_tool_choice(const Json& body, ChatRequest& request) {
  const Json* value = member(body, "tool_choice");
  if (value == nullptr) {
    return {};
  }
  if (!value->is_object()) {
    size_t choice = 0;
    Status s = read_choice(*value, "tool_choice", {"auto", "required", "none"}, choice);
    constexpr ToolChoice kChoices[] = {ToolChoice::kAuto, ToolChoice::kRequired, ToolChoice::kNone};
    request.tool_choice = s.ok() ? kChoices[choice] : ToolChoice::kAuto;
    return s;
  }
  const Json* function = member(*value, "function");
  if (function == nullptr || !function->is_object()) {
    return wrong("tool_choice.function", "an object", function != nullptr ? *function : Json());
  }
  if (Status s = read_string(*function, "name", "tool_choice.function", Presence::kRequired,
                             request.tool_choice_name);
      !s.ok()) {
    return s;
  }
  if (!declares(request, request.tool_choice_name)) {
    return Status::invalid_argument(fmt::format("tool_choice.function.name: no tool is named {}",
                                                quote_json(request.tool_choice_name)));
  }
  request.tool_choice = ToolChoice::kRequired;
  return {};
}

Status read_response_format(const Json& body, ChatRequest& request) {
  const Json* value = member(body, "response_format");
  if (value == nullptr) {
    return {};
  }
  if (!value->is_object()) {
    return wrong("response_format", "an object", *value);
  }
  const Json* type = member(*value, "type");
  size_t choice = 0;
  if (Status s = read_choice(type != nullptr ? *type : Json(), "response_format.type",
                             {"text", "json_object", "json_schema"}, choice);
      !s.ok()) {
    return s;
  }
  constexpr ResponseFormat kFormats[] = {ResponseFormat::kText, ResponseFormat::kJsonObject,
                                         ResponseFormat::kJsonSchema};
  request.response_format = kFormats[choice];
  if (request.response_format != ResponseFormat::kJsonSchema) {
    return {};
  }
  const Json* outer = member(*value, "json_schema");
  if (outer == nullptr || !outer->is_object()) {
    return wrong("response_format.json_schema", "an object", outer != nullptr ? *outer : Json());
  }
  const Json* schema = member(*outer, "schema");
  if (schema == nullptr || !schema->is_object()) {
    return wrong("response_format.json_schema.schema", "an object (a JSON schema)",
                 schema != nullptr ? *schema : Json());
  }
  request.response_schema = schema->dump();
  return {};
}

}  // namespace

Result<ChatRequest> read_chat_request(const Json& body) {
  if (!body.is_object()) {
    return wrong("body", "an object", body);
  }
  ChatRequest request;
  Status status = read_messages(body, request.messages);
  if (status.ok()) {
    status = read_tools(body, "", request.tools);
  }
  if (status.ok()) {
    status = read_thinking(body, request);
  }
  if (status.ok()) {
    status = read_tool_choice(body, request);
  }
  if (status.ok()) {
    status = read_response_format(body, request);
  }
  if (status.ok()) {
    status = read_bool(body, "add_generation_prompt", request.add_generation_prompt);
  }
  if (!status.ok()) {
    return status;
  }
  return request;
}

Result<ChatRequest> parse_chat_request(std::string_view json) {
  const Result<Json> body = parse_json(json);
  if (!body.ok()) {
    return Status::invalid_argument("body: " + body.status().message());
  }
  return read_chat_request(*body);
}

Result<std::string> tools_to_json(const std::vector<ToolSpec>& tools, KeyOrder order,
                                  const std::string& path) {
  std::string array = "[";
  for (size_t i = 0; i < tools.size(); ++i) {
    const Result<Json> tool = parse_json(tools[i].json);
    if (!tool.ok()) {
      return Status::invalid_argument(element(path, i) + ": " + tool.status().message());
    }
    array += i > 0 ? "," : "";
    array += order == KeyOrder::kSorted ? sorted_json(*tool) : tool->dump();
  }
  return array + "]";
}

}  // namespace triax::text
