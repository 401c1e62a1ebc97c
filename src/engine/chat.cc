#include "engine/chat.h"

#include "engine/text_stream.h"

namespace triax::engine {
namespace {

/// Between the parser and the listener: applies stop strings to the response, builds the message.
class Relay {
 public:
  Relay(const std::vector<std::string>& stops,
        const std::function<bool(const text::OutputEvent&)>& on_event)
      : matcher_(stops), on_event_(on_event) {
    message_.role = text::Role::kAssistant;
  }

  /// Passes events on; false when the listener or a stop string ends the answer.
  bool pass(std::vector<text::OutputEvent>& events) {
    for (text::OutputEvent& event : events) {
      if (event.kind == text::OutputEventKind::kResponse) {
        event.text = matcher_.push(event.text);
      } else {
        give_rest();
      }
      give(event);
    }
    events.clear();
    return go_on_ && !matcher_.stopped();
  }

  void finish() { give_rest(); }
  bool stopped() const { return matcher_.stopped(); }
  text::ChatMessage take_message() { return std::move(message_); }

 private:
  void give_rest() {
    text::OutputEvent rest;
    rest.kind = text::OutputEventKind::kResponse;
    rest.text = matcher_.stopped() ? std::string() : matcher_.finish();
    give(rest);
  }

  void give(const text::OutputEvent& event) {
    if (event.kind == text::OutputEventKind::kResponse && event.text.empty()) {
      return;
    }
    text::apply_event(event, message_);
    go_on_ = on_event_(event) && go_on_;
  }

  StopMatcher matcher_;
  const std::function<bool(const text::OutputEvent&)>& on_event_;
  text::ChatMessage message_;
  bool go_on_ = true;
};

}  // namespace

Result<std::unique_ptr<ChatSession>> ChatSession::create(Engine& engine, ChatSettings settings) {
  if (engine.tokenizer() == nullptr) {
    return Status::not_found(
        "this model has no vocabulary (tiktoken.model), so it cannot chat; see triax logits");
  }
  const Result<text::ChatFormat> format = text::detect_chat_format(*engine.tokenizer());
  if (!format.ok()) {
    return format.status();
  }
  return std::unique_ptr<ChatSession>(new ChatSession(engine, std::move(settings), *format));
}

text::ChatRequest ChatSession::request() const {
  text::ChatRequest request;
  if (!settings_.system.empty()) {
    text::ChatMessage system;
    system.role = text::Role::kSystem;
    system.content = settings_.system;
    request.messages.push_back(std::move(system));
  }
  request.messages.insert(request.messages.end(), messages_.begin(), messages_.end());
  request.thinking = settings_.thinking;
  request.thinking_effort = settings_.effort;
  return request;
}

Result<ChatTurn> ChatSession::ask(std::string user, GenerateParams params,
                                  const std::function<bool(const text::OutputEvent&)>& on_event) {
  text::ChatMessage question;
  question.role = text::Role::kUser;
  question.content = std::move(user);
  messages_.push_back(std::move(question));
  const text::Tokenizer& tokenizer = *engine_.tokenizer();
  const text::ChatRequest chat = request();
  const auto failed = [&](const Status& status) {
    messages_.pop_back();
    return status;
  };
  const Result<std::vector<int32_t>> prompt = text::encode_chat(tokenizer, format_, chat);
  if (!prompt.ok()) {
    return failed(prompt.status());
  }
  text::OutputOptions output;
  output.start = text::generation_channel(format_, chat);
  Result<std::unique_ptr<text::OutputParser>> parser =
      text::make_output_parser(format_, tokenizer, output);
  if (!parser.ok()) {
    return failed(parser.status());
  }
  Relay relay(settings_.stops, on_event);
  std::vector<text::OutputEvent> events;
  params.stop_ids = text::stop_token_ids(format_, tokenizer);
  params.on_token = [&](const dense::SampledToken& token) {
    (*parser)->push(token.id, events);
    return relay.pass(events);
  };
  Result<Generated> generated = session_.generate(*prompt, params);
  if (!generated.ok()) {
    return failed(generated.status());
  }
  (*parser)->finish(events);
  relay.pass(events);
  relay.finish();
  if (relay.stopped()) {
    generated->reason = FinishReason::kStop;
  }
  ChatTurn turn{relay.take_message(), std::move(*generated)};
  messages_.push_back(turn.message);
  return turn;
}

bool ChatSession::undo() {
  if (messages_.size() < 2) {
    return false;
  }
  messages_.resize(messages_.size() - 2);
  return true;
}

void ChatSession::clear() { messages_.clear(); }

}  // namespace triax::engine
