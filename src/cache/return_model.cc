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

/// Where each bucket ends, in seconds: 2^((b + 1) / 2) - 1.
constexpr std::array<double, kAgeBuckets> bucket_ends() {
  std::array<double, kAgeBuckets> ends{};
  double octave = 1;
  for (size_t b = 0; b < kAgeBuckets; b += 2) {
    ends[b] = octave * 1.4142135623730951 - 1;
    octave *= 2;
    ends[b + 1] = octave - 1;
  }
  return ends;
}
constexpr std::array<double, kAgeBuckets> kEnds = bucket_ends();

}  // namespace

int age_bucket(double age_seconds) {
  const double octaves = std::log2(1.0 + std::max(0.0, age_seconds));
  return std::min(kAgeBuckets - 1, static_cast<int>(2 * octaves));
}

double age_bucket_end(int bucket) {
  return bucket >= kAgeBuckets - 1 ? std::numeric_limits<double>::infinity()
                                   : kEnds[static_cast<size_t>(bucket)];
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
  struct Stretch {  // of buckets that are kept or given up together
    double back, seconds, alive;
  };
  for (size_t c = 0; c < kClasses; ++c) {
    std::array<Stretch, kAgeBuckets> later;
    size_t count = 0;
    for (size_t b = kAgeBuckets; b-- > 0;) {
      const Cell& own = cells_[c][b];
      const Cell& alike = outcomes_[c / kRhythms][b];
      const double all = (all_[b].returned + kPriorReturned) / (all_[b].reached + kPriorReached);
      const double pooled =
          (alike.returned + kPriorOfClass * all) / (alike.reached + kPriorOfClass);
      const double hazard =
          std::min(1.0, (own.returned + kPriorOfClass * pooled) / (own.reached + kPriorOfClass));
      const double seconds = kEnds[b] - (b == 0 ? 0.0 : kEnds[b - 1]);
      Stretch now{hazard, seconds * (1 - hazard / 2), 1 - hazard};
      // Waiting on is worth it as long as what follows has the better rate.
      for (; count > 0; --count) {
        const Stretch& next = later[count - 1];
        if (next.back * now.seconds <= now.back * next.seconds) {
          break;
        }
        now.back += now.alive * next.back;
        now.seconds += now.alive * next.seconds;
        now.alive *= next.alive;
      }
      index_[c][b] = now.back / now.seconds;
      later[count++] = now;
    }
  }
}

}  // namespace triax::cache
