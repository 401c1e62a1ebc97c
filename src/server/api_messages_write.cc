#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "server/api_messages.h"
#include "text/json_text.h"

namespace triax::server {
namespace {

using Json = nlohmann::ordered_json;
using text::OutputEvent;
using text::OutputEventKind;

// Clients send only signed thinking back, and without it the model loses its own reasoning.
constexpr const char* kSignature = "unsigned";

struct Block {
  enum class Type { kThinking, kText, kToolUse };
  Type type;
  std::string text;  // of a call: its arguments
  std::string id;    // of a call
  std::string name;
};

Json call_input(const std::string& arguments) {
  const Result<Json> input = text::parse_json(arguments);
  return input.ok() && input->is_object() ? *input : Json({{"invalid_json", arguments}});
}

Json block_json(const Block& block) {
  switch (block.type) {
    case Block::Type::kThinking:
      return {{"type", "thinking"}, {"thinking", block.text}, {"signature", kSignature}};
    case Block::Type::kText:
      return {{"type", "text"}, {"text", block.text}, {"citations", nullptr}};
    case Block::Type::kToolUse:
      break;
  }
  return {{"type", "tool_use"},
          {"id", block.id},
          {"name", block.name},
          {"input", call_input(block.text)}};
}

// The block as a stream starts it.
Json empty_block_json(const Block& block) {
  Json json = block_json({block.type, "", block.id, block.name});
  if (block.type == Block::Type::kThinking) {
    json["signature"] = "";
  } else if (block.type == Block::Type::kToolUse) {
    json["input"] = Json::object();
  }
  return json;
}

Json usage_json(const GenerationUsage& usage) {
  return {{"input_tokens", usage.prompt_tokens - usage.cached_tokens},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", usage.cached_tokens},
          {"output_tokens", usage.answer_tokens},
          {"output_tokens_details", {{"thinking_tokens", usage.reasoning_tokens}}}};
}

class MessagesWriter final : public AnswerWriter {
 public:
  explicit MessagesWriter(MessagesAnswer answer) : answer_(std::move(answer)) {}

  void push(const GenerationEvent& event, std::string& out) override {
    switch (event.kind) {
      case GenerationEvent::Kind::kStarted:
        usage_ = event.usage;
        emit("message_start", {{"message", message_json()}}, out);
        emit("ping", Json::object(), out);
        return;
      case GenerationEvent::Kind::kOutput:
        return output(event.output, out);
      case GenerationEvent::Kind::kFinished:
        return finish(event, out);
      case GenerationEvent::Kind::kFailed:
        return fail(event.error, out);
      case GenerationEvent::Kind::kPromptToken:
      case GenerationEvent::Kind::kToken:
        return;  // this API has no log-probabilities
    }
  }

  std::string body() override { return json_text(message_json()); }

 private:
  void output(const OutputEvent& event, std::string& out) {
    switch (event.kind) {
      case OutputEventKind::kReasoning:
        return text(Block::Type::kThinking, "thinking_delta", "thinking", event.text, out);
      case OutputEventKind::kResponse:
        return text(Block::Type::kText, "text_delta", "text", event.text, out);
      case OutputEventKind::kCallBegin:
        return open({Block::Type::kToolUse, "", event.call_id, event.call_name}, out);
      case OutputEventKind::kCallArguments:
        return append("input_json_delta", "partial_json", event.text, out);
      case OutputEventKind::kCallEnd:
      case OutputEventKind::kMessageEnd:
        return close(out);
    }
  }

  void text(Block::Type type, const char* delta, const char* key, const std::string& piece,
            std::string& out) {
    if (!open_ || blocks_.back().type != type) {
      open({type, "", "", ""}, out);
    }
    append(delta, key, piece, out);
  }

  void open(Block block, std::string& out) {
    close(out);
    blocks_.push_back(std::move(block));
    open_ = true;
    emit("content_block_start",
         {{"index", index()}, {"content_block", empty_block_json(blocks_.back())}}, out);
  }

  void append(const char* delta, const char* key, const std::string& piece, std::string& out) {
    blocks_.back().text += piece;
    emit("content_block_delta", {{"index", index()}, {"delta", {{"type", delta}, {key, piece}}}},
         out);
  }

  void close(std::string& out) {
    if (!std::exchange(open_, false)) {
      return;
    }
    if (blocks_.back().type == Block::Type::kThinking) {
      emit(
          "content_block_delta",
          {{"index", index()}, {"delta", {{"type", "signature_delta"}, {"signature", kSignature}}}},
          out);
    }
    emit("content_block_stop", {{"index", index()}}, out);
  }

  void finish(const GenerationEvent& event, std::string& out) {
    if (event.reason == FinishReason::kCancelled) {
      return fail({.http_status = 503, .message = "the server stopped this answer"}, out);
    }
    close(out);
    usage_ = event.usage;
    stop_reason_ = stop_reason(event);
    stop_sequence_ = event.reason == FinishReason::kStopString ? Json(event.stop) : Json();
    emit("message_delta",
         {{"delta", {{"stop_reason", stop_reason_}, {"stop_sequence", stop_sequence_}}},
          {"usage", usage_json(usage_)}},
         out);
    emit("message_stop", Json::object(), out);
  }

  const char* stop_reason(const GenerationEvent& event) const {
    switch (event.reason) {
      case FinishReason::kStopString:
        return "stop_sequence";
      case FinishReason::kToolCalls:
        return "tool_use";
      case FinishReason::kLength:
        return event.usage.answer_tokens < answer_.max_tokens ? "model_context_window_exceeded"
                                                              : "max_tokens";
      case FinishReason::kStop:
      case FinishReason::kCancelled:
        break;
    }
    return "end_turn";
  }

  void fail(const ApiError& error, std::string& out) {
    if (answer_.stream) {
      append_sse(error_body(error, ErrorShape::kAnthropic, answer_.id), out, "error");
    }
  }

  // The message as it is now.
  Json message_json() const {
    Json content = Json::array();
    for (const Block& block : blocks_) {
      content.push_back(block_json(block));
    }
    return {{"id", answer_.id},
            {"type", "message"},
            {"role", "assistant"},
            {"model", answer_.model},
            {"content", std::move(content)},
            {"stop_reason", stop_reason_},
            {"stop_sequence", stop_sequence_},
            {"usage", usage_json(usage_)}};
  }

  size_t index() const { return blocks_.size() - 1; }

  void emit(const char* name, Json rest, std::string& out) {
    if (!answer_.stream) {
      return;
    }
    Json event = {{"type", name}};
    event.update(rest);
    append_sse(json_text(event), out, name);
  }

  MessagesAnswer answer_;
  std::vector<Block> blocks_;
  bool open_ = false;  // the last block may grow
  GenerationUsage usage_;
  Json stop_reason_;  // null until the end, as is stop_sequence_
  Json stop_sequence_;
};

}  // namespace

std::unique_ptr<AnswerWriter> make_messages_writer(MessagesAnswer answer) {
  return std::make_unique<MessagesWriter>(std::move(answer));
}

}  // namespace triax::server
