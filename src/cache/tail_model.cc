#include "cache/tail_model.h"

namespace triax::cache {
namespace {

constexpr int32_t kFitEach = 64;
constexpr double kForget = 0.98;  // of what was seen, at each fit: about 3,000 prompts count

}  // namespace

void TailModel::observe(int32_t back, int64_t blocks) {
  const auto i = static_cast<size_t>(back);
  count_[i] += 1;
  loss_[i] += static_cast<double>(blocks);
  if (--until_fit_ == 0) {
    fit();
    for (size_t b = 0; b <= kTailBlocks; ++b) {
      count_[b] *= kForget;
      loss_[b] *= kForget;
    }
    until_fit_ = kFitEach;
  }
}

void TailModel::fit() {
  double lost = 0;
  for (size_t b = 1; b <= kTailBlocks; ++b) {
    lost += loss_[b];
  }
  double safe = 0;  // prompts that go on from a checkpoint so far back
  double best = 0;
  for (int32_t m = 0; m < kTailBlocks; ++m) {
    const auto b = static_cast<size_t>(m);
    lost -= m > 0 ? loss_[b] : 0;
    safe += count_[b];
    const double cost = lost + m * safe;
    if (m == 0 || cost < best) {
      best = cost;
      distance_ = m;
    }
  }
}

}  // namespace triax::cache
