// Ranges of the sampling parameters.
#include <fmt/core.h>

#include <cmath>
#include <limits>

#include "dense/sampling/sampling.h"

namespace triax::dense {
namespace {

Status out_of_range(std::string_view field, double value, std::string_view range) {
  return Status::invalid_argument(
      fmt::format("sampling: {} is {}, expected {}", field, value, range));
}

bool within(float x, float low, float high) { return x >= low && x <= high; }

}  // namespace

Status SamplingParams::validate() const {
  constexpr float kMax = std::numeric_limits<float>::max();
  if (!within(temperature, 0.0f, kMax)) {
    return out_of_range("temperature", temperature, "a finite number, at least 0");
  }
  if (top_k < 0) {
    return out_of_range("top_k", top_k, "at least 0 (0: off)");
  }
  if (!(top_p > 0.0f && top_p <= 1.0f)) {
    return out_of_range("top_p", top_p, "above 0 and at most 1");
  }
  if (!within(min_p, 0.0f, 1.0f)) {
    return out_of_range("min_p", min_p, "0 to 1");
  }
  if (!(repetition_penalty > 0.0f && repetition_penalty <= kMax)) {
    return out_of_range("repetition_penalty", repetition_penalty, "a finite number above 0");
  }
  if (!within(presence_penalty, -2.0f, 2.0f)) {
    return out_of_range("presence_penalty", presence_penalty, "-2 to 2");
  }
  if (!within(frequency_penalty, -2.0f, 2.0f)) {
    return out_of_range("frequency_penalty", frequency_penalty, "-2 to 2");
  }
  if (top_logprobs < 0 || top_logprobs > 20) {
    return out_of_range("top_logprobs", top_logprobs, "0 to 20");
  }
  for (const auto& [id, bias] : logit_bias) {
    if (id < 0) {
      return out_of_range("an id in logit_bias", id, "at least 0");
    }
    if (!(bias <= kMax)) {
      return out_of_range(fmt::format("logit_bias of token {}", id), bias,
                          "a finite number or -inf");
    }
  }
  return {};
}

}  // namespace triax::dense
