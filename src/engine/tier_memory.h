// Pages and states below the device: in this process's memory and on an SSD, as the cache plans.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "cache/cache.h"
#include "model/sequence_state.h"
#include "store/ssd_store.h"

namespace triax::engine {

struct TierOptions {
  int64_t ram_bytes = 0;     // 0: no such tier
  int64_t ssd_bytes = 0;     // 0: no such tier
  std::string ssd_folder;    // what is there already is found again
  uint64_t fingerprint = 0;  // of the model and of all that its states depend on besides tokens
};

/// Makes the copies that a cache plans between its tiers. What lies in this process is copied at
/// once; what comes from or goes to the SSD is under way meanwhile. A copy that fails is confirmed
/// as not made, so that the cache computes instead.
/// Ownership  cache and pool outlive this
class TierMemory {
 public:
  /// Errors     those of SsdStore::open
  static Result<std::unique_ptr<TierMemory>> create(const TierOptions& options, cache::Cache& cache,
                                                    model::StatePool& pool);
  /// Waits for what is under way.
  ~TierMemory();

  /// The tokens behind a checkpoint's key: only then can a restart find it.
  void remember(cache::Key state, cache::Key root, std::span<const int32_t> tokens);

  /// Makes planned copies and confirms those that are done.
  /// Errors     those of the device
  Status poll(double now);
  bool busy() const { return !jobs_.empty(); }
  /// Copies that could not be made so far.
  int64_t failed() const { return failed_; }
  /// Waits until something may have ended, at most so long.
  void wait(double seconds_max);

  /// Tells the cache what a folder held when it was opened. Returns the number of boundaries.
  Result<int64_t> adopt(double now);

 private:
  using Bytes = std::vector<std::byte>;
  struct Job {
    cache::Transfer transfer;
    std::vector<Bytes> pages;
    Bytes tail;
    Bytes state;
    Bytes tokens;  // of a boundary that goes to the SSD
    bool written = false;
  };
  struct Remembered {
    cache::Key root;
    std::vector<int32_t> tokens;
  };

  TierMemory(const TierOptions& options, cache::Cache& cache, model::StatePool& pool)
      : options_(options), cache_(cache), pool_(pool) {}

  void forget_drops();
  Status begin(cache::Transfer transfer, double now);
  Status gather(Job& job);
  Status deliver(Job& job);
  void read_ssd(uint64_t id, Job& job);
  void write_ssd(uint64_t id, Job& job);
  void ended(uint64_t id, bool made);

  TierOptions options_;
  cache::Cache& cache_;
  model::StatePool& pool_;
  std::unordered_map<int32_t, Bytes> ram_pages_;
  std::unordered_map<int32_t, Bytes> ram_slots_;
  std::unordered_map<cache::Key, Remembered> remembered_;
  std::unordered_map<uint64_t, std::unique_ptr<Job>> jobs_;  // by transfer, under way at the SSD

  int64_t failed_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::pair<uint64_t, bool>> ended_;  // transfers whose files are read or written

  std::unique_ptr<store::SsdStore> ssd_;  // ends first: its threads use what is above
};

}  // namespace triax::engine
