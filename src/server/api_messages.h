// Anthropic's Messages API: the JSON of a request -> a Call, events -> a message or its stream.
// Knows no sockets. What of the API is left out: docs/serving.md.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "server/api_error.h"
#include "server/generation.h"
#include "text/chat.h"

namespace triax::server {

/// The conversation in a body of /v1/messages or /v1/messages/count_tokens. Thinking is off unless
/// the request asks for it, as its clients expect. Every tool_result names a tool_use of the
/// assistant message before it, and the last message is not the assistant's: a started answer
/// cannot be continued here.
/// Errors     400 with the field named
ApiResult<text::ChatRequest> read_messages_chat(const nlohmann::ordered_json& body,
                                                const Limits& limits);

/// A body of /v1/messages. `id` makes the ids of the message and its calls unique. An answer ends
/// at the model's context even when max_tokens asks for more.
/// Errors     400 with the field named
ApiResult<Call> read_messages_call(const nlohmann::ordered_json& body, const ModelInfo& model,
                                   std::string_view id);

/// Prompt tokens of a body of /v1/messages/count_tokens.
/// Errors     400 with the field named
ApiResult<int64_t> count_messages_tokens(const nlohmann::ordered_json& body,
                                         const ModelInfo& model);

struct MessagesAnswer {
  std::string id;     // "msg_..."
  std::string model;  // its name in the answer
  bool stream = false;
  int64_t max_tokens = 0;  // as the client asked: what ends earlier ends at the context
};

/// One message: of one request with one choice. A call whose arguments are no JSON object, since
/// they were cut or the model wrote something else, has the input {"invalid_json": TEXT}; streamed,
/// its pieces are that TEXT.
std::unique_ptr<AnswerWriter> make_messages_writer(MessagesAnswer answer);

}  // namespace triax::server
