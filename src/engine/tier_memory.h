// Pages and states below the device: in this process's memory, on an SSD and in a store that
// several processes share, as the cache plans.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "cache/cache.h"
#include "engine/host_blocks.h"
#include "engine/lower_tier.h"
#include "engine/state_at_rest.h"
#include "model/sequence_state.h"
#include "store/redis_store.h"
#include "store/ssd_store.h"

namespace triax::engine {

struct TierOptions {
  int64_t ram_bytes = 0;                      // 0: no such tier
  int64_t ssd_bytes = 0;                      // 0: no such tier
  std::string ssd_folder;                     // what is there already is found again
  std::optional<store::RedisOptions> shared;  // none: no such tier
  int64_t shared_bytes = int64_t{1} << 40;    // of it, what this process keeps in mind

  /// kThrough: written as soon as a request ends; kBack: when the tier above has no room for it.
  cache::WriteMode ram_write = cache::WriteMode::kThrough;
  cache::WriteMode ssd_write = cache::WriteMode::kThrough;
  cache::WriteMode shared_write = cache::WriteMode::kThrough;

  /// Seconds that something stays without being used; 0: until its room is needed. What lies on an
  /// SSD or in a shared store lives no longer than this from when it was written, whoever reads it.
  double device_ttl_s = 0;
  double ram_ttl_s = 0;
  double ssd_ttl_s = 0;  // of the shared store: RedisOptions::ttl_ms

  /// Of recurrent states in all of these tiers. Part of the fingerprint.
  store::StateEncoding states = store::StateEncoding::kF32;
  /// Whether what is cheaper to compute than to load is computed, by times measured so far.
  bool loads_must_pay = true;
  LowerTierOptions failing = {};  // what becomes of a tier that fails
  uint64_t fingerprint = 0;  // of the model and of all that its states depend on besides tokens

  bool any() const { return ram_bytes > 0 || ssd_bytes > 0 || shared.has_value(); }
  bool outlive_process() const { return ssd_bytes > 0 || shared.has_value(); }
};

/// Makes the copies that a cache plans between its tiers. What lies in this process is copied at
/// once; what comes from or goes to a store is under way meanwhile. A copy that fails is confirmed
/// as not made, so that the cache computes instead.
/// Ownership  cache and pool outlive this
class TierMemory {
 public:
  /// Errors     those of SsdStore::open and RedisStore::create (which needs no server yet)
  static Result<std::unique_ptr<TierMemory>> create(const TierOptions& options,
                                                    const checkpoint::ModelConfig& config,
                                                    cache::Cache& cache, model::StatePool& pool);
  /// Waits for what is under way.
  ~TierMemory();

  /// The tokens behind a checkpoint's key: only then can a restart find it.
  void remember(cache::Key state, cache::Key root, std::span<const int32_t> tokens);

  /// Makes planned copies and confirms those that are done.
  /// Errors     those of the device
  Status poll(double now);
  bool busy() const { return !jobs_.empty() || looking_ > 0; }
  /// Bytes on their way up.
  int64_t loading_bytes() const { return loading_bytes_; }
  /// Loads that could not be made so far.
  int64_t failed() const { return failed_; }
  /// Waits until something may have ended, at most so long.
  void wait(double seconds_max);

  /// Tells the cache what a folder held when it was opened. Returns the number of boundaries.
  Result<int64_t> adopt(double now);

  /// Asks the shared store for the deepest boundary of a prompt at whole blocks in (above, below)
  /// tokens. False: there is no such store or no such place. Else found() will know.
  bool look_up(uint64_t ticket, const cache::Prompt& prompt, int64_t above);
  /// Nothing while it is looked up; then the tokens of the boundary, 0 for none. Asked once.
  std::optional<int64_t> found(uint64_t ticket);
  void forget_ticket(uint64_t ticket) { answers_.erase(ticket); }

  std::vector<LowerTierStats> stats() const;

 private:
  struct Job {
    cache::Transfer transfer;
    std::vector<Block> pages;
    Block tail;
    Block state;                    // at rest
    std::vector<std::byte> tokens;  // of a boundary that goes to the SSD
    bool reading = false;
  };
  struct Ended {
    uint64_t id;
    std::vector<Status> statuses;  // reading: of each blob, the state first; else one
  };
  struct Remembered {
    cache::Key root;
    std::vector<int32_t> tokens;
  };

  TierMemory(const TierOptions& options, const checkpoint::ModelConfig& config, cache::Cache& cache,
             model::StatePool& pool);

  LowerTier* lower(cache::Tier tier);
  void watch_tiers();
  void forget_drops();
  void delete_shared(const cache::Drop& drop);
  Status begin(cache::Transfer transfer, double now);
  Status gather(Job& job);
  Status deliver(Job& job);
  Status finish(Ended& ended, double now);
  void fail(const Job& job, const std::vector<Status>& statuses, double now);
  void read(uint64_t id, Job& job);
  void write(uint64_t id, Job& job);
  store::Boundary record_of(const Job& job) const;
  void ended(uint64_t id, std::vector<Status> statuses);
  bool adopt_one(const store::Boundary& boundary, double now);

  TierOptions options_;
  cache::Cache& cache_;
  model::StatePool& pool_;
  StateAtRest at_rest_;
  HostBlocks blocks_;
  std::vector<std::byte> slot_;  // of the device, on its way
  std::unordered_map<int32_t, Block> ram_pages_;
  std::unordered_map<int32_t, Block> ram_slots_;
  store::LinkMeter ram_meter_;
  std::unordered_map<cache::Key, Remembered> remembered_;
  int64_t remembered_tokens_ = 0;
  std::unordered_map<uint64_t, std::unique_ptr<Job>> jobs_;  // by transfer, under way at a store
  int64_t loading_bytes_ = 0;
  int64_t failed_ = 0;
  int64_t looking_ = 0;
  std::unordered_map<uint64_t, std::optional<int64_t>> answers_;  // by ticket

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Ended> ended_;                                // their blobs are read or written
  std::vector<std::pair<uint64_t, Result<int64_t>>> seen_;  // looked up: tokens

  std::unique_ptr<LowerTier> ssd_, shared_;  // end first: their threads use what is above
};

}  // namespace triax::engine
