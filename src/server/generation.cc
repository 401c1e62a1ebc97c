#include "server/generation.h"

#include <fmt/core.h>

#include <algorithm>
#include <random>

namespace triax::server {

std::optional<ApiError> set_chat_prompt(const ModelInfo& model, const text::ChatRequest& chat,
                                        GenerationRequest& request) {
  if (!model.chat) {
    return ApiError{.message = fmt::format("the model '{}' has no chat format; use "
                                           "/v1/completions",
                                           model.id),
                    .param = "model"};
  }
  Result<std::vector<int32_t>> prompt = text::encode_chat(*model.tokenizer, *model.chat, chat);
  if (!prompt.ok()) {
    return ApiError::from_status(prompt.status());
  }
  request.prompt = std::move(*prompt);
  request.output.chat = true;
  request.output.format = *model.chat;
  request.output.start = text::generation_channel(*model.chat, chat);
  request.stop_ids = text::stop_token_ids(*model.chat, *model.tokenizer);
  if (std::optional<ApiError> error = check_prompt_length(model, request, "messages")) {
    return error;
  }
  if (model.constraints != nullptr) {
    auto constraint = model.constraints->compile_chat(*model.chat, chat);
    if (!constraint.ok()) {
      // A form beyond a limit is the request's fault, too.
      return ApiError::from_status(Status::invalid_argument(constraint.status().message()));
    }
    request.constraint = std::move(*constraint);
  }
  return {};
}

std::optional<ApiError> check_prompt_length(const ModelInfo& model,
                                            const GenerationRequest& request,
                                            std::string_view field) {
  const auto tokens = static_cast<int64_t>(request.prompt.size());
  if (tokens + std::max<int64_t>(request.max_tokens, 1) <= model.context_tokens) {
    return {};
  }
  ApiError error = ApiError::bad_field(
      field, fmt::format("{} tokens of prompt and {} of answer exceed the context of {} tokens",
                         tokens, std::max<int64_t>(request.max_tokens, 1), model.context_tokens));
  error.code = "context_length_exceeded";
  return error;
}

std::string random_id(std::string_view prefix) {
  std::random_device random;
  return fmt::format("{}{:08x}{:08x}{:08x}", prefix, random(), random(), random());
}

void append_sse(std::string_view data, std::string& out, std::string_view event) {
  if (!event.empty()) {
    out.append("event: ").append(event).append("\n");
  }
  out.append("data: ").append(data).append("\n\n");
}

}  // namespace triax::server
