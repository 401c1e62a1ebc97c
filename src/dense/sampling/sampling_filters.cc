// The filters: which tokens top_k, top_p and min_p leave. Each leaves a prefix of the order
// (descending logit, ascending id), so together they leave the shortest of their prefixes.
#include <algorithm>
#include <cmath>

#include "dense/sampling/largest.h"
#include "dense/sampling/sampling.h"
#include "dense/sampling/scan.h"

namespace triax::dense {
namespace internal {

// Buckets of equal width in the logit, by its distance to the largest: for finding where the
// cumulative mass crosses top_p.
class Buckets {
 public:
  static constexpr size_t kCount = 2048;

  Buckets(float max, double distance)
      : max_(static_cast<double>(max)),
        scale_(distance > 0.0 ? static_cast<double>(kCount) / distance : 0.0) {}

  /// Never descends while logits descend; distances beyond the end are in the last bucket.
  size_t index(float logit) const {
    const double position = (max_ - static_cast<double>(logit)) * scale_;
    constexpr auto kLast = static_cast<double>(kCount - 1);
    return static_cast<size_t>(static_cast<int64_t>(position < kLast ? position : kLast));
  }

 private:
  double max_;
  double scale_;
};

}  // namespace internal

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

void Sampler::keep_top_p(std::span<const float> logits, float max) {
  const auto share_min = static_cast<double>(params_.min_p);  // the largest weight is 1
  if (params_.top_p == 1.0f) {
    gather(logits, share_min);
    return;
  }
  // All tokens lighter than this weigh less than half of what top_p leaves out.
  const double weight_min = 0.5 * (1.0 - static_cast<double>(params_.top_p)) * total_ /
                            static_cast<double>(logits.size());
  gather(logits, weight_min);
  const internal::Buckets buckets(max,
                                  -std::log(weight_min) * static_cast<double>(params_.temperature));
  const TokenLogprob last = nucleus_boundary(buckets, static_cast<double>(params_.top_p) * total_);
  size_t count = 0;
  for (const Candidate& candidate : kept_) {
    const bool inside = candidate.logit > last.logprob ||
                        (candidate.logit == last.logprob && candidate.id <= last.id);
    kept_[count] = candidate;
    count += inside && candidate.weight >= share_min ? 1 : 0;
  }
  kept_.resize(count);
}

// Without branches: which token passes is hard to predict.
void Sampler::gather(std::span<const float> logits, double weight_min) {
  kept_.resize(logits.size());
  size_t count = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    kept_[count] = {weights_[i], logits[i], static_cast<int32_t>(i)};
    count += weights_[i] >= weight_min ? 1 : 0;
  }
  kept_.resize(count);
}

TokenLogprob Sampler::nucleus_boundary(const internal::Buckets& buckets, double target) {
  masses_.assign(static_cast<size_t>(internal::Buckets::kCount), 0.0);
  for (const Candidate& candidate : kept_) {
    masses_[buckets.index(candidate.logit)] += candidate.weight;
  }
  double sum = 0.0;
  size_t crossing = 0;
  while (crossing + 1 < masses_.size() && sum + masses_[crossing] < target) {
    sum += masses_[crossing++];
  }
  largest_.clear();
  for (const Candidate& candidate : kept_) {
    if (buckets.index(candidate.logit) == crossing) {
      largest_.push_back({candidate.id, candidate.logit});
    }
  }
  std::sort(largest_.begin(), largest_.end(), internal::before);
  for (const TokenLogprob& token : largest_) {
    sum += weights_[static_cast<size_t>(token.id)];
    if (sum >= target) {
      return token;
    }
  }
  // Rounding alone can lead here; the bucket's last token, or the last of all, closes the set.
  return largest_.empty() ? TokenLogprob{kept_.back().id, -INFINITY} : largest_.back();
}

}  // namespace triax::dense
