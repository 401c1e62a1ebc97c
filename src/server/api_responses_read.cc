#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "server/api_fields.h"
#include "server/api_responses.h"

namespace triax::server {
namespace {

using Json = nlohmann::ordered_json;
using text::ChatMessage;
using text::ChatRequest;
using text::Role;

// A string, or an array of parts that hold text.
MaybeError read_text(const Json* value, const std::string& path, ChatMessage& message) {
  if (value == nullptr || !(value->is_string() || value->is_array())) {
    return wrong_field(path, "a string or an array of content parts", value);
  }
  if (value->is_string()) {
    message.content = value->get<std::string>();
    return {};
  }
  for (size_t i = 0; i < value->size(); ++i) {
    const std::string at = element(path, i);
    const ApiResult<std::string> type = type_of((*value)[i], at);
    if (!type.ok()) {
      return type.error();
    }
    const bool refusal = *type == "refusal";
    if (!refusal && *type != "input_text" && *type != "output_text" && *type != "text") {
      return unknown_type(at, R"("input_text" or "output_text")", *type);
    }
    const char* key = refusal ? "refusal" : "text";
    const Json* text = FieldReader((*value)[i], at).find(key);
    if (text == nullptr || !text->is_string()) {
      return wrong_field(fmt::format("{}.{}", at, key), "a string", text);
    }
    append_part(text->get_ref<const std::string&>(), message);
  }
  return {};
}

// Items one after another; those of the assistant gather until another speaks.
class ItemReader {
 public:
  explicit ItemReader(std::vector<ChatMessage>& messages) : messages_(messages) {}

  MaybeError read(const Json& item, const std::string& path) {
    if (!item.is_object()) {
      return wrong_field(path, "an object", &item);
    }
    FieldReader fields(item, path);
    std::string type = "message";
    fields.string("type", type);
    if (!fields.ok()) {
      return fields.error();
    }
    if (type == "message") {
      return read_message(fields);
    }
    if (type == "function_call") {
      return read_call(fields);
    }
    if (type == "function_call_output") {
      return read_call_output(fields);
    }
    if (type == "reasoning") {
      return read_reasoning(fields);
    }
    if (type == "item_reference") {
      return ApiError::bad_field(path + ".type",
                                 "this server keeps no items; send the item itself");
    }
    return unknown_type(
        path, R"("message", "function_call", "function_call_output" or "reasoning")", type);
  }

 private:
  MaybeError read_message(FieldReader& fields) {
    const Json* role = fields.find("role");
    ChatMessage message;
    if (role != nullptr && *role == "assistant") {
      message.role = Role::kAssistant;
    } else if (role != nullptr && (*role == "system" || *role == "developer")) {
      message.role = Role::kSystem;
    } else if (role == nullptr || *role != "user") {
      return wrong_field(fields.path("role"), R"("user", "assistant", "system" or "developer")",
                         role);
    }
    if (MaybeError error = read_text(fields.find("content"), fields.path("content"), message)) {
      return error;
    }
    if (message.role != Role::kAssistant) {
      gathering_ = false;
      messages_.push_back(std::move(message));
      return {};
    }
    ChatMessage& answer = assistant(stage_ >= Stage::kText, Stage::kText);
    answer.content = std::move(message.content);
    answer.content_parts = std::move(message.content_parts);
    return {};
  }

  MaybeError read_call(FieldReader& fields) {
    text::ToolCall call;
    fields.string("call_id", call.id);
    fields.string("name", call.name);
    fields.string("arguments", call.arguments);
    if (call.id.empty()) {
      fields.fail("call_id", "a call needs an id");
    }
    if (call.name.empty()) {
      fields.fail("name", "a call needs the name of its function");
    }
    if (fields.ok()) {
      calls_.push_back({call.id, call.name, {}});
      assistant(false, Stage::kCalls).tool_calls.push_back(std::move(call));
    }
    return fields.error();
  }

  MaybeError read_call_output(FieldReader& fields) {
    ChatMessage message{.role = Role::kTool};
    fields.string("call_id", message.tool_call_id);
    // The last call of that name: ids may repeat between answers.
    const auto call = std::find_if(calls_.rbegin(), calls_.rend(), [&](const text::ToolCall& c) {
      return c.id == message.tool_call_id;
    });
    if (fields.ok() && call == calls_.rend()) {
      fields.fail("call_id",
                  fmt::format("{} is no function_call before it", shown(message.tool_call_id)));
    }
    if (!fields.ok()) {
      return fields.error();
    }
    message.name = call->name;
    if (MaybeError error = read_text(fields.find("output"), fields.path("output"), message)) {
      return error;
    }
    gathering_ = false;
    messages_.push_back(std::move(message));
    return {};
  }

  // The full text where it is there, else the summary. encrypted_content is another server's.
  MaybeError read_reasoning(FieldReader& fields) {
    const Json* content = fields.array("content");
    const Json* summary = fields.array("summary");
    if (!fields.ok()) {
      return fields.error();
    }
    const bool full = content != nullptr && !content->empty();
    const Json* parts = full ? content : summary;
    std::string reasoning;
    for (size_t i = 0; parts != nullptr && i < parts->size(); ++i) {
      const std::string path = element(fields.path(full ? "content" : "summary"), i);
      const Json* text = FieldReader((*parts)[i], path).find("text");
      if (text == nullptr || !text->is_string()) {
        return wrong_field(path + ".text", "a string", text);
      }
      reasoning += text->get_ref<const std::string&>();
    }
    assistant(stage_ > Stage::kReasoning, Stage::kReasoning).reasoning += reasoning;
    return {};
  }

  enum class Stage { kReasoning, kText, kCalls };

  // The assistant's message that an item goes to.
  ChatMessage& assistant(bool fresh, Stage stage) {
    if (!gathering_ || fresh) {
      messages_.push_back({.role = Role::kAssistant});
    }
    gathering_ = true;
    stage_ = stage;
    return messages_.back();
  }

  std::vector<ChatMessage>& messages_;
  std::vector<text::ToolCall> calls_;  // so far; ids and names
  bool gathering_ = false;             // the last message is the assistant's and may grow
  Stage stage_ = Stage::kReasoning;    // of the last of its items
};

class ChatReader {
 public:
  ChatReader(const Json& body, const Limits& limits) : body_(body), limits_(limits) {}

  ApiResult<ChatRequest> read() {
    for (auto step :
         {&ChatReader::read_input, &ChatReader::read_tools, &ChatReader::read_tool_choice,
          &ChatReader::read_reasoning, &ChatReader::read_text_format}) {
      if (MaybeError error = (this->*step)()) {
        return *error;
      }
    }
    return std::move(chat_);
  }

 private:
  MaybeError read_input() {
    FieldReader fields(body_);
    std::string instructions;
    fields.string("instructions", instructions);
    if (!instructions.empty()) {
      chat_.messages.push_back({.role = Role::kSystem, .content = std::move(instructions)});
    }
    const Json* input = fields.find("input");
    if (!fields.ok()) {
      return fields.error();
    }
    if (input != nullptr && input->is_string()) {
      chat_.messages.push_back({.role = Role::kUser, .content = input->get<std::string>()});
      return {};
    }
    if (input == nullptr || !input->is_array() || input->empty()) {
      return wrong_field("input", "a string or an array with at least one item", input);
    }
    if (MaybeError error = check_count("input", input->size(), limits_.messages)) {
      return error;
    }
    ItemReader items(chat_.messages);
    for (size_t i = 0; i < input->size(); ++i) {
      if (MaybeError error = items.read((*input)[i], element("input", i))) {
        return error;
      }
    }
    return {};
  }

  MaybeError read_tools() {
    FieldReader fields(body_);
    const Json* tools = fields.array("tools");
    if (tools == nullptr) {
      return fields.error();
    }
    if (MaybeError error = check_count("tools", tools->size(), limits_.tools)) {
      return error;
    }
    for (size_t i = 0; i < tools->size(); ++i) {
      const std::string path = element("tools", i);
      const ApiResult<std::string> type = type_of((*tools)[i], path);
      if (!type.ok()) {
        return type.error();
      }
      if (*type != "function") {
        return unknown_type(path, "\"function\" (this server runs no tools itself)", *type);
      }
      ApiResult<text::ToolSpec> spec = function_tool((*tools)[i], path, "parameters");
      if (!spec.ok()) {
        return spec.error();
      }
      chat_.tools.push_back(std::move(*spec));
    }
    return {};
  }

  MaybeError read_tool_choice() {
    const Json* choice = FieldReader(body_).find("tool_choice");
    if (choice == nullptr || *choice == "auto") {
      return {};
    }
    if (*choice == "none") {
      chat_.tool_choice = text::ToolChoice::kNone;
      return {};
    }
    if (*choice == "required") {
      chat_.tool_choice = text::ToolChoice::kRequired;
      return need_tools(chat_);
    }
    if (!choice->is_object()) {
      return wrong_field("tool_choice", R"("auto", "none", "required" or an object)", choice);
    }
    const ApiResult<std::string> type = type_of(*choice, "tool_choice");
    if (!type.ok()) {
      return type.error();
    }
    if (*type != "function") {
      return unknown_type("tool_choice", "\"function\"", *type);
    }
    const Json* name = FieldReader(*choice, "tool_choice").find("name");
    if (name == nullptr || !name->is_string()) {
      return wrong_field("tool_choice.name", "a string", name);
    }
    chat_.tool_choice = text::ToolChoice::kRequired;
    chat_.tool_choice_name = name->get<std::string>();
    return need_tool(chat_, "tool_choice.name");
  }

  MaybeError read_reasoning() {
    FieldReader fields(body_);
    const Json* reasoning = fields.object("reasoning");
    if (reasoning == nullptr) {
      return fields.error();
    }
    const Json* effort = FieldReader(*reasoning, "reasoning").find("effort");
    return effort == nullptr ? MaybeError() : read_effort(*effort, "reasoning.effort", chat_);
  }

  MaybeError read_text_format() {
    FieldReader fields(body_);
    const Json* text = fields.object("text");
    if (text == nullptr) {
      return fields.error();
    }
    const Json* format = FieldReader(*text, "text").find("format");
    if (format == nullptr) {
      return {};
    }
    const ApiResult<std::string> type = type_of(*format, "text.format");
    if (!type.ok()) {
      return type.error();
    }
    if (*type == "json_schema") {
      return read_schema(*format, "text.format", limits_, chat_);
    }
    if (*type == "json_object") {
      chat_.response_format = text::ResponseFormat::kJsonObject;
    } else if (*type != "text") {
      return unknown_type("text.format", R"("text", "json_object" or "json_schema")", *type);
    }
    return {};
  }

  const Json& body_;
  const Limits& limits_;
  ChatRequest chat_;
};

// What a server without memory cannot do.
MaybeError refuse_memory(const FieldReader& fields) {
  for (const char* key : {"previous_response_id", "conversation", "prompt"}) {
    if (fields.find(key) != nullptr) {
      return ApiError::bad_field(
          key, "this server keeps nothing between requests; send the whole conversation as input");
    }
  }
  if (const Json* background = fields.find("background");
      background != nullptr && *background == true) {
    return ApiError::bad_field("background",
                               "answers are not kept, so they cannot be fetched later");
  }
  if (const Json* truncation = fields.find("truncation");
      truncation != nullptr && *truncation != "disabled") {
    return wrong_field("truncation", "\"disabled\" (a conversation is never cut)", truncation);
  }
  return {};
}

MaybeError read_logprobs(FieldReader& fields, GenerationRequest& request) {
  int64_t top = 0;
  fields.integer("top_logprobs", 0, 20, top);
  request.sampling.top_logprobs = static_cast<int32_t>(top);
  request.logprobs = top > 0;
  if (const Json* include = fields.array("include")) {
    for (const Json& what : *include) {
      request.logprobs = request.logprobs || what == "message.output_text.logprobs";
    }
  }
  return fields.error();
}

// Of `body` the member, or `otherwise`.
Json member_or(const Json& body, const char* key, Json otherwise) {
  const Json* value = FieldReader(body).find(key);
  return value != nullptr ? *value : otherwise;
}

Json echo_of(const Json& body, const ModelInfo& model, const GenerationRequest& request) {
  return {{"model", model.id},
          {"instructions", member_or(body, "instructions", nullptr)},
          {"max_output_tokens", member_or(body, "max_output_tokens", nullptr)},
          {"metadata", member_or(body, "metadata", Json::object())},
          {"parallel_tool_calls", true},
          {"previous_response_id", nullptr},
          {"reasoning", member_or(body, "reasoning", {{"effort", nullptr}, {"summary", nullptr}})},
          {"store", false},
          {"temperature", request.sampling.temperature},
          {"text", member_or(body, "text", {{"format", {{"type", "text"}}}})},
          {"tool_choice", member_or(body, "tool_choice", "auto")},
          {"tools", member_or(body, "tools", Json::array())},
          {"top_logprobs", request.sampling.top_logprobs},
          {"top_p", request.sampling.top_p},
          {"truncation", "disabled"}};
}

MaybeError read_settings(const Json& body, const ModelInfo& model, GenerationRequest& request,
                         bool& stream) {
  FieldReader fields(body);
  if (MaybeError error = refuse_memory(fields)) {
    return error;
  }
  fields.boolean("stream", stream);
  bool store = false;
  fields.boolean("store", store);
  static_cast<void>(fields.object("metadata"));
  fields.integer("max_output_tokens", 1, kTokensMax, request.max_tokens);
  read_temperature(fields, model, request.sampling);
  return fields.ok() ? read_logprobs(fields, request) : fields.error();
}

}  // namespace

ApiResult<ChatRequest> read_responses_chat(const Json& body, const Limits& limits) {
  return ChatReader(body, limits).read();
}

ApiResult<Call> read_responses_call(const Json& body, const ModelInfo& model, std::string_view id,
                                    int64_t now) {
  GenerationRequest request;
  ResponsesAnswer answer{.id = std::string(id), .created = now};
  if (MaybeError error = read_settings(body, model, request, answer.stream)) {
    return *error;
  }
  const ApiResult<ChatRequest> chat = read_responses_chat(body, model.limits);
  if (!chat.ok()) {
    return chat.error();
  }
  if (MaybeError error = set_chat_prompt(model, *chat, request)) {
    return *error;
  }
  request.output.call_id_prefix = fmt::format("call_{}_", id);
  answer.echo = echo_of(body, model, request);
  Call call;
  call.stream = answer.stream;
  call.requests.push_back(std::move(request));
  call.writer = make_responses_writer(std::move(answer));
  return call;
}

}  // namespace triax::server
