// OpenAI's /v1/chat/completions.
#pragma once

#include "server/generation.h"
#include "server/routes.h"

namespace triax::server {

/// A whole request understood, its prompt made, its writer ready.
/// Errors     400 with the field named; 404 for another model
ApiResult<Call> parse_chat(const nlohmann::ordered_json& body, const ModelInfo& model);

struct ChatAnswerOptions {
  std::string model;
  int32_t choices = 1;
  bool stream = false;
  bool include_usage = false;  // streamed: a last chunk without choices
  bool logprobs = false;
};

/// Chunks ("chat.completion.chunk") or one "chat.completion".
std::unique_ptr<AnswerWriter> make_chat_writer(const ChatAnswerOptions& options);

ApiResult<Call> handle_chat(const HttpRequest& request, const Service& service);

}  // namespace triax::server
