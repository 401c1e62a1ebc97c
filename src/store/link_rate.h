// How fast a tier is, from its own transfers: seconds = latency + bytes / rate.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>

namespace triax::store {

/// A straight line through the recent transfers (weighted least squares; a transfer weighs half
/// after 22 later ones). Transfers of one size only give a rate and no latency.
struct LinkRate {
  double latency_s = 0;
  double bytes_per_s = 0;  // 0: nothing measured yet
  int64_t transfers = 0;

  /// Expected time of one transfer of so many bytes; nullopt while nothing was measured.
  std::optional<double> seconds(int64_t bytes) const;
};

struct LinkRates {
  LinkRate read, write;
};

/// Collects transfers. Thread-safe.
class LinkMeter {
 public:
  void add(int64_t bytes, double seconds);
  LinkRate rate() const;

 private:
  mutable std::mutex mutex_;
  double weight_ = 0, x_ = 0, y_ = 0, xx_ = 0, xy_ = 0;  // decayed sums; x bytes, y seconds
  int64_t transfers_ = 0;
};

}  // namespace triax::store
