// RAM above an SSD above a shared store, as one store: what is written sinks, what is read rises,
// a tier that fails is left out for a while.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "store/blob_store.h"
#include "store/ram_store.h"

namespace triax::store {

/// When a tier gets what is put.
enum class WritePolicy {
  kThrough,  // soon after every put
  kBack,     // when it leaves RAM for room
  kNone,     // never: it is only read
};

struct LowerTier {
  std::unique_ptr<BlobStore> store;
  WritePolicy write = WritePolicy::kBack;
  /// Bytes on their way down at once; they keep their room in RAM. What exceeds it is not written.
  int64_t writing_bytes_max = int64_t{1} << 30;
  /// A tier that fails is tried again after this time, doubled with each failure.
  int64_t retry_ms_min = 1000;
  int64_t retry_ms_max = 60'000;
};

struct TieredOptions {
  int64_t ram_bytes = 0;
  std::vector<LowerTier> lower = {};  // fastest first
  /// Bytes that prefetches may have on their way up at once.
  int64_t loading_bytes_max = int64_t{4} << 30;
  /// One line for an operator when a tier fails and when it is back. From any thread.
  std::function<void(const std::string&)> on_notice = nullptr;
  Clock now_ms = system_clock_ms();
};

/// Where something is, and how long a load would take: nothing should be loaded that is cheaper to
/// recompute, and that is the owner's to decide.
struct Located {
  Found found;
  std::string tier;               // "ram", ...
  std::optional<double> seconds;  // of all parts that are not in RAM; nullopt: never measured
};

struct TierStats {
  std::string name;
  StoreStats store;
  LinkRates rates;
  bool out = false;            // left out now
  int64_t failures = 0;        // times it was taken out
  int64_t skipped = 0;         // operations that passed it by meanwhile
  int64_t dropped_writes = 0;  // not written for writing_bytes_max
  int64_t failed_writes = 0;   // the tier had no room, or parts were gone
  int64_t writing_bytes = 0;
};

/// As BlobStore says, and: a put is answered when RAM has it; lower tiers follow. When RAM has no
/// room it is answered when a lower tier has it. Failures of a tier show as misses, never as errors
/// of their own. What is erased while a tier is out is erased there when it is back, before
/// anything is read from it.
class TieredStore final : public BlobStore {
 public:
  using LocateDone = std::function<void(Result<Located>)>;

  /// Errors     those of RamStore::create
  static Result<std::unique_ptr<TieredStore>> create(TieredOptions options);
  ~TieredStore() override;

  const std::string& name() const override { return name_; }
  void put(PutRequest request, Done done) override;
  /// What a lower tier gives is kept in RAM too, and so is its boundary when it was found before.
  void get(std::vector<BlobTarget> targets, GetDone done) override;
  void find(BlobKey key, FindDone done) override;
  void erase(BlobKey key, Done done) override;
  void list(BlobKind kind, ListDone done) override;
  void set_value(BlobKey key, double value) override;
  /// Those of RAM; tier_stats() has all.
  StoreStats stats() const override { return ram_->stats(); }
  LinkRates link_rates() const override { return ram_->link_rates(); }

  void locate(BlobKey key, LocateDone done);

  /// Brings a boundary into RAM, in place, while others wait or compute. Joins a load under way.
  /// Errors     kNotFound: recompute; kResourceExhausted: no room, or too much on its way
  void prefetch(BlobKey boundary, Done done);
  Status prefetch_now(BlobKey boundary);

  /// Writes what only RAM holds to the lower tiers that are written, one boundary after the other:
  /// before a process ends, or when it is idle. The first error of a tier, after all were tried.
  Status flush_now();

  RamStore& ram() { return *ram_; }
  std::vector<TierStats> tier_stats() const;

 private:
  class UnderWay;
  struct Tier;
  struct Load;
  struct GetJob;

  explicit TieredStore(TieredOptions options);
  void notice(const std::string& text) const;

  // Health:
  bool usable(Tier& tier);
  void report(Tier& tier, const Status& status);
  void take_out(Tier& tier, const Status& status);
  void erase_first(Tier& tier);
  void erase_in(Tier& tier, const BlobKey& key, Done done);

  // Down:
  enum class IfPartsLack { kFail, kSendAll };
  void sink(Tier& tier, PutRequest request, int64_t bytes, IfPartsLack if_lack);
  std::vector<RamLease> leases_of(const std::vector<BlobKey>& keys);
  void sunk(Tier& tier, const std::optional<BlobKey>& boundary, const Status& status);
  void write_through(const std::vector<BlobKey>& fresh, const std::optional<Boundary>& boundary,
                     int64_t ttl_ms, double value);
  void write_back(Evicted evicted);
  void put_below(std::shared_ptr<PutRequest> request, Done done, Status ram_status);

  // Up:
  void get_from(std::shared_ptr<GetJob> job, size_t tier);
  void promote(const std::vector<BlobTarget>& targets, const std::vector<size_t>& indices,
               const std::vector<Status>& statuses);
  void locate_from(BlobKey key, size_t tier, LocateDone done);
  void remember(const Boundary& boundary);
  void load(std::shared_ptr<Load> load);
  void arrived(Load& load, const std::vector<Status>& statuses);
  void finish_load(Load& load, const Status& status);
  void list_from(std::shared_ptr<std::vector<Found>> found, BlobKind kind, size_t tier,
                 ListDone done);

  const std::string name_ = "tiers";
  TieredOptions options_;
  std::unique_ptr<RamStore> ram_;
  std::shared_ptr<UnderWay> under_way_;
  std::vector<std::unique_ptr<Tier>> tiers_;
  mutable std::mutex mutex_;  // what follows, and the tiers' own fields; held across no call
  std::unordered_map<BlobKey, std::shared_ptr<Load>, BlobKeyHash> loads_;
  int64_t loading_bytes_ = 0;
  std::vector<Boundary> remembered_;  // found below, not in RAM yet; at most 64
};

}  // namespace triax::store
