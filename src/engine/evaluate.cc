#include "engine/evaluate.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace triax::engine {
namespace {

/// Scores inputs [begin + skip, end) of one window; returns the sum of nats.
Result<double> score_window(Engine& engine, std::span<const int32_t> tokens, int64_t begin,
                            int64_t end, int64_t skip) {
  Result<model::SequenceState> state = engine.pool().create();
  if (!state.ok()) {
    return state.status();
  }
  const int64_t vocab = engine.config().vocab;
  const int64_t chunk = engine.options().prefill_chunk;
  Tensor logits = Tensor::f32({std::min(chunk, end - begin), vocab});
  double nats = 0.0;
  for (int64_t at = begin; at < end; at += chunk) {
    const int64_t count = std::min(chunk, end - at);
    if (Status s = engine.prefill(
            *state, tokens.subspan(static_cast<size_t>(at), static_cast<size_t>(count)),
            model::LogitRows::kAll, logits.view().rows(0, count));
        !s.ok()) {
      return s;
    }
    for (int64_t i = std::max<int64_t>(0, begin + skip - at); i < count; ++i) {
      nats += cross_entropy({logits.data<float>() + i * vocab, static_cast<size_t>(vocab)},
                            tokens[static_cast<size_t>(at + i + 1)]);
    }
  }
  return nats;
}

}  // namespace

double cross_entropy(std::span<const float> logits, int32_t target) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (float x : logits) {
    sum += std::exp(static_cast<double>(x) - max);
  }
  return max + std::log(sum) - static_cast<double>(logits[static_cast<size_t>(target)]);
}

double EvalResult::bits_per_byte(int64_t bytes) const {
  return nats / std::numbers::ln2 / static_cast<double>(bytes);
}

Result<EvalResult> evaluate(Engine& engine, std::span<const int32_t> tokens,
                            const EvalParams& params) {
  const auto inputs = static_cast<int64_t>(tokens.size()) - 1;
  if (inputs < 1) {
    return Status::invalid_argument("eval: the text has fewer than two tokens");
  }
  if (params.context < 1 || params.stride < 1 || params.stride > params.context) {
    return Status::invalid_argument(
        fmt::format("eval: context {} and stride {}: expected 1 <= stride <= context",
                    params.context, params.stride));
  }
  EvalResult result;
  for (int64_t begin = 0; result.scored < inputs; begin += params.stride) {
    const int64_t end = std::min(begin + params.context, inputs);
    const int64_t skip = result.scored - begin;
    Result<double> nats = score_window(engine, tokens, begin, end, skip);
    if (!nats.ok()) {
      return nats.status();
    }
    result.windows.push_back({begin, end - begin - skip, *nats});
    result.scored += end - begin - skip;
    result.nats += *nats;
    if (params.progress) {
      params.progress(result.scored, inputs, result.nats);
    }
  }
  return result;
}

}  // namespace triax::engine
