// What tiered_store.cc and tiered_transfer.cc share: the tiers, and operations under way.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "store/tiered_store.h"

namespace triax::store {

using Steady = std::chrono::steady_clock;

/// Counts operations of lower tiers that were not answered yet.
class TieredStore::UnderWay : public std::enable_shared_from_this<UnderWay> {
 public:
  /// One operation more, until the last copy ends.
  std::shared_ptr<void> hold() {
    const std::lock_guard lock(mutex_);
    ++count_;
    return {nullptr, [self = shared_from_this()](void*) { self->end(); }};
  }
  void wait() {
    std::unique_lock lock(mutex_);
    none_.wait(lock, [&] { return count_ == 0; });
  }

 private:
  void end() {
    const std::lock_guard lock(mutex_);
    if (--count_ == 0) {
      none_.notify_all();
    }
  }
  std::mutex mutex_;
  std::condition_variable none_;
  int64_t count_ = 0;
};

/// A lower tier. All but `options` and `store` under the store's lock.
struct TieredStore::Tier {
  LowerTier options;
  BlobStore* store = nullptr;  // that of the options
  bool out = false;
  bool probing = false;  // out, and one operation was let through
  Steady::time_point retry_at{};
  int64_t retry_ms = 0;
  int64_t failures = 0, skipped = 0, dropped_writes = 0, failed_writes = 0;
  int64_t writing_bytes = 0;
  std::vector<BlobKey> erased_meanwhile;
  std::unordered_set<BlobKey, BlobKeyHash> below;  // boundaries of RAM that it has too
};

/// A get on its way down the tiers.
struct TieredStore::GetJob {
  std::vector<BlobTarget> targets;
  std::vector<Status> statuses;
  GetDone done;
  bool rises = true;  // what is read is kept in RAM
};

/// A boundary on its way up.
struct TieredStore::Load {
  BlobKey key;
  std::vector<Done> waiting;  // under the store's lock
  Boundary boundary;
  int64_t ttl_ms = 0;
  bool erased = false;  // meanwhile; under the store's lock
  int64_t bytes = 0;    // counted in loading_bytes_
  std::vector<RamStore::Stage> stages;
  std::vector<RamLease> held;  // parts that RAM has: kept while the others come
};

}  // namespace triax::store
