#include "plan/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "checkpoint/shapes.h"

namespace triax::plan {
namespace {

constexpr double kChunk = 8192;  // tokens of a prefill step in `triax bench model`

std::optional<double> predict(const MeasuredModel& line,
                              const std::shared_ptr<const Calibration>& calibration,
                              const Shares& shares) {
  const auto config = checkpoint::named_shape(line.shape, {line.layers, line.vocab});
  if (!config.ok()) {
    return std::nullopt;
  }
  const auto formats =
      parse_formats(fmt::format("experts={},dense={}", line.experts, line.dense), *config);
  if (!formats.ok()) {
    return std::nullopt;
  }
  const auto sharding = shard(*config, *formats, {});
  const StepModel model(*config, *formats, *sharding, calibration->hardware(), shares, calibration);
  const auto tokens = static_cast<double>(line.tokens);
  return line.prefill
             ? model.prefill_seconds(tokens, 0, kChunk)
             : model.seconds(decode_load(*config, static_cast<double>(line.batch), tokens));
}

const MeasuredModel* first_prompt(const History& history) {
  const auto it = std::find_if(history.models.begin(), history.models.end(),
                               [](const MeasuredModel& line) { return line.prefill; });
  return it == history.models.end() ? nullptr : &*it;
}

}  // namespace

Shares fit_shares(const std::shared_ptr<const Calibration>& calibration) {
  const Hardware& hardware = calibration->hardware();
  Shares shares;
  if (hardware.product_flops.value > 0) {
    shares.flops = hardware.product_flops.value / hardware.bf16_flops.value;
  }
  const MeasuredModel* line = first_prompt(calibration->history());
  if (line == nullptr) {
    return shares;
  }
  // The prediction is a + b / share.
  shares.bytes = 1;
  const std::optional<double> whole = predict(*line, calibration, shares);
  shares.bytes = 0.5;
  const std::optional<double> half = predict(*line, calibration, shares);
  shares.bytes = Shares().bytes;
  if (whole && half && *half > *whole) {
    const double b = *half - *whole, a = *whole - b;
    shares.bytes = line->seconds > a ? std::clamp(b / (line->seconds - a), 0.05, 1.0) : 1.0;
  }
  return shares;
}

std::vector<JudgedModel> judge_models(const std::shared_ptr<const Calibration>& calibration,
                                      const Shares& shares) {
  std::vector<JudgedModel> judged;
  const MeasuredModel* fitted = first_prompt(calibration->history());
  for (const MeasuredModel& line : calibration->history().models) {
    if (const std::optional<double> seconds = predict(line, calibration, shares)) {
      judged.push_back({&line, *seconds, &line == fitted});
    }
  }
  return judged;
}

}  // namespace triax::plan
