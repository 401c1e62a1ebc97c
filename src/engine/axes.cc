#include "engine/axes.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <string_view>

namespace triax::engine {
namespace {

constexpr int64_t kWatchedChunk = 64;  // what is seen of longer ones would be large

template <typename T>
void append(ConstTensorView value, std::vector<T>& to) {
  const T* data = value.data<T>();
  to.insert(to.end(), data, data + value.elements());
}

}  // namespace

double SequenceDecay::half_life(double rate) {
  return rate > 0.0 ? std::log(2.0) / rate : std::numeric_limits<double>::infinity();
}

AxesProbe::AxesProbe(Engine& engine, std::vector<int32_t> tokens, int64_t first)
    : engine_(engine),
      tokens_(std::move(tokens)),
      pool_(engine.config(),
            {.sequences = 1,
             .tokens = static_cast<int64_t>(tokens_.size()),
             .latents = engine.pool().latent_type()},
            engine.device().cuda) {
  axes_.tokens.assign(tokens_.begin() + static_cast<std::ptrdiff_t>(first), tokens_.end());
  axes_.first = first;
}

Result<std::unique_ptr<AxesProbe>> AxesProbe::create(Engine& engine, std::vector<int32_t> tokens,
                                                     int64_t first) {
  const auto count = static_cast<int64_t>(tokens.size());
  if (first < 0 || first >= count) {
    return Status::invalid_argument(
        fmt::format("no token to watch: the first is {}, there are {}", first, count));
  }
  if (count > engine.context_tokens()) {
    return Status::invalid_argument(
        fmt::format("{} tokens exceed the context of {}", count, engine.context_tokens()));
  }
  try {
    std::unique_ptr<AxesProbe> probe(new AxesProbe(engine, std::move(tokens), first));
    Result<model::SequenceState> state = probe->pool_.create();
    if (!state.ok()) {
      return state.status();
    }
    probe->state_ = std::move(*state);
    return probe;
  } catch (const std::bad_alloc&) {
    return Status::resource_exhausted(
        fmt::format("no memory for the states of {} tokens beside those that are served", count));
  }
}

Status AxesProbe::advance() {
  const auto total = static_cast<int64_t>(tokens_.size());
  const bool watched = position_ >= axes_.first;
  const int64_t end = watched ? std::min(total, position_ + kWatchedChunk)
                              : std::min(axes_.first, position_ + engine_.options().prefill_chunk);
  model::ForwardOptions options = engine_.forward_options();
  options.observer = {};
  if (watched) {
    options.observer = [this](int64_t layer, std::string_view name, ConstTensorView value) {
      see(layer, name, value);
    };
  }
  // The final norm runs for wanted rows only, and its mix with it.
  const model::SequenceInput input{&state_,
                                   std::span(tokens_).subspan(static_cast<size_t>(position_),
                                                              static_cast<size_t>(end - position_)),
                                   watched ? model::LogitRows::kLast : model::LogitRows::kNone};
  const Status ran = engine_.model().forward(engine_.device(), pool_, std::span(&input, 1), options,
                                             [](ConstTensorView) { return Status(); });
  if (ran.ok()) {
    position_ = end;
  }
  return ran;
}

Axes AxesProbe::take() {
  for (SequenceDecay& decay : axes_.sequence) {
    for (float& rate : decay.rate) {
      rate /= static_cast<float>(axes_.tokens.size());
    }
  }
  return std::move(axes_);
}

void AxesProbe::see(int64_t layer, std::string_view name, ConstTensorView value) {
  if (name == "attn_mix") {
    see_mix(layer, DepthMix::Before::kAttention, value);
  } else if (name == "mlp_mix") {
    see_mix(layer, DepthMix::Before::kFfn, value);
  } else if (name == "output_mix") {
    see_mix(layer, DepthMix::Before::kOutput, value);
  } else if (name == "expert_ids") {
    append(value, route(layer).ids);
  } else if (name == "expert_weights") {
    append(value, route(layer).weights);
  } else if (name == "log_decay") {
    see_decay(layer, value);
  }
}

void AxesProbe::see_mix(int64_t layer, DepthMix::Before before, ConstTensorView value) {
  auto found = std::ranges::find_if(
      axes_.depth, [&](const DepthMix& mix) { return mix.layer == layer && mix.before == before; });
  if (found == axes_.depth.end()) {
    axes_.depth.push_back({.layer = layer, .before = before, .sources = value.size(1)});
    found = axes_.depth.end() - 1;
  }
  append(value, found->weights);
}

WidthRoute& AxesProbe::route(int64_t layer) {
  const auto found = std::ranges::find(axes_.width, layer, &WidthRoute::layer);
  return found != axes_.width.end() ? *found : axes_.width.emplace_back(WidthRoute{.layer = layer});
}

void AxesProbe::see_decay(int64_t layer, ConstTensorView value) {
  auto found = std::ranges::find(axes_.sequence, layer, &SequenceDecay::layer);
  const int64_t channels = value.size(1) * value.size(2);
  if (found == axes_.sequence.end()) {
    axes_.sequence.push_back({.layer = layer,
                              .heads = value.size(1),
                              .rate = std::vector<float>(static_cast<size_t>(channels))});
    found = axes_.sequence.end() - 1;
  }
  const auto* g = value.data<float>();
  for (int64_t t = 0; t < value.size(0); ++t) {
    for (float& rate : found->rate) {
      rate -= *g++;
    }
  }
}

}  // namespace triax::engine
