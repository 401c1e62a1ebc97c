// The steps of a draw: check, adjust, filter, draw, report.
#include "dense/sampling/sampling.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "dense/sampling/largest.h"
#include "dense/sampling/scan.h"

namespace triax::dense {
namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

int64_t count_of(std::span<const float> logits) { return static_cast<int64_t>(logits.size()); }

Status unusable(std::span<const float> logits, std::string_view which) {
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!(logits[i] <= std::numeric_limits<float>::max())) {
      return Status::invalid_argument(fmt::format(
          "sample: {} of token {} is {}, expected a finite number or -inf", which, i, logits[i]));
    }
  }
  return Status::invalid_argument(fmt::format("sample: every {} is -inf", which));
}

bool any_penalty(const SamplingParams& p) {
  return p.repetition_penalty != 1.0f || p.presence_penalty != 0.0f || p.frequency_penalty != 0.0f;
}

}  // namespace

Sampler::Sampler(SamplingParams params)
    : params_(std::move(params)), rng_(params_.seed), scan_(&internal::scan_best()) {
  const Status status = params_.validate();
  check(status.ok(), status.message());
}

bool Sampler::draws_from_raw() const {
  return params_.logit_bias.empty() && !any_penalty(params_) && params_.top_logprobs == 0 &&
         allowed_.empty();
}

void Sampler::observe_prompt(std::span<const int32_t> ids) {
  for (const int32_t id : ids) {
    ++prompt_[id];
  }
}

Result<SampledToken> Sampler::sample(std::span<const float> logits) {
  if (logits.empty()) {
    return Status::invalid_argument("sample: there are no logits");
  }
  const internal::Extent raw = scan_->extent(logits.data(), count_of(logits));
  if (!raw.valid || raw.max == kForbidden) {
    return unusable(logits, "logit");
  }
  const Result<std::span<const float>> adjusted = adjust(logits);
  if (!adjusted.ok()) {
    return adjusted.status();
  }
  internal::Extent extent = raw;
  if (adjusted->data() != logits.data()) {
    extent = scan_->extent(adjusted->data(), count_of(*adjusted));
    if (!extent.valid || extent.max == kForbidden) {
      if (extent.valid && !allowed_.empty()) {
        return Status::invalid_argument("sample: no id that may be drawn has a logit above -inf");
      }
      return unusable(*adjusted, "adjusted logit");
    }
  }
  total_ = 0.0;
  const int32_t id = draw(*adjusted, extent.max);
  ++generated_[id];
  const bool weighed_raw =
      total_ > 0.0 && params_.temperature == 1.0f && adjusted->data() == logits.data();
  const double raw_total =
      weighed_raw ? total_
                  : scan_->weigh(logits.data(), count_of(logits), raw.max, 1.0, nullptr, nullptr);
  return report(logits, id, static_cast<double>(raw.max) + std::log(raw_total));
}

Result<std::span<const float>> Sampler::adjust(std::span<const float> logits) {
  if (params_.logit_bias.empty() && !any_penalty(params_) && allowed_.empty()) {
    return logits;
  }
  if (allowed_.empty()) {
    adjusted_.assign(logits.begin(), logits.end());
  } else {
    copy_allowed(logits);
  }
  for (const auto& [id, bias] : params_.logit_bias) {
    if (id >= count_of(logits)) {
      return Status::invalid_argument(fmt::format(
          "sample: logit_bias names token {}, the vocabulary has {}", id, logits.size()));
    }
    adjusted_[static_cast<size_t>(id)] += bias;
  }
  if (any_penalty(params_)) {
    penalise(adjusted_);
  }
  return std::span<const float>(adjusted_);
}

/// Fills adjusted_: word by word, since most are all ones or all zeros.
void Sampler::copy_allowed(std::span<const float> logits) {
  adjusted_.assign(logits.size(), kForbidden);
  const size_t words = std::min(allowed_.size(), (logits.size() + 63) / 64);
  for (size_t word = 0; word < words; ++word) {
    const size_t begin = word * 64;
    const size_t end = std::min(begin + 64, logits.size());
    if (allowed_[word] == ~uint64_t{0}) {
      std::copy(logits.begin() + static_cast<std::ptrdiff_t>(begin),
                logits.begin() + static_cast<std::ptrdiff_t>(end),
                adjusted_.begin() + static_cast<std::ptrdiff_t>(begin));
      continue;
    }
    for (uint64_t bits = allowed_[word]; bits != 0; bits &= bits - 1) {
      const size_t id = begin + static_cast<size_t>(std::countr_zero(bits));
      if (id < end) {
        adjusted_[id] = logits[id];
      }
    }
  }
}

void Sampler::penalise(std::span<float> logits) const {
  const auto known = [&](int32_t id) { return id >= 0 && id < count_of(logits); };
  const auto repeat = [&](int32_t id) {
    float& logit = logits[static_cast<size_t>(id)];
    logit = logit > 0.0f ? logit / params_.repetition_penalty : logit * params_.repetition_penalty;
  };
  if (params_.repetition_penalty != 1.0f) {
    for (const auto& [id, count] : prompt_) {
      if (known(id)) {
        repeat(id);
      }
    }
  }
  for (const auto& [id, count] : generated_) {
    if (!known(id)) {
      continue;
    }
    if (params_.repetition_penalty != 1.0f && !prompt_.contains(id)) {
      repeat(id);
    }
    logits[static_cast<size_t>(id)] -=
        params_.presence_penalty + params_.frequency_penalty * static_cast<float>(count);
  }
}

int32_t Sampler::draw(std::span<const float> logits, float max) {
  if (params_.temperature == 0.0f) {
    return static_cast<int32_t>(scan_->first_equal(logits.data(), count_of(logits), max));
  }
  if (params_.top_k > 0 && params_.top_k < count_of(logits)) {
    keep_top_k(logits, max);
    return draw_from_kept();
  }
  weights_.resize(logits.size());
  block_sums_.resize(static_cast<size_t>(internal::scan_blocks(count_of(logits))));
  total_ = scan_->weigh(logits.data(), count_of(logits), max,
                        1.0 / static_cast<double>(params_.temperature), weights_.data(),
                        block_sums_.data());
  if (params_.top_p == 1.0f && params_.min_p == 0.0f) {
    return draw_from_all();
  }
  keep_top_p(logits, max);
  return draw_from_kept();
}

int32_t Sampler::draw_from_all() {
  const double target = rng_.uniform() * total_;
  double sum = 0.0;
  size_t block = 0;
  size_t last = 0;  // the last block that weighs anything, should rounding pass the end
  for (; block < block_sums_.size(); ++block) {
    last = block_sums_[block] > 0.0 ? block : last;
    if (sum + block_sums_[block] > target) {
      break;
    }
    sum += block_sums_[block];
  }
  block = std::min(block, last);
  const size_t begin = block * internal::kScanBlock;
  const size_t end = std::min(weights_.size(), begin + internal::kScanBlock);
  size_t drawn = begin;
  for (size_t i = begin; i < end; ++i) {
    if (weights_[i] > 0.0) {
      drawn = i;
      sum += weights_[i];
      if (sum > target) {
        break;
      }
    }
  }
  return static_cast<int32_t>(drawn);
}

int32_t Sampler::draw_from_kept() {
  double total = 0.0;
  for (const Candidate& candidate : kept_) {
    total += candidate.weight;
  }
  const double target = rng_.uniform() * total;
  double sum = 0.0;
  int32_t drawn = kept_.front().id;
  for (const Candidate& candidate : kept_) {
    if (candidate.weight > 0.0) {
      drawn = candidate.id;
      sum += candidate.weight;
      if (sum > target) {
        break;
      }
    }
  }
  return drawn;
}

SampledToken Sampler::report(std::span<const float> logits, int32_t id, double log_total) const {
  const auto logprob = [&](float logit) {
    return static_cast<float>(static_cast<double>(logit) - log_total);
  };
  SampledToken token;
  token.id = id;
  token.logprob = logprob(logits[static_cast<size_t>(id)]);
  if (params_.top_logprobs > 0) {
    internal::find_largest(logits, params_.top_logprobs, token.top);
    for (TokenLogprob& entry : token.top) {
      entry.logprob = logprob(entry.logprob);
    }
  }
  return token;
}

}  // namespace triax::dense
