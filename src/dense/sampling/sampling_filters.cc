// The filters: which tokens top_k, top_p and min_p leave. Each leaves a prefix of the order
// (descending logit, ascending id), so together they leave the shortest of their prefixes.
#include <algorithm>
#include <cmath>

#include "dense/sampling/largest.h"
#include "dense/sampling/sampling.h"
#include "dense/sampling/scan.h"

namespace triax::dense {
namespace {

// Buckets of equal width in the logit, for finding where the cumulative mass crosses top_p.
constexpr int64_t kBuckets = 2048;

/// Buckets of logits by their distance to the largest, up to a distance.
class Buckets {
 public:
  Buckets(float max, double distance)
      : max_(static_cast<double>(max)),
        scale_(distance > 0.0 ? static_cast<double>(kBuckets) / distance : 0.0) {}

  /// Never descends while logits descend.
  int64_t index(float logit) const {
    const double position = (max_ - static_cast<double>(logit)) * scale_;
    return position < static_cast<double>(kBuckets) ? static_cast<int64_t>(position) : kBuckets - 1;
  }

 private:
  double max_;
  double scale_;
};

}  // namespace

void Sampler::keep_top_k(std::span<const float> logits, float max) {
  internal::find_largest(logits, params_.top_k, largest_);
  adjusted_.resize(largest_.size());  // free here: logits may be a view of it, no longer needed
  for (size_t i = 0; i < largest_.size(); ++i) {
    adjusted_[i] = largest_[i].logprob;
  }
  weights_.resize(largest_.size());
  scan_->weigh(adjusted_.data(), static_cast<int64_t>(adjusted_.size()), max,
               1.0 / static_cast<double>(params_.temperature), weights_.data(), nullptr);
  double total = 0.0;
  for (const double weight : weights_) {
    total += weight;
  }
  const double target = static_cast<double>(params_.top_p) * total;
  kept_.clear();
  double sum = 0.0;
  for (size_t i = 0; i < largest_.size(); ++i) {
    if (weights_[i] < static_cast<double>(params_.min_p) * weights_[0]) {
      break;
    }
    kept_.push_back({weights_[i], largest_[i].logprob, largest_[i].id});
    sum += weights_[i];
    if (params_.top_p < 1.0f && sum >= target) {
      break;
    }
  }
  std::sort(kept_.begin(), kept_.end(),
            [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
}

void Sampler::keep_top_p(std::span<const float> logits, float max, double total) {
  const auto weight_min = static_cast<double>(params_.min_p);  // the largest weight is 1
  TokenLogprob boundary = {static_cast<int32_t>(logits.size()), -INFINITY};
  if (params_.top_p < 1.0f) {
    boundary = nucleus_boundary(logits, max, total);
  }
  kept_.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] < boundary.logprob || weights_[i] < weight_min) {
      continue;
    }
    const auto id = static_cast<int32_t>(i);
    if (logits[i] > boundary.logprob || id <= boundary.id) {
      kept_.push_back({weights_[i], logits[i], id});
    }
  }
}

TokenLogprob Sampler::nucleus_boundary(std::span<const float> logits, float max, double total) {
  // All tokens lighter than this weigh less than half of what top_p leaves out.
  const double weight_min =
      0.5 * (1.0 - static_cast<double>(params_.top_p)) * total / static_cast<double>(logits.size());
  const Buckets buckets(max, -std::log(weight_min) * static_cast<double>(params_.temperature));
  masses_.assign(static_cast<size_t>(kBuckets), 0.0);
  for (size_t i = 0; i < logits.size(); ++i) {
    if (weights_[i] >= weight_min) {
      masses_[static_cast<size_t>(buckets.index(logits[i]))] += weights_[i];
    }
  }
  const double target = static_cast<double>(params_.top_p) * total;
  double sum = 0.0;
  int64_t crossing = 0;
  for (; crossing < kBuckets - 1; ++crossing) {
    const double mass = masses_[static_cast<size_t>(crossing)];
    if (sum + mass >= target) {
      break;
    }
    sum += mass;
  }
  largest_.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (weights_[i] >= weight_min && buckets.index(logits[i]) == crossing) {
      largest_.push_back({static_cast<int32_t>(i), logits[i]});
    }
  }
  std::sort(largest_.begin(), largest_.end(), internal::before);
  for (const TokenLogprob& token : largest_) {
    sum += weights_[static_cast<size_t>(token.id)];
    if (sum >= target) {
      return token;
    }
  }
  // Rounding alone can lead here; the bucket's last token then closes the set.
  return largest_.empty() ? TokenLogprob{static_cast<int32_t>(logits.size()), -INFINITY}
                          : largest_.back();
}

}  // namespace triax::dense
