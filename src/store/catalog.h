// What a bounded tier holds: sizes, which boundary needs which blob, the order of leaving, expiry.
// Knows no bytes. Not thread-safe: its store locks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "store/blob.h"
#include "store/blob_store.h"

namespace triax::store {

/// A blob or a boundary that is there. `pins` > 0: it does not leave for room.
struct Entry {
  BlobRef blob;
  int64_t expires_ms = 0;  // 0: never
  double value = 0;
  uint64_t used = 0;  // tick of the last use
  int refs = 0;       // boundaries that need it
  int pins = 0;
  std::optional<Boundary> boundary;
  std::shared_ptr<void> payload;  // the store's own
};
using EntryPtr = std::shared_ptr<Entry>;

class Catalog {
 public:
  /// Null when it is not there.
  EntryPtr find(const BlobKey& key) const;

  /// A blob that is not there yet.
  EntryPtr insert(BlobRef blob, std::shared_ptr<void> payload, int64_t expires_ms, double value);

  /// A boundary that is not there yet. Parts take its expiry where it is later than theirs.
  /// Errors     kNotFound: a part is not there; kInvalidArgument: one has another size
  Result<EntryPtr> insert_boundary(Boundary boundary, std::shared_ptr<void> payload,
                                   int64_t record_bytes, int64_t expires_ms, double value);
  Status check_parts(const Boundary& boundary) const;

  /// Takes out what erase() of BlobStore promises. Boundaries come before their parts: the caller
  /// undoes them in this order. Pinned or not; holders keep the payload.
  std::vector<EntryPtr> remove(const BlobKey& key);

  /// Takes out a boundary alone; its parts stay, as blobs that this one no longer needs.
  std::vector<EntryPtr> remove_record(const BlobKey& key);

  /// Takes out the next to leave, with what only it needed; empty when all that is left is pinned.
  std::vector<EntryPtr> evict();

  /// Takes out what has expired.
  std::vector<EntryPtr> expire(int64_t now_ms);

  void touch(Entry& entry);
  void set_value(Entry& entry, double value);
  /// The later of both counts; 0 is never.
  void extend(Entry& entry, int64_t expires_ms);

  std::vector<Found> list(BlobKind kind) const;
  int64_t blobs() const { return static_cast<int64_t>(entries_.size()) - boundaries_; }
  int64_t boundaries() const { return boundaries_; }

 private:
  using Order = std::tuple<double, uint64_t, Entry*>;
  void enter_orders(Entry& entry);
  void leave_orders(Entry& entry);
  void drop_boundary(const EntryPtr& entry, bool keep_pinned, std::vector<EntryPtr>& out);
  void take_out(const EntryPtr& entry, std::vector<EntryPtr>& out);
  EntryPtr add(EntryPtr entry);

  std::unordered_map<BlobKey, EntryPtr, BlobKeyHash> entries_;
  std::set<Order> leaving_;  // boundaries, and blobs that none needs
  std::set<std::pair<int64_t, Entry*>> expiring_;
  int64_t boundaries_ = 0;
  uint64_t tick_ = 0;
};

}  // namespace triax::store
