#include "server/api_axes.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>

#include "server/service.h"
#include "text/chat_json.h"

namespace triax::server {
namespace {

using Json = nlohmann::ordered_json;

// Half-lives in tokens: from 2^-3 (the fastest that K3's gates allow is 0.14) to 2^18, two bins an
// octave.
constexpr int kOctaveLeast = -3;
constexpr int kOctaveMost = 18;
constexpr int kBinsAnOctave = 2;
constexpr int kBins = (kOctaveMost - kOctaveLeast) * kBinsAnOctave;

double rounded(double x) { return std::round(x * 1e4) / 1e4; }

template <typename T>
Json by_token(const std::vector<T>& values, size_t tokens) {
  Json rows = Json::array();
  const size_t columns = values.size() / tokens;
  for (size_t t = 0; t < tokens; ++t) {
    Json row = Json::array();
    for (size_t c = 0; c < columns; ++c) {
      if constexpr (std::is_floating_point_v<T>) {
        row.push_back(rounded(static_cast<double>(values[t * columns + c])));
      } else {
        row.push_back(values[t * columns + c]);
      }
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

Json tokens_json(const std::vector<int32_t>& tokens, const text::Tokenizer& tokenizer) {
  Json list = Json::array();
  for (const int32_t id : tokens) {
    list.push_back({{"id", id},
                    {"text", std::string(tokenizer.bytes(id))},
                    {"control", tokenizer.is_special(id)}});
  }
  return list;
}

Json depth_json(const engine::Axes& axes, const checkpoint::ModelConfig& config) {
  if (axes.depth.empty()) {
    return nullptr;
  }
  Json sources = Json::array({"embedding"});
  const int64_t block = config.attn_res_block;
  for (int64_t begin = 0; begin < config.layer_count(); begin += block) {
    const int64_t end = std::min(begin + block, config.layer_count());
    sources.push_back(end - begin == 1 ? fmt::format("layer {}", end)
                                       : fmt::format("layers {}–{}", begin + 1, end));
  }
  Json mixes = Json::array();
  for (const engine::DepthMix& mix : axes.depth) {
    using Before = engine::DepthMix::Before;
    mixes.push_back({{"layer", mix.layer},
                     {"before", mix.before == Before::kAttention ? "attention"
                                : mix.before == Before::kFfn     ? "ffn"
                                                                 : "output"},
                     {"sources", mix.sources},
                     {"weights", by_token(mix.weights, axes.tokens.size())}});
  }
  return {{"sources", std::move(sources)}, {"mixes", std::move(mixes)}};
}

Json width_json(const engine::Axes& axes, const checkpoint::ModelConfig& config) {
  Json layers = Json::array();
  for (const engine::WidthRoute& route : axes.width) {
    std::vector<int64_t> load(static_cast<size_t>(config.moe.experts));
    for (const int32_t expert : route.ids) {
      ++load[static_cast<size_t>(expert)];
    }
    layers.push_back({{"layer", route.layer},
                      {"load", load},
                      {"ids", by_token(route.ids, axes.tokens.size())},
                      {"weights", by_token(route.weights, axes.tokens.size())}});
  }
  return {
      {"experts", config.moe.experts}, {"top_k", config.moe.top_k}, {"layers", std::move(layers)}};
}

Json kda_json(const engine::SequenceDecay& decay) {
  std::vector<double> half_lives;
  std::vector<int64_t> histogram(kBins);
  for (const float rate : decay.rate) {
    const double tokens = engine::SequenceDecay::half_life(static_cast<double>(rate));
    half_lives.push_back(tokens);
    const double bin = std::floor((std::log2(tokens) - kOctaveLeast) * kBinsAnOctave);
    ++histogram[static_cast<size_t>(std::clamp(bin, 0.0, kBins - 1.0))];
  }
  std::ranges::sort(half_lives);
  const auto quantile = [&](double share) -> Json {
    const auto last = static_cast<double>(half_lives.size() - 1);
    const double value = half_lives[static_cast<size_t>(std::lround(share * last))];
    return std::isfinite(value) ? Json(rounded(value)) : Json();
  };
  return {{"layer", decay.layer},          {"kind", "kda"},          {"heads", decay.heads},
          {"channels", decay.rate.size()}, {"histogram", histogram}, {"p10", quantile(0.1)},
          {"median", quantile(0.5)},       {"p90", quantile(0.9)}};
}

Json sequence_json(const engine::Axes& axes, const checkpoint::ModelConfig& config) {
  Json bins = Json::array();
  for (int i = 0; i <= kBins; ++i) {
    bins.push_back(rounded(std::exp2(kOctaveLeast + static_cast<double>(i) / kBinsAnOctave)));
  }
  Json layers = Json::array();
  for (int64_t layer = 0; layer < config.layer_count(); ++layer) {
    const auto found = std::ranges::find(axes.sequence, layer, &engine::SequenceDecay::layer);
    layers.push_back(found != axes.sequence.end() ? kda_json(*found)
                                                  : Json{{"layer", layer}, {"kind", "mla"}});
  }
  return {{"bins", std::move(bins)}, {"layers", std::move(layers)}};
}

/// One answer on its way: pieces run on the worker's thread, a handler's thread waits.
struct Probing {
  AxesQuestion question;
  std::unique_ptr<engine::AxesProbe> probe;  // the worker's thread alone

  std::mutex mutex;
  std::condition_variable changed;
  bool abandoned = false;
  std::optional<Result<engine::Axes>> result;
  const checkpoint::ModelConfig* config = nullptr;
};

Status next_piece(Probing& probing, engine::Engine& engine) {
  if (probing.probe == nullptr) {
    Result<std::unique_ptr<engine::AxesProbe>> probe = engine::AxesProbe::create(
        engine, std::move(probing.question.tokens), probing.question.first);
    if (!probe.ok()) {
      return probe.status();
    }
    probing.probe = std::move(*probe);
  }
  return probing.probe->advance();
}

void move_on(const std::shared_ptr<Probing>& probing, Worker& worker, engine::BatchEngine& batch) {
  const Status status = next_piece(*probing, batch.engine());
  const std::lock_guard lock(probing->mutex);
  if (status.ok() && !probing->probe->done() && !probing->abandoned) {
    worker.post([probing, &worker](engine::BatchEngine& b) { move_on(probing, worker, b); });
    return;
  }
  probing->config = &batch.engine().config();
  probing->result = status.ok() ? Result<engine::Axes>(probing->probe->take()) : status;
  probing->probe.reset();
  probing->changed.notify_one();
}

/// Waits for the result; false when it did not come.
bool wait_for(Probing& probing, const Worker& worker) {
  constexpr auto kLook = std::chrono::milliseconds(100);
  constexpr auto kLongest = std::chrono::minutes(2);
  const auto deadline = std::chrono::steady_clock::now() + kLongest;
  std::unique_lock lock(probing.mutex);
  while (!probing.result) {
    if (worker.draining() || worker.broken() || std::chrono::steady_clock::now() > deadline) {
      probing.abandoned = true;
      return false;
    }
    probing.changed.wait_for(lock, kLook);
  }
  return true;
}

ApiResult<HttpReply> answer(const HttpRequest& request, const Service& service) {
  const ApiResult<Json> body = json_body(request);
  if (!body.ok()) {
    return body.error();
  }
  ApiResult<AxesQuestion> question = parse_axes(*body, service.model);
  if (!question.ok()) {
    return question.error();
  }
  const auto probing = std::make_shared<Probing>();
  probing->question = std::move(*question);
  const bool cut = probing->question.cut;
  Worker& worker = service.worker;
  worker.post([probing, &worker](engine::BatchEngine& batch) { move_on(probing, worker, batch); });
  if (!wait_for(*probing, worker)) {
    return ApiError{.http_status = 503,
                    .type = "server_error",
                    .message = "the server had no time to run this answer once more",
                    .retry_after_s = 5.0};
  }
  if (!probing->result->ok()) {
    return ApiError::from_status(probing->result->status());
  }
  return HttpReply{
      .body = json_text(axes_json(**probing->result, cut, *probing->config, service.model))};
}

}  // namespace

Route axes_route() {
  Route route{.method = "POST", .path = "/v1/triax/axes"};
  route.reply = [one = std::make_shared<std::mutex>()](
                    const HttpRequest& request, const Service& service) -> ApiResult<HttpReply> {
    const std::unique_lock lock(*one, std::try_to_lock);
    if (!lock.owns_lock()) {
      return ApiError{.http_status = 429,
                      .type = "rate_limit_error",
                      .message = "another answer is being looked at; try again in a moment",
                      .retry_after_s = 2.0};
    }
    return answer(request, service);
  };
  return route;
}

ApiResult<AxesQuestion> parse_axes(const Json& body, const ModelInfo& model) {
  Result<text::ChatRequest> chat = text::read_chat_request(body);
  if (!chat.ok()) {
    return ApiError::from_status(chat.status());
  }
  if (static_cast<int64_t>(chat->messages.size()) > model.limits.messages) {
    return ApiError::bad_field("messages",
                               fmt::format("expected at most {}", model.limits.messages));
  }
  if (chat->messages.empty() || chat->messages.back().role != text::Role::kAssistant) {
    return ApiError::bad_field("messages", "expected the assistant's answer as the last one");
  }
  if (chat->thinking && !chat->thinking_effort) {
    chat->thinking_effort = text::ThinkingEffort::kMax;  // as the answer's own prompt says
  }
  chat->add_generation_prompt = false;
  GenerationRequest whole;
  if (std::optional<ApiError> error = set_chat_prompt(model, *chat, whole)) {
    return *error;
  }
  chat->messages.pop_back();
  chat->add_generation_prompt = true;
  GenerationRequest question;
  if (std::optional<ApiError> error = set_chat_prompt(model, *chat, question)) {
    return *error;
  }
  const auto total = static_cast<int64_t>(whole.prompt.size());
  if (total > kAxesTokensMax) {
    return ApiError::bad_field("messages", fmt::format("{} tokens to run once more; at most {} are",
                                                       total, kAxesTokensMax));
  }
  // The answer begins where the conversation leaves the prompt that asked for it.
  const auto begin = static_cast<int64_t>(text::common_prefix(question.prompt, whole.prompt));
  AxesQuestion asked;
  asked.first = std::max({begin, total - kAxesWatchedMax, int64_t{0}});
  asked.cut = asked.first > begin;
  asked.tokens = std::move(whole.prompt);
  if (asked.first >= total) {
    return ApiError::bad_field("messages", "the answer has no token");
  }
  return asked;
}

Json axes_json(const engine::Axes& axes, bool cut, const checkpoint::ModelConfig& config,
               const ModelInfo& model) {
  return {{"object", "triax.axes"},
          {"model", model.id},
          {"first", axes.first},
          {"cut", cut},
          {"tokens", tokens_json(axes.tokens, *model.tokenizer)},
          {"depth", depth_json(axes, config)},
          {"width", width_json(axes, config)},
          {"sequence", sequence_json(axes, config)}};
}

}  // namespace triax::server
