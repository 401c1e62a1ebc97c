#include "server/api_chat.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "server/request_fields.h"
#include "server/service.h"
#include "text/chat_json.h"

namespace triax::server {
namespace {

using Json = nlohmann::ordered_json;

/// What others call the same: chat_template_kwargs.{thinking, enable_thinking, thinking_effort,
/// reasoning_effort}, and efforts that K3 does not tell apart.
void rename_thinking(FieldReader& reader, Json& body) {
  if (const Json* kwargs = reader.object("chat_template_kwargs")) {
    FieldReader fields(*kwargs, reader.path("chat_template_kwargs"));
    for (const char* key : {"thinking", "enable_thinking"}) {
      if (fields.find(key) != nullptr) {
        bool on = true;
        fields.boolean(key, on);
        body["thinking"] = on;
      }
    }
    for (const char* key : {"thinking_effort", "reasoning_effort"}) {
      std::string effort;
      fields.string(key, effort);
      if (!effort.empty()) {
        body["reasoning_effort"] = effort;
      }
    }
    if (!fields.ok()) {
      return reader.fail(*fields.error());
    }
  }
  const auto effort = body.find("reasoning_effort");
  if (effort != body.end() && effort->is_string()) {
    if (*effort == "minimal") {
      *effort = "low";
    } else if (*effort == "xhigh") {
      *effort = "max";
    }
  }
}

/// Fields of OpenAI's API whose meaning this server does not have: said, not passed over.
void refuse_unknown(FieldReader& reader) {
  for (const auto& [key, why] : {std::pair{"functions", "is the old form; use tools"},
                                 {"function_call", "is the old form; use tool_choice"},
                                 {"audio", "this server answers with text alone"},
                                 {"web_search_options", "this server does not search the web"}}) {
    if (reader.find(key) != nullptr) {
      reader.fail(key, why);
    }
  }
  if (const Json* modalities = reader.array("modalities")) {
    for (const Json& modality : *modalities) {
      if (modality != "text") {
        reader.fail("modalities", "this server answers with text alone");
      }
    }
  }
}

void check_counts(FieldReader& reader, const text::ChatRequest& chat, const Limits& limits) {
  const auto check = [&](const char* key, size_t count, int64_t most) {
    if (static_cast<int64_t>(count) > most) {
      reader.fail(key, fmt::format("expected at most {}, found {}", most, count));
    }
  };
  check("messages", chat.messages.size(), limits.messages);
  check("tools", chat.tools.size(), limits.tools);
  int64_t bytes = static_cast<int64_t>(chat.response_schema.size());
  if (bytes > limits.schema_bytes) {
    reader.fail("response_format.json_schema.schema",
                fmt::format("expected at most {} bytes, found {}", limits.schema_bytes, bytes));
  }
  for (size_t i = 0; i < chat.tools.size(); ++i) {
    bytes = static_cast<int64_t>(chat.tools[i].json.size());
    if (bytes > limits.schema_bytes) {
      reader.fail(fmt::format("tools[{}]", i),
                  fmt::format("expected at most {} bytes, found {}", limits.schema_bytes, bytes));
    }
  }
}

void check_tool_choice(FieldReader& reader, const text::ChatRequest& chat) {
  const bool any = !chat.tools.empty() ||
                   std::ranges::any_of(chat.messages, [](const text::ChatMessage& message) {
                     return !message.tools.empty();
                   });
  if (reader.find("tool_choice") != nullptr && chat.tool_choice == text::ToolChoice::kRequired &&
      !any) {
    reader.fail("tool_choice", "needs tools to choose from");
  }
}

void read_limits(FieldReader& reader, GenerationRequest& request) {
  for (const char* key : {"max_tokens", "max_completion_tokens"}) {
    int64_t most = 0;
    reader.integer(key, 1, int64_t{1} << 40, most);
    if (most > 0) {
      request.max_tokens = request.max_tokens == 0 ? most : std::min(request.max_tokens, most);
    }
  }
  int64_t top = -1;
  reader.boolean("logprobs", request.logprobs);
  reader.integer("top_logprobs", 0, 20, top);
  if (top >= 0 && !request.logprobs) {
    reader.fail("top_logprobs", "needs \"logprobs\": true");
  }
  request.sampling.top_logprobs = static_cast<int32_t>(std::max<int64_t>(top, 0));
  bool parallel = true;
  reader.boolean("parallel_tool_calls", parallel);
  request.output.one_call = !parallel;
}

}  // namespace

ApiResult<Call> parse_chat(const Json& given, const ModelInfo& model) {
  Json body = given;
  FieldReader reader(body);
  read_model(reader, model);
  refuse_unknown(reader);
  rename_thinking(reader, body);
  Call call;
  ChatAnswerOptions answer{.model = model.id};
  GenerationRequest request;
  read_stream(reader, call.stream, answer.include_usage);
  read_limits(reader, request);
  if (!reader.ok()) {
    return *reader.error();
  }
  Result<text::ChatRequest> chat = text::read_chat_request(body);
  if (!chat.ok()) {
    return ApiError::from_status(chat.status());
  }
  check_counts(reader, *chat, model.limits);
  check_tool_choice(reader, *chat);
  if (reader.ok()) {
    if (chat->thinking && !chat->thinking_effort) {
      chat->thinking_effort = text::ThinkingEffort::kMax;  // what a served K3 expects
    }
    if (std::optional<ApiError> error = set_chat_prompt(model, *chat, request)) {
      return *error;
    }
    read_sampling(reader, model, request);
  }
  if (!reader.ok()) {
    return *reader.error();
  }
  if (model.chat == text::ChatFormat::kKimiK3) {
    request.output.call_id_prefix = random_id("call_") + "_";
  }
  answer.choices = request.choices;
  answer.stream = call.stream;
  answer.logprobs = request.logprobs;
  call.requests.push_back(std::move(request));
  call.writer = make_chat_writer(answer);
  return call;
}

ApiResult<Call> handle_chat(const HttpRequest& request, const Service& service) {
  const ApiResult<Json> body = json_body(request);
  if (!body.ok()) {
    return body.error();
  }
  return parse_chat(*body, service.model);
}

}  // namespace triax::server
