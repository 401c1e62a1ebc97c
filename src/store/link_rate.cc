#include "store/link_rate.h"

#include <algorithm>

namespace triax::store {
namespace {

constexpr double kDecay = 0.969;  // half after 22

}  // namespace

std::optional<double> LinkRate::seconds(int64_t bytes) const {
  if (bytes_per_s <= 0) {
    return std::nullopt;
  }
  return latency_s + static_cast<double>(bytes) / bytes_per_s;
}

void LinkMeter::add(int64_t bytes, double seconds) {
  const double x = static_cast<double>(bytes);
  const double y = std::max(seconds, 1e-9);
  const std::lock_guard lock(mutex_);
  weight_ = weight_ * kDecay + 1;
  x_ = x_ * kDecay + x;
  y_ = y_ * kDecay + y;
  xx_ = xx_ * kDecay + x * x;
  xy_ = xy_ * kDecay + x * y;
  ++transfers_;
}

LinkRate LinkMeter::rate() const {
  const std::lock_guard lock(mutex_);
  LinkRate rate;
  rate.transfers = transfers_;
  if (transfers_ == 0 || x_ <= 0) {
    return rate;
  }
  const double mean_x = x_ / weight_;
  const double mean_y = y_ / weight_;
  const double variance = xx_ / weight_ - mean_x * mean_x;
  const double covariance = xy_ / weight_ - mean_x * mean_y;
  // Sizes that hardly differ say nothing of the slope; a slope below zero is noise.
  if (variance > 1e-4 * mean_x * mean_x && covariance > 0) {
    const double slope = covariance / variance;
    const double latency = mean_y - slope * mean_x;
    if (latency >= 0) {
      rate.latency_s = latency;
      rate.bytes_per_s = 1 / slope;
      return rate;
    }
  }
  rate.bytes_per_s = mean_x / mean_y;
  return rate;
}

}  // namespace triax::store
