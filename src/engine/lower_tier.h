// A store below this process's memory, and whether it works: one that fails is left out for a
// while.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "store/blob_store.h"

namespace triax::engine {

struct LowerTierOptions {
  int64_t retry_ms_min = 1000;    // a tier that failed is tried again after this time, doubled with
  int64_t retry_ms_max = 60'000;  // each further failure
  /// One line for an operator when a tier fails and when it is back. In the engine's thread.
  std::function<void(const std::string&)> on_notice = {};
};

struct LowerTierStats {
  std::string name;
  store::StoreStats store;
  store::LinkRates rates;
  bool out = false;
  int64_t failures = 0;  // times it was taken out
  int64_t skipped = 0;   // copies that were not tried meanwhile
};

/// Owns the store. One thread, the engine's.
class LowerTier {
 public:
  LowerTier(std::unique_ptr<store::BlobStore> store, LowerTierOptions options)
      : options_(std::move(options)), store_(std::move(store)) {}

  store::BlobStore& store() { return *store_; }

  /// Whether to ask it for anything now. What erase() wants gone goes first.
  bool usable();
  /// What came of something that it was asked for.
  void report(const Status& status);
  void skip() { ++skipped_; }
  /// Deletes a blob, now or as soon as the tier works again; nothing is read from it before.
  void erase(const store::BlobKey& key) { doomed_.push_back(key); }

  LowerTierStats stats() const;

 private:
  using Steady = std::chrono::steady_clock;
  void collect_erased();

  LowerTierOptions options_;
  bool out_ = false;
  int64_t retry_ms_ = 0;
  Steady::time_point retry_at_{};
  int64_t failures_ = 0;
  int64_t skipped_ = 0;
  std::vector<store::BlobKey> doomed_;
  size_t erasing_ = 0;

  std::mutex mutex_;
  std::vector<std::pair<store::BlobKey, Status>> erased_;
  std::unique_ptr<store::BlobStore> store_;  // ends first: its threads use what is above
};

}  // namespace triax::engine
