#include "plan/calibration.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "plan/roofline.h"

namespace triax::plan {
namespace {

constexpr size_t kNone = std::numeric_limits<size_t>::max();
constexpr size_t kNearest = 3;

double ideal_seconds(const Hardware& hardware, Format weights, double flops, double bytes) {
  return std::max(bytes / hardware.memory_bytes_per_second.value,
                  flops / product_rate(hardware, weights));
}

}  // namespace

Calibration::Calibration(History history, const Hardware& hardware)
    : history_(std::move(history)), hardware_(hardware) {
  for (size_t i = 0; i < history_.kernels.size(); ++i) {
    const Measured& line = history_.kernels[i];
    const double share =
        ideal_seconds(hardware_, line.weights, line.flops, line.bytes) / line.seconds;
    points_[static_cast<size_t>(line.kernel)].push_back({std::log(line.flops), std::log(line.bytes),
                                                         std::log(share), line.weights,
                                                         line.seconds, i});
  }
}

double Calibration::predict(Kernel kernel, Format weights, double flops, double bytes,
                            double ideal_s, size_t without) const {
  struct Near {
    double distance, log_share;
  };
  std::array<Near, kNearest> nearest;
  nearest.fill({std::numeric_limits<double>::infinity(), 0});
  double fastest = std::numeric_limits<double>::infinity();
  const double x = std::log(std::max(flops, 1.0)), y = std::log(std::max(bytes, 1.0));
  for (const Point& point : points_[static_cast<size_t>(kernel)]) {
    if (point.kernel == without) {
      continue;
    }
    fastest = std::min(fastest, point.seconds);
    const double other = point.weights == weights ? 0.0 : 1.0;
    const double distance = (x - point.log_flops) * (x - point.log_flops) +
                            (y - point.log_bytes) * (y - point.log_bytes) + other;
    if (distance < nearest.back().distance) {
      nearest.back() = {distance, point.log_share};
      std::sort(nearest.begin(), nearest.end(),
                [](const Near& a, const Near& b) { return a.distance < b.distance; });
    }
  }
  double weight_sum = 0, share_sum = 0;
  for (const Near& near : nearest) {
    if (std::isfinite(near.distance)) {
      const double weight = 1 / (near.distance + 1e-6);
      weight_sum += weight;
      share_sum += weight * near.log_share;
    }
  }
  return weight_sum > 0 ? std::max(ideal_s / std::exp(share_sum / weight_sum), fastest) : 0.0;
}

double Calibration::seconds(Kernel kernel, Format weights, double flops, double bytes,
                            double ideal_s) const {
  return predict(kernel, weights, flops, bytes, ideal_s, kNone);
}

std::vector<Judged> Calibration::judge() const {
  std::vector<Judged> judged;
  for (size_t i = 0; i < history_.kernels.size(); ++i) {
    const Measured& line = history_.kernels[i];
    const double predicted =
        predict(line.kernel, line.weights, line.flops, line.bytes,
                ideal_seconds(hardware_, line.weights, line.flops, line.bytes), i);
    if (predicted > 0) {
      judged.push_back({&line, predicted});
    }
  }
  return judged;
}

double median_error(const std::vector<double>& ratios) {
  if (ratios.empty()) {
    return 0;
  }
  std::vector<double> errors;
  for (const double ratio : ratios) {
    errors.push_back(std::abs(std::log(ratio)));
  }
  std::nth_element(errors.begin(), errors.begin() + std::ssize(errors) / 2, errors.end());
  return std::exp(errors[errors.size() / 2]) - 1;
}

}  // namespace triax::plan
