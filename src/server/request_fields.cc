#include "server/request_fields.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

namespace triax::server {
namespace {

using Json = nlohmann::ordered_json;

void read_float(FieldReader& body, const char* key, double least, double most, float& out) {
  double value = out;
  body.number(key, least, most, value);
  out = static_cast<float>(value);
}

void read_bias(FieldReader& body, const ModelInfo& model, dense::SamplingParams& sampling) {
  const Json* bias = body.object("logit_bias");
  if (bias == nullptr) {
    return;
  }
  if (static_cast<int64_t>(bias->size()) > model.limits.logit_biases) {
    return body.fail("logit_bias", fmt::format("expected at most {} tokens, found {}",
                                               model.limits.logit_biases, bias->size()));
  }
  FieldReader values(*bias, body.path("logit_bias"));
  for (const auto& [key, value] : bias->items()) {
    int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0 || id >= model.vocab) {
      values.fail(key, fmt::format("expected a token id from 0 to {}", model.vocab - 1));
      break;
    }
    double bias_value = 0.0;
    values.number(key.c_str(), -100.0, 100.0, bias_value);
    // OpenAI: -100 bans a token.
    sampling.logit_bias[id] = bias_value <= -100.0 ? -std::numeric_limits<float>::infinity()
                                                   : static_cast<float>(bias_value);
  }
  if (!values.ok()) {
    body.fail(*values.error());
  }
}

void read_stop_ids(FieldReader& body, const ModelInfo& model, std::vector<int32_t>& ids) {
  const Json* list = body.array("stop_token_ids");
  if (list == nullptr) {
    return;
  }
  for (const Json& id : *list) {
    if (!id.is_number_integer() || id < 0 || id >= model.vocab ||
        list->size() > static_cast<size_t>(model.limits.logit_biases)) {
      return body.fail("stop_token_ids",
                       fmt::format("expected token ids from 0 to {}, at most {}, found {}",
                                   model.vocab - 1, model.limits.logit_biases, shown(id)));
    }
    ids.push_back(id.get<int32_t>());
  }
}

void read_seed(FieldReader& body, dense::SamplingParams& sampling) {
  if (body.find("seed") == nullptr) {
    std::random_device random;
    sampling.seed = (uint64_t{random()} << 32) | random();
    return;
  }
  int64_t seed = 0;
  body.integer("seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max(),
               seed);
  sampling.seed = static_cast<uint64_t>(seed);
}

}  // namespace

void read_model(FieldReader& body, const ModelInfo& model) {
  std::string name = model.id;
  body.string("model", name);
  if (name == model.id || std::ranges::find(model.aliases, name) != model.aliases.end()) {
    return;
  }
  constexpr size_t kShown = 100;
  body.fail(ApiError{.http_status = 404,
                     .code = "model_not_found",
                     .message = fmt::format("model: there is no '{}'; this server has '{}'",
                                            name.substr(0, kShown), model.id),
                     .param = "model"});
}

void read_stops(FieldReader& body, const char* key, const Limits& limits,
                std::vector<std::string>& stops) {
  const Json* value = body.find(key);
  if (value == nullptr) {
    return;
  }
  const std::string expected =
      fmt::format("expected a string or at most {} strings, of 1 to {} bytes each", limits.stops,
                  limits.stop_bytes);
  const auto add = [&](const Json& stop) {
    const bool fine =
        stop.is_string() && !stop.get_ref<const std::string&>().empty() &&
        static_cast<int64_t>(stop.get_ref<const std::string&>().size()) <= limits.stop_bytes;
    fine ? stops.push_back(stop.get<std::string>())
         : body.fail(key, fmt::format("{}, found {}", expected, shown(stop)));
  };
  if (!value->is_array()) {
    return add(*value);
  }
  if (static_cast<int64_t>(value->size()) > limits.stops) {
    return body.fail(key, fmt::format("{}, found {} strings", expected, value->size()));
  }
  for (const Json& stop : *value) {
    add(stop);
  }
}

void read_sampling(FieldReader& body, const ModelInfo& model, GenerationRequest& request) {
  dense::SamplingParams& sampling = request.sampling;
  if (model.defaults) {
    sampling.temperature = model.defaults->temperature.value_or(1.0f);
    sampling.top_p = model.defaults->top_p.value_or(1.0f);
  }
  constexpr double kTiny = 1e-6;
  read_float(body, "temperature", 0.0, 2.0, sampling.temperature);
  read_float(body, "top_p", 0.0, 1.0, sampling.top_p);
  sampling.top_p = std::max(sampling.top_p, static_cast<float>(kTiny));  // 0: the likeliest alone
  read_float(body, "min_p", 0.0, 1.0, sampling.min_p);
  read_float(body, "repetition_penalty", kTiny, 100.0, sampling.repetition_penalty);
  read_float(body, "presence_penalty", -2.0, 2.0, sampling.presence_penalty);
  read_float(body, "frequency_penalty", -2.0, 2.0, sampling.frequency_penalty);
  int64_t top_k = 0;
  body.integer("top_k", -1, std::numeric_limits<int32_t>::max(), top_k);
  sampling.top_k = static_cast<int32_t>(std::max<int64_t>(top_k, 0));
  read_seed(body, sampling);
  read_bias(body, model, sampling);
  read_stops(body, "stop", model.limits, request.stops);
  read_stop_ids(body, model, request.stop_ids);
  int64_t choices = 1;
  body.integer("n", 1, model.limits.choices, choices);
  request.choices = static_cast<int32_t>(choices);
  body.integer("min_tokens", 0, model.context_tokens, request.min_tokens);
  body.boolean("ignore_eos", request.ignore_eos);
  int64_t priority = 0;
  body.integer("priority", -8, 8, priority);
  request.priority = static_cast<int>(priority);
  body.string("prompt_cache_key", request.session);
  body.string("cache_salt", request.salt);
}

void read_stream(FieldReader& body, bool& stream, bool& include_usage) {
  body.boolean("stream", stream);
  const Json* options = body.object("stream_options");
  if (options == nullptr) {
    return;
  }
  if (!stream) {
    return body.fail("stream_options", "is for \"stream\": true alone");
  }
  FieldReader reader(*options, body.path("stream_options"));
  reader.boolean("include_usage", include_usage);
  if (!reader.ok()) {
    body.fail(*reader.error());
  }
}

Json usage_json(const GenerationUsage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.answer_tokens},
          {"total_tokens", usage.prompt_tokens + usage.answer_tokens},
          {"prompt_tokens_details",
           {{"cached_tokens", usage.cached_tokens},
            {"seen_tokens", usage.match.possible},
            {"evicted_tokens", usage.match.evicted},
            {"unmarked_tokens", usage.match.state_missing}}},
          {"completion_tokens_details",
           {{"reasoning_tokens", usage.reasoning_tokens},
            {"accepted_prediction_tokens", usage.accepted_tokens},
            {"rejected_prediction_tokens", usage.drafted_tokens - usage.accepted_tokens}}}};
}

void add_usage(const GenerationEvent& event, GenerationUsage& sum) {
  if (event.kind == GenerationEvent::Kind::kStarted) {
    sum.prompt_tokens += event.usage.prompt_tokens;
    sum.cached_tokens += event.usage.cached_tokens;
    sum.match.possible += event.usage.match.possible;
    sum.match.evicted += event.usage.match.evicted;
    sum.match.state_missing += event.usage.match.state_missing;
  } else if (event.kind == GenerationEvent::Kind::kFinished) {
    sum.answer_tokens += event.usage.answer_tokens;
    sum.reasoning_tokens += event.usage.reasoning_tokens;
    sum.drafted_tokens += event.usage.drafted_tokens;
    sum.accepted_tokens += event.usage.accepted_tokens;
  }
}

std::string_view finish_name(FinishReason reason) {
  return reason == FinishReason::kLength      ? "length"
         : reason == FinishReason::kToolCalls ? "tool_calls"
                                              : "stop";
}

}  // namespace triax::server
