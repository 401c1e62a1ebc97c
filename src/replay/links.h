// Copies between tiers on a virtual clock: each direction of each link does one after the other.
#pragma once

#include <array>
#include <cstdint>
#include <queue>
#include <vector>

#include "cache/cache.h"

namespace triax::replay {

class Links {
 public:
  /// Rates and latencies are those of the cache's tiers; a tier without a rate copies at once.
  explicit Links(cache::Cache* cache) : cache_(cache) {}

  /// Takes over what the cache has planned, and confirms what is done by then.
  void run(double now_s);
  /// The end of the next copy; infinity: none runs.
  double next_at() const;
  int64_t running() const { return static_cast<int64_t>(copies_.size()); }

 private:
  struct Copy {
    double done_s = 0.0;
    uint64_t id = 0;
    bool operator>(const Copy& other) const {
      return done_s != other.done_s ? done_s > other.done_s : id > other.id;
    }
  };

  void take(double now_s);

  cache::Cache* cache_;
  std::vector<cache::Transfer> planned_;
  std::priority_queue<Copy, std::vector<Copy>, std::greater<>> copies_;
  // By tier: towards the device, and away from it.
  std::array<double, cache::kTiers> reads_until_s_{};
  std::array<double, cache::kTiers> writes_until_s_{};
};

}  // namespace triax::replay
