// OpenAI's /v1/completions: text or tokens in, text out, no chat format.
#pragma once

#include "server/generation.h"
#include "server/routes.h"

namespace triax::server {

/// Errors     400 with the field named ("suffix" among them); 404 for another model
ApiResult<Call> parse_completion(const nlohmann::ordered_json& body, const ModelInfo& model);

struct CompletionAnswerOptions {
  std::string model;
  int32_t prompts = 1;
  int32_t choices = 1;  // of each prompt
  bool stream = false;
  bool include_usage = false;
  bool logprobs = false;
  bool silent = false;                 // max_tokens was 0: nothing of the answer is shown
  std::vector<std::string> echo = {};  // the prompts' text, to be put before the answers
};

/// "text_completion" chunks or one whole.
std::unique_ptr<AnswerWriter> make_completion_writer(const CompletionAnswerOptions& options);

ApiResult<Call> handle_completion(const HttpRequest& request, const Service& service);

}  // namespace triax::server
