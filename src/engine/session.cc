#include "engine/session.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "engine/constrained_tokens.h"

namespace triax::engine {
namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// True when the state has seen a strict prefix of `prompt`: at least one token is left to run, so
/// that there are logits to sample from.
bool usable(const model::SequenceState& state, std::span<const int32_t> prompt) {
  return state.valid() && state.length() < static_cast<int64_t>(prompt.size()) &&
         std::equal(state.tokens().begin(), state.tokens().end(), prompt.begin());
}

}  // namespace

Result<int64_t> Session::prepare(std::span<const int32_t> prompt) {
  if (usable(current_, prompt)) {
    prompt_end_ = model::SequenceState();
    return current_.length();
  }
  current_ = model::SequenceState();
  if (usable(prompt_end_, prompt)) {
    current_ = std::move(prompt_end_);
    prompt_end_ = model::SequenceState();
    return current_.length();
  }
  prompt_end_ = model::SequenceState();
  Result<model::SequenceState> fresh = engine_.pool().create();
  if (!fresh.ok()) {
    return fresh.status();
  }
  current_ = std::move(*fresh);
  return int64_t{0};
}

Result<Generated> Session::generate(std::span<const int32_t> prompt, const GenerateParams& params) {
  if (prompt.empty()) {
    return Status::invalid_argument("the prompt is empty; give at least one token");
  }
  if (Status s = params.sampling.validate(); !s.ok()) {
    return s;
  }
  Generated out;
  out.prompt_tokens = static_cast<int64_t>(prompt.size());
  Result<int64_t> reused = prepare(prompt);
  if (!reused.ok()) {
    return reused.status();
  }
  out.reused_tokens = *reused;
  const auto begin = std::chrono::steady_clock::now();
  const auto progress = [&](int64_t done) {
    return !params.on_prefill || params.on_prefill(out.reused_tokens + done, out.prompt_tokens);
  };
  // All but the last token, then the checkpoint, then the last one: a prompt that is sent again, or
  // whose answer is edited, finds a state that leaves it a token to run.
  const auto rest = prompt.subspan(static_cast<size_t>(*reused));
  const auto body = rest.first(rest.size() - 1);
  if (Status s = engine_.prefill(current_, body, model::LogitRows::kNone, {}, progress); !s.ok()) {
    return s;
  }
  if (Result<model::SequenceState> copy = engine_.pool().fork(current_); copy.ok()) {
    prompt_end_ = std::move(*copy);
  }
  out.prefill_seconds = seconds_since(begin);
  if (params.max_tokens <= 0) {
    const Status last = engine_.prefill(current_, rest.last(1), model::LogitRows::kNone, {});
    return last.ok() ? Result<Generated>(std::move(out)) : last;
  }
  if (Status s = decode(rest.back(), params, out); !s.ok()) {
    return s;
  }
  return out;
}

Status Session::decode(int32_t token, const GenerateParams& params, Generated& out) {
  auto begin = std::chrono::steady_clock::now();
  dense::Sampler sampler(params.sampling);
  sampler.observe_prompt(current_.tokens());
  sampler.observe_prompt(std::span(&token, 1));
  std::optional<ConstrainedTokens> form;
  if (params.constraint != nullptr) {
    form.emplace(params.constraint);
    sampler.allow_only(form->mask());
  }
  dense::Sampler* const samplers[] = {&sampler};
  for (bool first = true;; first = false) {
    const model::SequenceInput input{&current_, std::span(&token, 1), model::LogitRows::kLast};
    dense::RowSample sample;
    Status status = engine_.decode(std::span(&input, 1), samplers, std::span(&sample, 1));
    status = status.ok() ? sample.status : status;
    if (!status.ok()) {
      return status;
    }
    token = sample.token.id;
    out.tokens.push_back(token);
    if (first) {
      out.prefill_seconds += seconds_since(begin);
      begin = std::chrono::steady_clock::now();
    }
    out.decode_seconds = seconds_since(begin);
    const bool go_on = !params.on_token || params.on_token(sample.token);
    if (std::ranges::find(params.stop_ids, token) != params.stop_ids.end()) {
      out.reason = FinishReason::kStop;
      return {};
    }
    if (!go_on) {
      out.reason = FinishReason::kCancelled;
      return {};
    }
    if (static_cast<int64_t>(out.tokens.size()) >= params.max_tokens ||
        current_.length() == engine_.context_tokens()) {
      out.reason = FinishReason::kLength;
      return {};
    }
    if (form) {
      form->accept(token);
    }
  }
}

}  // namespace triax::engine
