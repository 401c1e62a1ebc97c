// A conversation with a model: messages in, events out, states kept from turn to turn.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/session.h"
#include "text/chat.h"
#include "text/output_parser.h"

namespace triax::engine {

struct ChatSettings {
  std::string system;  // empty: none
  bool thinking = true;
  std::optional<text::ThinkingEffort> effort;  // unset: the prompt says nothing of it
  std::vector<std::string> stops;              // end the response before this text
};

struct ChatTurn {
  text::ChatMessage message;
  Generated generated;
};

/// Ownership  refers to the engine
class ChatSession {
 public:
  /// Errors     kNotFound when the model has no vocabulary or no chat format
  static Result<std::unique_ptr<ChatSession>> create(Engine& engine, ChatSettings settings);

  /// Adds a user message and answers it. Events come while tokens do; on_event returns false to
  /// stop. What was answered until then stays in the conversation.
  /// params.stop_ids and on_token are set here.
  /// Errors     those of Session::generate; the conversation is as before then
  Result<ChatTurn> ask(std::string user, GenerateParams params,
                       const std::function<bool(const text::OutputEvent&)>& on_event);

  /// Forgets the last question and its answer. False when there is none.
  bool undo();
  /// Forgets everything but the settings.
  void clear();

  ChatSettings& settings() { return settings_; }
  const std::vector<text::ChatMessage>& messages() const { return messages_; }
  text::ChatFormat format() const { return format_; }
  const Session& session() const { return session_; }

 private:
  ChatSession(Engine& engine, ChatSettings settings, text::ChatFormat format)
      : engine_(engine), settings_(std::move(settings)), format_(format), session_(engine) {}
  text::ChatRequest request() const;

  Engine& engine_;
  ChatSettings settings_;
  text::ChatFormat format_;
  Session session_;
  std::vector<text::ChatMessage> messages_;
};

}  // namespace triax::engine
