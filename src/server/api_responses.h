// OpenAI's Responses API, the part that needs no memory between requests: the JSON of a request ->
// a Call, events -> a response or its stream. Knows no sockets. What is left out: docs/serving.md.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "server/api_error.h"
#include "server/generation.h"
#include "text/chat.h"

namespace triax::server {

/// The conversation in a body of /v1/responses: instructions, then the items of `input`. Reasoning,
/// text and calls that follow one another are one message of the assistant. Every
/// function_call_output names an earlier function_call.
/// Errors     400 with the field named
ApiResult<text::ChatRequest> read_responses_chat(const nlohmann::ordered_json& body,
                                                 const Limits& limits);

/// A body of /v1/responses. What asks for memory (previous_response_id, conversation, stored
/// prompts, background) is refused; `store` is taken and answered with false, since nothing is ever
/// kept. `id` makes all ids of the answer unique, `now` is in seconds since 1970.
/// Errors     400 with the field named
ApiResult<Call> read_responses_call(const nlohmann::ordered_json& body, const ModelInfo& model,
                                    std::string_view id, int64_t now);

struct ResponsesAnswer {
  std::string id;  // without "resp_"
  bool stream = false;
  int64_t created = 0;               // seconds since 1970
  nlohmann::ordered_json echo = {};  // members of the response that repeat the request
};

/// One response: of one request with one choice. Arguments are the text that the model wrote: of a
/// call whose status is "incomplete" maybe no JSON.
std::unique_ptr<AnswerWriter> make_responses_writer(ResponsesAnswer answer);

}  // namespace triax::server
