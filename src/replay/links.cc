#include "replay/links.h"

#include <algorithm>
#include <limits>

namespace triax::replay {

void Links::take(double now_s) {
  planned_.clear();
  cache_->take_transfers(planned_);
  for (const cache::Transfer& transfer : planned_) {
    // The slower end of a copy is that of the lower tier.
    const bool reads = transfer.from > transfer.to;
    const auto tier = static_cast<size_t>(cache::index(std::max(transfer.from, transfer.to)));
    const cache::TierConfig& config = cache_->config().tiers[tier];
    double& until_s = reads ? reads_until_s_[tier] : writes_until_s_[tier];
    const double seconds = config.read_bytes_per_second > 0.0
                               ? static_cast<double>(transfer.bytes) / config.read_bytes_per_second
                               : 0.0;
    until_s = std::max(until_s, now_s) + seconds;
    copies_.push({until_s + config.read_latency_seconds, transfer.id});
  }
}

void Links::run(double now_s) {
  take(now_s);
  while (!copies_.empty() && copies_.top().done_s <= now_s) {
    const uint64_t id = copies_.top().id;
    copies_.pop();
    cache_->confirm(id, true, now_s);
    take(now_s);
  }
}

double Links::next_at() const {
  return copies_.empty() ? std::numeric_limits<double>::infinity() : copies_.top().done_s;
}

}  // namespace triax::replay
