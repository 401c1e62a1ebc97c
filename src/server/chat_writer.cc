// The answers of /v1/chat/completions.
#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

#include "server/api_chat.h"
#include "server/request_fields.h"
#include "text/utf8.h"

namespace triax::server {
namespace {

using Json = nlohmann::ordered_json;
using Kind = GenerationEvent::Kind;
using text::OutputEventKind;

Json token_json(int32_t id, const std::string& bytes, float logprob) {
  Json list = Json::array();
  for (const char c : bytes) {
    list.push_back(static_cast<unsigned char>(c));
  }
  // JSON has no minus infinity: OpenAI's word for "never" is -9999.
  return {{"token", text::replace_invalid_utf8(bytes)},
          {"logprob", std::max(logprob, -9999.0f)},
          {"bytes", std::move(list)},
          {"token_id", id}};
}

Json logprob_json(const TokenReport& token) {
  Json entry = token_json(token.id, token.bytes, token.logprob);
  Json top = Json::array();
  for (const TokenReport::Alternative& other : token.top) {
    top.push_back(token_json(other.id, other.bytes, other.logprob));
  }
  entry["top_logprobs"] = std::move(top);
  return entry;
}

Json call_json(const text::ToolCall& call) {
  return {{"id", call.id},
          {"type", "function"},
          {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
}

class ChatWriter final : public AnswerWriter {
 public:
  explicit ChatWriter(const ChatAnswerOptions& options)
      : options_(options),
        choices_(static_cast<size_t>(options.choices)),
        open_(options.choices),
        id_(random_id("chatcmpl-")),
        created_(std::time(nullptr)) {}

  void push(const GenerationEvent& event, std::string& out) override {
    Choice& choice = choices_[static_cast<size_t>(event.choice)];
    add_usage(event, usage_);
    if (!choice.begun && event.kind != Kind::kFailed) {
      choice.begun = true;
      chunk(event.choice, {{"role", "assistant"}, {"content", ""}}, out);
    }
    switch (event.kind) {
      case Kind::kToken:
        choice.pending.push_back(logprob_json(event.token));
        choice.logprobs.push_back(choice.pending.back());
        return;
      case Kind::kOutput:
        text::apply_event(event.output, choice.message);
        chunk(event.choice, delta(event.output), out);
        return;
      case Kind::kFinished:
        choice.reason = finish_name(event.reason);
        chunk(event.choice, Json::object(), out);
        return end(out);
      case Kind::kFailed:
        choice.reason = "error";
        if (options_.stream) {
          append_sse(error_body(event.error, ErrorShape::kOpenAi, {}), out);
        }
        return end(out);
      case Kind::kStarted:
      case Kind::kPromptToken:
        return;
    }
  }

  std::string body() override {
    Json choices = Json::array();
    for (size_t i = 0; i < choices_.size(); ++i) {
      const Choice& choice = choices_[i];
      choices.push_back({{"index", i},
                         {"message", message(choice.message)},
                         {"logprobs", logprobs(choice.logprobs)},
                         {"finish_reason", choice.reason}});
    }
    Json body = head("chat.completion");
    body["choices"] = std::move(choices);
    body["usage"] = usage_json(usage_);
    return json_text(body);
  }

 private:
  struct Choice {
    text::ChatMessage message;
    Json logprobs = Json::array();
    Json pending = Json::array();  // of tokens whose text has not been given out
    std::string reason;
    bool begun = false;
  };

  Json head(std::string_view object) const {
    return {{"id", id_}, {"object", object}, {"created", created_}, {"model", options_.model}};
  }

  static Json message(const text::ChatMessage& message) {
    Json out = {{"role", "assistant"}, {"content", message.content}, {"refusal", nullptr}};
    if (message.content.empty() && !message.tool_calls.empty()) {
      out["content"] = nullptr;
    }
    if (!message.reasoning.empty()) {
      out["reasoning_content"] = message.reasoning;
    }
    if (!message.tool_calls.empty()) {
      Json calls = Json::array();
      for (const text::ToolCall& call : message.tool_calls) {
        calls.push_back(call_json(call));
      }
      out["tool_calls"] = std::move(calls);
    }
    return out;
  }

  Json logprobs(const Json& tokens) const {
    return options_.logprobs ? Json{{"content", tokens}, {"refusal", nullptr}} : Json();
  }

  /// Null when it changes nothing that a client sees.
  static Json delta(const text::OutputEvent& output) {
    switch (output.kind) {
      case OutputEventKind::kReasoning:
        return {{"reasoning_content", output.text}};
      case OutputEventKind::kResponse:
        return {{"content", output.text}};
      case OutputEventKind::kCallBegin: {
        Json call = call_json({output.call_id, output.call_name, {}});
        call["index"] = output.call_index;
        return {{"tool_calls", Json::array({std::move(call)})}};
      }
      case OutputEventKind::kCallArguments:
        return {{"tool_calls", Json::array({{{"index", output.call_index},
                                             {"function", {{"arguments", output.text}}}}})}};
      case OutputEventKind::kCallEnd:
      case OutputEventKind::kMessageEnd:
        return nullptr;
    }
    return nullptr;
  }

  void chunk(int32_t index, Json delta, std::string& out) {
    if (delta.is_null() || !options_.stream) {
      return;
    }
    Choice& choice = choices_[static_cast<size_t>(index)];
    const bool speaks =
        delta.contains("content") && !delta["content"].get_ref<const std::string&>().empty();
    const bool last = !choice.reason.empty();
    Json tokens;
    if ((speaks || last) && !choice.pending.empty()) {
      tokens = logprobs(std::exchange(choice.pending, Json::array()));
    }
    Json frame = head("chat.completion.chunk");
    frame["choices"] = Json::array({{{"index", index},
                                     {"delta", std::move(delta)},
                                     {"logprobs", std::move(tokens)},
                                     {"finish_reason", last ? Json(choice.reason) : Json()}}});
    if (options_.include_usage) {
      frame["usage"] = nullptr;
    }
    append_sse(json_text(frame), out);
  }

  void end(std::string& out) {
    if (--open_ > 0 || !options_.stream) {
      return;
    }
    if (options_.include_usage) {
      Json frame = head("chat.completion.chunk");
      frame["choices"] = Json::array();
      frame["usage"] = usage_json(usage_);
      append_sse(json_text(frame), out);
    }
    append_sse("[DONE]", out);
  }

  ChatAnswerOptions options_;
  std::vector<Choice> choices_;
  int32_t open_;
  std::string id_;
  int64_t created_;
  GenerationUsage usage_;
};

}  // namespace

std::unique_ptr<AnswerWriter> make_chat_writer(const ChatAnswerOptions& options) {
  return std::make_unique<ChatWriter>(options);
}

}  // namespace triax::server
