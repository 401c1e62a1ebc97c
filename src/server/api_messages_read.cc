#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "server/api_fields.h"
#include "server/api_messages.h"

namespace triax::server {
namespace {

using Json = nlohmann::ordered_json;
using text::ChatMessage;
using text::ChatRequest;
using text::Role;

// A text block, appended as a part of the message's content.
MaybeError read_text_block(const Json& block, const std::string& path, ChatMessage& message) {
  FieldReader fields(block, path);
  const Json* text = fields.find("text");
  if (text == nullptr || !text->is_string()) {
    return wrong_field(path + ".text", "a string", text);
  }
  append_part(text->get_ref<const std::string&>(), message);
  return {};
}

// A string, or an array of text blocks: what a system prompt and a tool's result may be.
MaybeError read_text(const Json& value, const std::string& path, ChatMessage& message) {
  if (value.is_string()) {
    message.content = value.get<std::string>();
    return {};
  }
  if (!value.is_array()) {
    return wrong_field(path, "a string or an array of content blocks", &value);
  }
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string at = element(path, i);
    const ApiResult<std::string> type = type_of(value[i], at);
    if (!type.ok()) {
      return type.error();
    }
    if (*type != "text") {
      return unknown_type(at, "\"text\"", *type);
    }
    if (MaybeError error = read_text_block(value[i], at, message)) {
      return error;
    }
  }
  return {};
}

class ChatReader {
 public:
  ChatReader(const Json& body, const Limits& limits) : body_(body), limits_(limits) {}

  ApiResult<ChatRequest> read() {
    for (auto step : {&ChatReader::read_system, &ChatReader::read_messages, &ChatReader::read_tools,
                      &ChatReader::read_tool_choice, &ChatReader::read_thinking,
                      &ChatReader::read_output_config}) {
      if (MaybeError error = (this->*step)()) {
        return *error;
      }
    }
    return std::move(chat_);
  }

 private:
  MaybeError read_system() {
    const Json* system = FieldReader(body_).find("system");
    if (system == nullptr) {
      return {};
    }
    ChatMessage message{.role = Role::kSystem};
    MaybeError error = read_text(*system, "system", message);
    if (!message.content.empty()) {
      chat_.messages.push_back(std::move(message));
    }
    return error;
  }

  MaybeError read_messages() {
    const Json* messages = FieldReader(body_).find("messages");
    if (messages == nullptr || !messages->is_array() || messages->empty()) {
      return wrong_field("messages", "an array with at least one message", messages);
    }
    if (MaybeError error = check_count("messages", messages->size(), limits_.messages)) {
      return error;
    }
    for (size_t i = 0; i < messages->size(); ++i) {
      if (MaybeError error = read_message((*messages)[i], element("messages", i))) {
        return error;
      }
    }
    if (chat_.messages.back().role == Role::kAssistant) {
      return ApiError::bad_field(
          element("messages", messages->size() - 1),
          "the last message is the assistant's; this server does not continue a started answer");
    }
    return {};
  }

  MaybeError read_message(const Json& value, const std::string& path) {
    if (!value.is_object()) {
      return wrong_field(path, "an object", &value);
    }
    const FieldReader fields(value, path);
    const Json* role = fields.find("role");
    const Json* content = fields.find("content");
    const bool assistant = role != nullptr && *role == "assistant";
    if (role == nullptr || (!assistant && *role != "user" && *role != "system")) {
      return wrong_field(path + ".role", R"("user", "assistant" or "system")", role);
    }
    if (content == nullptr || !(content->is_string() || content->is_array())) {
      return wrong_field(path + ".content", "a string or an array of content blocks", content);
    }
    if (assistant) {
      return read_assistant(*content, path + ".content");
    }
    if (*role == "user") {
      return read_user(*content, path + ".content");
    }
    return read_text(*content, path + ".content",
                     chat_.messages.emplace_back(ChatMessage{.role = Role::kSystem}));
  }

  MaybeError read_user(const Json& content, const std::string& path) {
    if (content.is_string()) {
      chat_.messages.push_back({.role = Role::kUser, .content = content.get<std::string>()});
      return {};
    }
    bool in_text = false;  // the last message is this turn's text so far
    for (size_t i = 0; i < content.size(); ++i) {
      const std::string at = element(path, i);
      const ApiResult<std::string> type = type_of(content[i], at);
      if (!type.ok()) {
        return type.error();
      }
      MaybeError error;
      if (*type == "text") {
        if (!in_text) {
          chat_.messages.push_back({.role = Role::kUser});
        }
        in_text = true;
        error = read_text_block(content[i], at, chat_.messages.back());
      } else if (*type == "tool_result") {
        in_text = false;
        error = read_tool_result(content[i], at);
      } else {
        error = unknown_type(at, R"("text" or "tool_result")", *type);
      }
      if (error) {
        return error;
      }
    }
    if (content.empty()) {
      chat_.messages.push_back({.role = Role::kUser});
    }
    return {};
  }

  MaybeError read_tool_result(const Json& block, const std::string& path) {
    const FieldReader fields(block, path);
    ChatMessage message{.role = Role::kTool};
    const Json* id = fields.find("tool_use_id");
    if (id == nullptr || !id->is_string()) {
      return wrong_field(path + ".tool_use_id", "a string", id);
    }
    message.tool_call_id = id->get<std::string>();
    const auto call = std::find_if(calls_.begin(), calls_.end(), [&](const text::ToolCall& c) {
      return c.id == message.tool_call_id;
    });
    if (call == calls_.end()) {
      return ApiError::bad_field(
          path + ".tool_use_id",
          fmt::format("{} is no tool_use of the assistant message before it", shown(*id)));
    }
    message.name = call->name;
    MaybeError error;
    if (const Json* content = fields.find("content")) {
      error = read_text(*content, path + ".content", message);
    }
    chat_.messages.push_back(std::move(message));
    return error;
  }

  MaybeError read_assistant(const Json& content, const std::string& path) {
    ChatMessage& message = chat_.messages.emplace_back(ChatMessage{.role = Role::kAssistant});
    calls_.clear();
    if (content.is_string()) {
      message.content = content.get<std::string>();
      return {};
    }
    for (size_t i = 0; i < content.size(); ++i) {
      const std::string at = element(path, i);
      const ApiResult<std::string> type = type_of(content[i], at);
      if (!type.ok()) {
        return type.error();
      }
      if (MaybeError error = read_assistant_block(content[i], *type, at, message)) {
        return error;
      }
    }
    calls_ = message.tool_calls;
    return {};
  }

  static MaybeError read_assistant_block(const Json& block, const std::string& type,
                                         const std::string& path, ChatMessage& message) {
    if (type == "text") {
      return read_text_block(block, path, message);
    }
    FieldReader fields(block, path);
    if (type == "thinking") {
      std::string thinking;
      fields.string("thinking", thinking);
      message.reasoning += thinking;
      return fields.error();
    }
    if (type == "redacted_thinking") {
      return {};  // nothing that this model could read
    }
    if (type != "tool_use") {
      return unknown_type(path, R"("text", "thinking" or "tool_use")", type);
    }
    text::ToolCall call;
    fields.string("id", call.id);
    fields.string("name", call.name);
    const Json* input = fields.object("input");
    if (call.name.empty()) {
      fields.fail("name", "a call needs the name of its tool");
    }
    call.arguments = input != nullptr ? json_text(*input) : "{}";
    message.tool_calls.push_back(std::move(call));
    return fields.error();
  }

  MaybeError read_tools() {
    FieldReader body(body_);
    const Json* tools = body.array("tools");
    if (tools == nullptr) {
      return body.error();
    }
    if (MaybeError error = check_count("tools", tools->size(), limits_.tools)) {
      return error;
    }
    for (size_t i = 0; i < tools->size(); ++i) {
      const Json& tool = (*tools)[i];
      const std::string path = element("tools", i);
      if (!tool.is_object()) {
        return wrong_field(path, "an object", &tool);
      }
      const Json* type = FieldReader(tool, path).find("type");
      if (type != nullptr && *type != "custom") {
        return unknown_type(path, "\"custom\": this server runs no tools itself", shown(*type));
      }
      ApiResult<text::ToolSpec> spec = function_tool(tool, path, "input_schema");
      if (!spec.ok()) {
        return spec.error();
      }
      chat_.tools.push_back(std::move(*spec));
    }
    return {};
  }

  MaybeError read_tool_choice() {
    FieldReader body(body_);
    const Json* choice = body.object("tool_choice");
    if (choice == nullptr) {
      return body.error();
    }
    const ApiResult<std::string> type = type_of(*choice, "tool_choice");
    if (!type.ok()) {
      return type.error();
    }
    if (*type == "none") {
      chat_.tool_choice = text::ToolChoice::kNone;
    } else if (*type == "any" || *type == "tool") {
      chat_.tool_choice = text::ToolChoice::kRequired;
    } else if (*type != "auto") {
      return unknown_type("tool_choice", R"("auto", "any", "tool" or "none")", *type);
    }
    if (*type != "tool") {
      return *type == "any" ? need_tools(chat_) : MaybeError();
    }
    const Json* name = FieldReader(*choice, "tool_choice").find("name");
    if (name == nullptr || !name->is_string()) {
      return wrong_field("tool_choice.name", "a string", name);
    }
    chat_.tool_choice_name = name->get<std::string>();
    return need_tool(chat_, "tool_choice.name");
  }

  MaybeError read_thinking() {
    chat_.thinking = false;
    FieldReader body(body_);
    const Json* thinking = body.object("thinking");
    if (thinking == nullptr) {
      return body.error();
    }
    const ApiResult<std::string> type = type_of(*thinking, "thinking");
    if (!type.ok()) {
      return type.error();
    }
    if (*type != "enabled" && *type != "disabled" && *type != "adaptive") {
      return unknown_type("thinking", R"("enabled", "adaptive" or "disabled")", *type);
    }
    chat_.thinking = *type != "disabled";
    return {};
  }

  MaybeError read_output_config() {
    FieldReader body(body_);
    const Json* config = body.object("output_config");
    if (config == nullptr) {
      return body.error();
    }
    FieldReader fields(*config, "output_config");
    if (const Json* effort = fields.find("effort")) {
      if (MaybeError error = read_effort(*effort, "output_config.effort", chat_)) {
        return error;
      }
    }
    const Json* format = fields.object("format");
    if (format == nullptr) {
      return fields.error();
    }
    const ApiResult<std::string> type = type_of(*format, "output_config.format");
    if (!type.ok()) {
      return type.error();
    }
    if (*type != "json_schema") {
      return unknown_type("output_config.format", "\"json_schema\"", *type);
    }
    return read_schema(*format, "output_config.format", limits_, chat_);
  }

  const Json& body_;
  const Limits& limits_;
  ChatRequest chat_;
  std::vector<text::ToolCall> calls_;  // of the last assistant message
};

MaybeError read_sampling(FieldReader& fields, const ModelInfo& model, GenerationRequest& request) {
  if (fields.find("max_tokens") == nullptr) {
    return wrong_field("max_tokens", "an integer", nullptr);
  }
  fields.integer("max_tokens", 1, kTokensMax, request.max_tokens);
  int64_t top_k = 0;
  fields.integer("top_k", 0, INT32_MAX, top_k);
  request.sampling.top_k = static_cast<int32_t>(top_k);
  read_temperature(fields, model, request.sampling);
  read_stop_list(fields, "stop_sequences", model.limits, request.stops);
  return fields.error();
}

}  // namespace

ApiResult<ChatRequest> read_messages_chat(const Json& body, const Limits& limits) {
  return ChatReader(body, limits).read();
}

ApiResult<Call> read_messages_call(const Json& body, const ModelInfo& model, std::string_view id) {
  FieldReader fields(body);
  MessagesAnswer answer{.id = fmt::format("msg_{}", id), .model = model.id};
  GenerationRequest request;
  fields.boolean("stream", answer.stream);
  if (MaybeError error = read_sampling(fields, model, request)) {
    return *error;
  }
  const ApiResult<ChatRequest> chat = read_messages_chat(body, model.limits);
  if (!chat.ok()) {
    return chat.error();
  }
  // The check of the prompt leaves room for one token; the wish is cut to what is there.
  answer.max_tokens = std::exchange(request.max_tokens, 0);
  if (MaybeError error = set_chat_prompt(model, *chat, request)) {
    return *error;
  }
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  request.max_tokens = std::min(answer.max_tokens, model.context_tokens - prompt);
  request.output.call_id_prefix = fmt::format("toolu_{}_", id);
  Call call;
  call.stream = answer.stream;
  call.requests.push_back(std::move(request));
  call.writer = make_messages_writer(std::move(answer));
  return call;
}

ApiResult<int64_t> count_messages_tokens(const Json& body, const ModelInfo& model) {
  const ApiResult<ChatRequest> chat = read_messages_chat(body, model.limits);
  if (!chat.ok()) {
    return chat.error();
  }
  if (!model.chat) {
    return ApiError::bad_field("model", "the served model has no chat format");
  }
  const Result<std::vector<int32_t>> prompt =
      text::encode_chat(*model.tokenizer, *model.chat, *chat);
  if (!prompt.ok()) {
    return ApiError::from_status(prompt.status());
  }
  return static_cast<int64_t>(prompt->size());
}

}  // namespace triax::server
