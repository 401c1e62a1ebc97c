#include "server/api_completions.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "server/request_fields.h"
#include "server/service.h"
#include "text/utf8.h"

namespace triax::server {
namespace {

using Json = nlohmann::ordered_json;

void add_text(const std::string& text, const ModelInfo& model, std::vector<int32_t>& tokens) {
  if (model.tokenizer->bos()) {
    tokens.push_back(*model.tokenizer->bos());
  }
  model.tokenizer->encode(text, tokens);
}

/// An array of token ids.
void add_tokens(FieldReader& reader, const std::string& field, const Json& ids,
                const ModelInfo& model, std::vector<int32_t>& tokens) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!ids[i].is_number_integer() || ids[i] < 0 || ids[i] >= model.vocab) {
      return reader.fail(fmt::format("{}[{}]", field, i),
                         fmt::format("expected a token id from 0 to {}, found {}", model.vocab - 1,
                                     shown(ids[i])));
    }
    tokens.push_back(ids[i].get<int32_t>());
  }
}

/// A string, an array of token ids, or an array of either.
std::vector<std::vector<int32_t>> read_prompts(FieldReader& reader, const ModelInfo& model) {
  std::vector<std::vector<int32_t>> prompts;
  const Json* value = reader.find("prompt");
  const auto wrong = [&](const Json& found) {
    reader.fail("prompt", fmt::format("expected a string, an array of token ids, or an array of 1 "
                                      "to {} of these, found {}",
                                      model.limits.prompts, shown(found)));
  };
  if (value == nullptr) {
    wrong({});
  } else if (value->is_string()) {
    add_text(value->get_ref<const std::string&>(), model, prompts.emplace_back());
  } else if (!value->is_array() || value->empty()) {
    wrong(*value);
  } else if (value->front().is_number()) {
    add_tokens(reader, "prompt", *value, model, prompts.emplace_back());
  } else if (static_cast<int64_t>(value->size()) > model.limits.prompts) {
    wrong(*value);
  } else {
    for (size_t i = 0; i < value->size(); ++i) {
      const Json& one = (*value)[i];
      if (one.is_string()) {
        add_text(one.get_ref<const std::string&>(), model, prompts.emplace_back());
      } else if (one.is_array()) {
        add_tokens(reader, fmt::format("prompt[{}]", i), one, model, prompts.emplace_back());
      } else {
        wrong(one);
      }
    }
  }
  for (const std::vector<int32_t>& prompt : prompts) {
    if (prompt.empty()) {
      reader.fail("prompt", "expected at least one token, found none");
    }
  }
  return prompts;
}

void read_completion(FieldReader& reader, GenerationRequest& request,
                     CompletionAnswerOptions& answer, bool& echo) {
  if (const Json* suffix = reader.find("suffix"); suffix != nullptr && *suffix != "") {
    reader.fail("suffix", "this model was not trained to fill in the middle; leave it out");
  }
  request.max_tokens = 16;  // OpenAI's default
  reader.integer("max_tokens", 0, int64_t{1} << 40, request.max_tokens);
  answer.silent = request.max_tokens == 0;
  request.max_tokens = std::max<int64_t>(request.max_tokens, 1);
  reader.boolean("echo", echo);
  int64_t logprobs = -1;
  reader.integer("logprobs", 0, 20, logprobs);
  request.logprobs = logprobs >= 0;
  request.prompt_logprobs = echo && request.logprobs;
  request.sampling.top_logprobs = static_cast<int32_t>(std::max<int64_t>(logprobs, 0));
  int64_t best_of = 1;
  reader.integer("best_of", 1, 1, best_of);
}

}  // namespace

ApiResult<Call> parse_completion(const Json& body, const ModelInfo& model) {
  FieldReader reader(body);
  read_model(reader, model);
  Call call;
  CompletionAnswerOptions answer{.model = model.id};
  GenerationRequest request;
  bool echo = false;
  read_stream(reader, call.stream, answer.include_usage);
  read_completion(reader, request, answer, echo);
  if (model.tokenizer->eos()) {
    request.stop_ids = {*model.tokenizer->eos()};
  }
  if (model.defaults) {
    request.stop_ids.insert(request.stop_ids.end(), model.defaults->eos_ids.begin(),
                            model.defaults->eos_ids.end());
  }
  read_sampling(reader, model, request);
  std::vector<std::vector<int32_t>> prompts = read_prompts(reader, model);
  if (!reader.ok()) {
    return *reader.error();
  }
  for (std::vector<int32_t>& prompt : prompts) {
    if (echo) {
      answer.echo.push_back(text::replace_invalid_utf8(model.tokenizer->decode(prompt)));
    }
    GenerationRequest& one = call.requests.emplace_back(request);
    one.prompt = std::move(prompt);
    if (std::optional<ApiError> error = check_prompt_length(model, one, "prompt")) {
      return *error;
    }
  }
  answer.prompts = static_cast<int32_t>(call.requests.size());
  answer.choices = request.choices;
  answer.stream = call.stream;
  answer.logprobs = request.logprobs;
  call.writer = make_completion_writer(answer);
  return call;
}

ApiResult<Call> handle_completion(const HttpRequest& request, const Service& service) {
  const ApiResult<Json> body = json_body(request);
  if (!body.ok()) {
    return body.error();
  }
  return parse_completion(*body, service.model);
}

}  // namespace triax::server
