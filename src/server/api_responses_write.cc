#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "server/api_responses.h"

namespace triax::server {
namespace {

using Json = nlohmann::ordered_json;
using text::OutputEvent;
using text::OutputEventKind;

struct Item {
  enum class Type { kReasoning, kMessage, kCall };
  Type type;
  std::string id;
  std::string text = {};  // of a call: its arguments
  std::string call_id = {};
  std::string name = {};
  const char* status = "in_progress";
  Json logprobs = Json::array();  // of a message
};

Json part_json(const Item& item) {
  if (item.type == Item::Type::kReasoning) {
    return {{"type", "reasoning_text"}, {"text", item.text}};
  }
  return {{"type", "output_text"},
          {"text", item.text},
          {"annotations", Json::array()},
          {"logprobs", item.logprobs}};
}

Json item_json(const Item& item, bool with_content) {
  if (item.type == Item::Type::kCall) {
    return {{"id", item.id},           {"type", "function_call"}, {"status", item.status},
            {"call_id", item.call_id}, {"name", item.name},       {"arguments", item.text}};
  }
  Json content = Json::array();
  if (with_content) {
    content.push_back(part_json(item));
  }
  if (item.type == Item::Type::kReasoning) {
    return {{"id", item.id},
            {"type", "reasoning"},
            {"summary", Json::array()},
            {"content", std::move(content)},
            {"status", item.status}};
  }
  return {{"id", item.id},
          {"type", "message"},
          {"status", item.status},
          {"role", "assistant"},
          {"content", std::move(content)}};
}

Json bytes_json(const std::string& bytes) {
  Json array = Json::array();
  for (const char byte : bytes) {
    array.push_back(static_cast<unsigned char>(byte));
  }
  return array;
}

Json logprob_json(const TokenReport& token) {
  Json top = Json::array();
  for (const TokenReport::Alternative& other : token.top) {
    top.push_back(
        {{"token", other.bytes}, {"bytes", bytes_json(other.bytes)}, {"logprob", other.logprob}});
  }
  return {{"token", token.bytes},
          {"bytes", bytes_json(token.bytes)},
          {"logprob", token.logprob},
          {"top_logprobs", std::move(top)}};
}

Json usage_json(const GenerationUsage& usage) {
  return {
      {"input_tokens", usage.prompt_tokens},
      {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}, {"cache_write_tokens", 0}}},
      {"output_tokens", usage.answer_tokens},
      {"output_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}},
      {"total_tokens", usage.prompt_tokens + usage.answer_tokens}};
}

class ResponsesWriter final : public AnswerWriter {
 public:
  explicit ResponsesWriter(ResponsesAnswer answer) : answer_(std::move(answer)) {}

  void push(const GenerationEvent& event, std::string& out) override {
    switch (event.kind) {
      case GenerationEvent::Kind::kStarted:
        emit("response.created", {{"response", response_json()}}, out);
        emit("response.in_progress", {{"response", response_json()}}, out);
        return;
      case GenerationEvent::Kind::kToken:
        logprobs_.push_back(logprob_json(event.token));
        return;
      case GenerationEvent::Kind::kOutput:
        return output(event.output, out);
      case GenerationEvent::Kind::kFinished:
        return finish(event, out);
      case GenerationEvent::Kind::kFailed:
        return fail(event.error, out);
      case GenerationEvent::Kind::kPromptToken:
        return;
    }
  }

  std::string body() override { return json_text(response_json()); }

 private:
  void output(const OutputEvent& event, std::string& out) {
    switch (event.kind) {
      case OutputEventKind::kReasoning:
        return reasoning(event.text, out);
      case OutputEventKind::kResponse:
        return response(event.text, out);
      case OutputEventKind::kCallBegin:
        open({.type = Item::Type::kCall,
              .id = new_id("fc"),
              .call_id = event.call_id,
              .name = event.call_name},
             out);
        return;
      case OutputEventKind::kCallArguments:
        items_.back().text += event.text;
        return emit("response.function_call_arguments.delta", in_item({{"delta", event.text}}),
                    out);
      case OutputEventKind::kCallEnd:
      case OutputEventKind::kMessageEnd:
        return close(event.complete ? "completed" : "incomplete", out);
    }
  }

  void reasoning(const std::string& piece, std::string& out) {
    if (!open_ || items_.back().type != Item::Type::kReasoning) {
      open({.type = Item::Type::kReasoning, .id = new_id("rs")}, out);
    }
    items_.back().text += piece;
    emit("response.reasoning_text.delta", in_part({{"delta", piece}}), out);
  }

  void response(const std::string& piece, std::string& out) {
    if (!open_ || items_.back().type != Item::Type::kMessage) {
      open({.type = Item::Type::kMessage, .id = new_id("msg")}, out);
    }
    items_.back().text += piece;
    emit("response.output_text.delta", in_part({{"delta", piece}, {"logprobs", take_logprobs()}}),
         out);
  }

  // The tokens that came since the last piece of text, which also go to the item.
  Json take_logprobs() {
    Json taken = std::exchange(logprobs_, Json::array());
    Json& all = items_.back().logprobs;
    all.insert(all.end(), taken.begin(), taken.end());
    return taken;
  }

  void open(Item item, std::string& out) {
    close("completed", out);
    items_.push_back(std::move(item));
    open_ = true;
    emit("response.output_item.added",
         {{"output_index", index()}, {"item", item_json(items_.back(), false)}}, out);
    if (items_.back().type != Item::Type::kCall) {
      emit("response.content_part.added", in_part({{"part", part_json(items_.back())}}), out);
    }
  }

  void close(const char* status, std::string& out) {
    if (!std::exchange(open_, false)) {
      return;
    }
    Item& item = items_.back();
    item.status = status;
    switch (item.type) {
      case Item::Type::kCall:
        emit("response.function_call_arguments.done",
             in_item({{"name", item.name}, {"arguments", item.text}}), out);
        break;
      case Item::Type::kReasoning:
        emit("response.reasoning_text.done", in_part({{"text", item.text}}), out);
        break;
      case Item::Type::kMessage:
        take_logprobs();
        emit("response.output_text.done",
             in_part({{"text", item.text}, {"logprobs", item.logprobs}}), out);
        break;
    }
    if (item.type != Item::Type::kCall) {
      emit("response.content_part.done", in_part({{"part", part_json(item)}}), out);
    }
    emit("response.output_item.done", {{"output_index", index()}, {"item", item_json(item, true)}},
         out);
  }

  void finish(const GenerationEvent& event, std::string& out) {
    if (event.reason == FinishReason::kCancelled) {
      return fail({.http_status = 503, .message = "the server stopped this answer"}, out);
    }
    const bool cut = event.reason == FinishReason::kLength;
    close(cut ? "incomplete" : "completed", out);
    usage_ = usage_json(event.usage);
    status_ = cut ? "incomplete" : "completed";
    emit(cut ? "response.incomplete" : "response.completed", {{"response", response_json()}}, out);
  }

  void fail(const ApiError& error, std::string& out) {
    close("incomplete", out);
    status_ = "failed";
    error_ = {{"code", error.http_status == 429 ? "rate_limit_exceeded" : "server_error"},
              {"message", error.message}};
    emit("response.failed", {{"response", response_json()}}, out);
  }

  // The response as it is now; while an item grows, its content is not part of it.
  Json response_json() const {
    Json output = Json::array();
    for (const Item& item : items_) {
      output.push_back(item_json(item, true));
    }
    Json response = {
        {"id", "resp_" + answer_.id}, {"object", "response"}, {"created_at", answer_.created},
        {"status", status_},          {"error", error_},      {"incomplete_details", nullptr}};
    if (status_ == std::string_view("incomplete")) {
      response["incomplete_details"] = {{"reason", "max_output_tokens"}};
    }
    response.update(answer_.echo);
    response["output"] = std::move(output);
    response["usage"] = usage_;
    return response;
  }

  std::string new_id(const char* kind) const {
    return fmt::format("{}_{}_{}", kind, answer_.id, items_.size());
  }
  size_t index() const { return items_.size() - 1; }

  Json in_item(Json rest) const {
    Json event = {{"item_id", items_.back().id}, {"output_index", index()}};
    event.update(rest);
    return event;
  }
  Json in_part(Json rest) const {
    Json event = in_item({{"content_index", 0}});
    event.update(rest);
    return event;
  }

  void emit(const char* name, Json rest, std::string& out) {
    if (!answer_.stream) {
      return;
    }
    Json event = {{"type", name}, {"sequence_number", sequence_++}};
    event.update(rest);
    append_sse(json_text(event), out, name);
  }

  ResponsesAnswer answer_;
  std::vector<Item> items_;
  bool open_ = false;              // the last item may grow
  Json logprobs_ = Json::array();  // tokens whose text has not come
  const char* status_ = "in_progress";
  Json error_;  // null unless failed
  Json usage_;  // null until the end
  int64_t sequence_ = 0;
};

}  // namespace

std::unique_ptr<AnswerWriter> make_responses_writer(ResponsesAnswer answer) {
  return std::make_unique<ResponsesWriter>(std::move(answer));
}

}  // namespace triax::server
