// The tier in host memory: one bounded arena; a blob is copied once in and once out, or lent.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "store/arena.h"
#include "store/blob_store.h"
#include "store/catalog.h"

namespace triax::store {

/// A blob in place. Its memory stays, and stays counted, until the last copy of `owner` ends, even
/// when the blob leaves the store or the store ends.
struct RamLease {
  BlobRef blob;
  ConstPieces pieces;
  std::shared_ptr<const void> owner;
};

/// A boundary that leaves for room, with all its parts still readable.
struct Evicted {
  Boundary boundary;
  double value = 0;
  int64_t expires_ms = 0;
  std::vector<RamLease> parts;
};

struct RamOptions {
  int64_t budget_bytes = 0;
  /// Called for each boundary that leaves for room, without a lock held, in the thread that needs
  /// the room. Whoever keeps leases delays that room: more will have to leave.
  std::function<void(Evicted)> on_evict = nullptr;
  Clock now_ms = system_clock_ms();
};

/// Everything completes inside the call. Boundaries' own records lie outside the arena (about 80
/// bytes a part); at most one for each 64 bytes of budget.
class RamStore final : public BlobStore {
 public:
  /// Errors     kInvalidArgument, kResourceExhausted
  static Result<std::unique_ptr<RamStore>> create(RamOptions options);

  const std::string& name() const override { return name_; }
  void put(PutRequest request, Done done) override;
  void get(std::vector<BlobTarget> targets, GetDone done) override;
  void find(BlobKey key, FindDone done) override;
  void erase(BlobKey key, Done done) override;
  void list(BlobKind kind, ListDone done) override;
  void set_value(BlobKey key, double value) override;
  StoreStats stats() const override;
  LinkRates link_rates() const override;

  /// The blob in place; nullopt when it is not there. Counts as a use, not as a read.
  std::optional<RamLease> lease(const BlobKey& key);

  /// Room for a blob that somebody else fills (a lower tier, a GPU): write all pieces, then
  /// publish. Without publish the room goes back.
  struct Stage {
    BlobRef blob;
    std::shared_ptr<Arena::Allocation> memory;
    const Pieces& pieces() const { return memory->pieces(); }
  };
  /// Errors     kResourceExhausted
  Result<Stage> stage(BlobRef blob);
  /// As put of a blob without a boundary.
  void publish(Stage stage, int64_t ttl_ms, double value);

  std::span<std::byte> memory() const { return arena_->memory(); }

 private:
  RamStore(RamOptions options, std::shared_ptr<Arena> arena);
  Result<std::shared_ptr<Arena::Allocation>> allocate(int64_t bytes);
  void add_leases(const std::vector<EntryPtr>& leaving, Evicted& evicted) const;
  Status put_blobs(const PutRequest& request, int64_t expires_ms, std::vector<EntryPtr>& pinned);
  Status commit(const PutRequest& request, int64_t expires_ms);
  EntryPtr pin_known(const BlobKey& key, int64_t bytes, int64_t expires_ms, Status* status);
  Status get_one(const BlobTarget& target);
  int64_t expiry(int64_t ttl_ms) const { return ttl_ms == 0 ? 0 : options_.now_ms() + ttl_ms; }
  void drop_expired();

  const std::string name_ = "ram";
  RamOptions options_;
  std::shared_ptr<Arena> arena_;
  LinkMeter read_meter_, write_meter_;
  mutable std::mutex mutex_;  // the two below; never held while bytes are copied
  Catalog catalog_;
  StoreStats stats_;
};

/// Copies `from` to `to`, of equal sizes.
void copy_pieces(const ConstPieces& from, const Pieces& to);

}  // namespace triax::store
