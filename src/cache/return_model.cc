#include "cache/return_model.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace triax::cache {
namespace {

// A class's own hazard counts as much as its outcome's after so many observations, and that one as
// much as all together.
constexpr double kPriorOfClass = 8;
// Before anything was seen: a third comes back in each half octave (a heavy tail).
constexpr double kPriorReached = 3;
constexpr double kPriorReturned = 1;

}  // namespace

int age_bucket(double age_seconds) {
  const double octaves = std::log2(1.0 + std::max(0.0, age_seconds));
  return std::min(kAgeBuckets - 1, static_cast<int>(2 * octaves));
}

double age_bucket_end(int bucket) {
  return bucket >= kAgeBuckets - 1 ? std::numeric_limits<double>::infinity()
                                   : std::exp2(0.5 * (bucket + 1)) - 1.0;
}

ReturnModel::ReturnModel() { refit(); }

int ReturnModel::class_of(const Session& session) {
  int rhythm = 0;  // no gap seen yet
  if (session.gap_seconds_mean > 0) {
    static constexpr std::array<double, kRhythms - 2> kSeconds = {4, 6, 9, 14, 22, 40};
    rhythm = 1;
    while (rhythm < kRhythms - 1 &&
           session.gap_seconds_mean >= kSeconds[static_cast<size_t>(rhythm - 1)]) {
      ++rhythm;
    }
  }
  return static_cast<int>(session.last_outcome) * kRhythms + rhythm;
}

void ReturnModel::reached(int session_class, int bucket) {
  const auto b = static_cast<size_t>(bucket);
  cells_[static_cast<size_t>(session_class)][b].reached += 1;
  outcomes_[static_cast<size_t>(session_class / kRhythms)][b].reached += 1;
  all_[b].reached += 1;
}

void ReturnModel::returned(int session_class, int bucket) {
  const auto b = static_cast<size_t>(bucket);
  cells_[static_cast<size_t>(session_class)][b].returned += 1;
  outcomes_[static_cast<size_t>(session_class / kRhythms)][b].returned += 1;
  all_[b].returned += 1;
  if (++seen_ >= next_fit_) {
    refit();
    next_fit_ = seen_ + std::min<int64_t>(1024, seen_ / 8 + 1);
  }
}

double ReturnModel::index_of(int session_class, int bucket) const {
  return index_[static_cast<size_t>(session_class)][static_cast<size_t>(bucket)];
}

void ReturnModel::refit() {
  for (size_t c = 0; c < kClasses; ++c) {
    std::array<double, kAgeBuckets> hazard{}, kept{};
    for (size_t b = 0; b < kAgeBuckets; ++b) {
      const double pooled = (all_[b].returned + kPriorReturned) / (all_[b].reached + kPriorReached);
      hazard[b] = std::min(1.0, (cells_[c][b].returned + kPriorOfClass * pooled) /
                                    (cells_[c][b].reached + kPriorOfClass));
      const double begin = b == 0 ? 0.0 : age_bucket_end(static_cast<int>(b) - 1);
      const double end = std::exp2(0.5 * static_cast<double>(b + 1)) - 1.0;
      kept[b] = (end - begin) * (1 - hazard[b] / 2);
    }
    for (size_t from = 0; from < kAgeBuckets; ++from) {
      double alive = 1, back = 0, seconds = 0, best = 0;
      for (size_t b = from; b < kAgeBuckets && alive > 1e-4; ++b) {
        back += alive * hazard[b];
        seconds += alive * kept[b];
        alive *= 1 - hazard[b];
        best = std::max(best, back / seconds);
      }
      index_[c][from] = best;
    }
  }
}

}  // namespace triax::cache
