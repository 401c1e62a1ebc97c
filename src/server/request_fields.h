// Fields that several APIs have in common.
#pragma once

#include <string>

#include "server/api_error.h"
#include "server/generation.h"

namespace triax::server {

/// 404 "model_not_found" when the request names another model; one that names none is welcome.
void read_model(FieldReader& body, const ModelInfo& model);

/// temperature, top_p, top_k (-1: off), min_p, repetition_penalty, presence_penalty,
/// frequency_penalty, seed, logit_bias, stop, stop_token_ids, n, min_tokens, ignore_eos, priority,
/// prompt_cache_key, cache_salt. What the request does not say is as the model recommends.
/// Adds to stop_ids; call it after set_chat_prompt.
void read_sampling(FieldReader& body, const ModelInfo& model, GenerationRequest& request);

/// "stop": a string or an array of strings, none empty.
void read_stops(FieldReader& body, const char* key, const Limits& limits,
                std::vector<std::string>& stops);

/// stream and stream_options.include_usage.
void read_stream(FieldReader& body, bool& stream, bool& include_usage);

/// OpenAI's usage object, with reasons for what was not cached.
nlohmann::ordered_json usage_json(const GenerationUsage& usage);

/// Adds what a choice has cost. Prompts count once for each request of the call.
void add_usage(const GenerationEvent& event, GenerationUsage& sum);

/// "stop", "length", "tool_calls".
std::string_view finish_name(FinishReason reason);

}  // namespace triax::server
