#include "engine/lower_tier.h"

#include <fmt/core.h>

#include <algorithm>

namespace triax::engine {
namespace {

bool is_failure(const Status& status) {
  return status.code() == StatusCode::kUnavailable || status.code() == StatusCode::kInternal;
}

}  // namespace

bool LowerTier::usable() {
  collect_erased();
  if (out_ && Steady::now() < retry_at_) {
    return false;
  }
  erasing_ += doomed_.size();
  for (const store::BlobKey& key : std::exchange(doomed_, {})) {
    store_->erase(key, [this, key](const Status& status) {
      const std::lock_guard lock(mutex_);
      erased_.emplace_back(key, status);
    });
  }
  collect_erased();
  return erasing_ == 0;
}

void LowerTier::collect_erased() {
  std::vector<std::pair<store::BlobKey, Status>> erased;
  {
    const std::lock_guard lock(mutex_);
    erased.swap(erased_);
  }
  erasing_ -= erased.size();
  for (const auto& [key, status] : erased) {
    if (is_failure(status)) {
      doomed_.push_back(key);
    }
    report(status);
  }
}

void LowerTier::report(const Status& status) {
  if (!is_failure(status)) {
    if (std::exchange(out_, false) && options_.on_notice) {
      options_.on_notice(fmt::format("tier {}: back", store_->name()));
    }
    retry_ms_ = 0;
    return;
  }
  const Steady::time_point now = Steady::now();
  if (out_ && now < retry_at_) {
    return;  // asked before it was taken out
  }
  retry_ms_ = std::clamp(2 * retry_ms_, options_.retry_ms_min, options_.retry_ms_max);
  retry_at_ = now + std::chrono::milliseconds(retry_ms_);
  if (!std::exchange(out_, true)) {
    ++failures_;
    if (options_.on_notice) {
      options_.on_notice(fmt::format("tier {}: left out, what it holds is computed: {}",
                                     store_->name(), status.message()));
    }
  }
}

LowerTierStats LowerTier::stats() const {
  return {store_->name(), store_->stats(), store_->link_rates(), out_, failures_, skipped_};
}

}  // namespace triax::engine
