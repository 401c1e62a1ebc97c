// What a connection knows of the request it answers. Internal to http_connection.cc.
#pragma once

#include <memory>
#include <string>

#include "server/http_connection.h"
#include "server/http_text.h"

namespace triax::server {

/// Anthropic's paths get errors in its words, also before a route is found.
inline ErrorShape error_shape_of(std::string_view path) {
  return path.starts_with("/v1/messages") ? ErrorShape::kAnthropic : ErrorShape::kOpenAi;
}

struct Connection::Answer {
  // The request.
  std::string id;
  std::string method;
  Target target;
  std::string origin;
  bool cors = false;       // its origin is one of the allowed
  bool preflight = false;  // and only asks whether it is
  bool head_only = false;
  bool http_1_0 = false;  // knows no chunks
  uint64_t client = 0;
  const Route* route = nullptr;
  ErrorShape errors = ErrorShape::kOpenAi;
  double begun = 0.0;

  // A call under way.
  Ticket ticket = 0;  // 0: none
  std::unique_ptr<AnswerWriter> writer;
  bool stream = false;
  bool streaming = false;  // the head is out
  int32_t open_choices = 0;

  // The response.
  int status = 0;
  bool complete = false;  // nothing more will be put
  bool recorded = false;
  double wrote = 0.0;  // when the last write began
  int64_t bytes = 0;
  double first_token = 0.0;
  GenerationUsage usage;

  void count(const GenerationEvent& event, double now) {
    using Kind = GenerationEvent::Kind;
    if (event.kind == Kind::kStarted) {
      usage.prompt_tokens += event.usage.prompt_tokens;
      usage.cached_tokens += event.usage.cached_tokens;
    } else if ((event.kind == Kind::kOutput || event.kind == Kind::kToken) && first_token == 0.0) {
      first_token = now;
    } else if (event.kind == Kind::kFinished) {
      usage.answer_tokens += event.usage.answer_tokens;
      usage.reasoning_tokens += event.usage.reasoning_tokens;
    }
  }

  AccessRecord record(int result, const std::string& peer, double now) const {
    return {.id = id,
            .peer = peer,
            .method = method,
            .path = target.path,
            .status = result,
            .bytes = bytes,
            .seconds = now - begun,
            .first_token_seconds = first_token > 0.0 ? first_token - begun : 0.0,
            .usage = usage};
  }
};

}  // namespace triax::server
