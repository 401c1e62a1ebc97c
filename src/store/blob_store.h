// What every tier below device memory offers: asynchronous storage of immutable blobs by key.
// Knows no model, no tokens, no scheduler.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "store/blob.h"
#include "store/link_rate.h"

namespace triax::store {

/// Now, in milliseconds since 1970. Tests pass their own.
using Clock = std::function<int64_t()>;
Clock system_clock_ms();

/// One write: blobs and, after all of them, perhaps the record that makes them a boundary.
struct PutRequest {
  std::vector<BlobSource> blobs;
  std::optional<Boundary> boundary;   // its parts: blobs of this request, or in the store already
  int64_t ttl_ms = 0;                 // 0: none
  double value = 0;                   // least value leaves first, see set_value
  std::shared_ptr<const void> owner;  // keeps the pieces alive; held until `done` was called
};

/// What is known of a key. A boundary comes with its record.
struct Found {
  BlobRef blob;
  int64_t expires_ms = 0;  // 0: never, or not known here
  std::optional<Boundary> boundary;
};

struct StoreStats {
  int64_t bytes_used = 0;    // all that counts against the budget, reserved for writes included
  int64_t bytes_budget = 0;  // 0: not bounded by us
  int64_t blobs = 0;         // boundaries not included
  int64_t boundaries = 0;
  int64_t written_blobs = 0, written_bytes = 0;
  int64_t known_blobs = 0;  // put again while there: nothing written
  int64_t read_blobs = 0, read_bytes = 0;
  int64_t missed_blobs = 0;                      // asked for and not there
  int64_t evicted_blobs = 0, evicted_bytes = 0;  // for room
  int64_t expired_blobs = 0;                     // by TTL
  int64_t damaged_blobs = 0;                     // dropped: torn, cut, flipped bytes
  int64_t refused_writes = 0;                    // no room
  int64_t errors = 0;                            // the tier itself failed
};

/// A tier. All calls return at once or after work in memory; `done` is called exactly once, from
/// any thread, perhaps before the call returns, never with a lock of the store held. The
/// destructor waits for everything submitted.
/// Memory     pieces of a request belong to the caller and live until `done` was called
/// Threads    every method may be called from any thread, also from inside a `done`
/// Errors     kNotFound: not there. kDataLoss: it was damaged, and is gone now. kResourceExhausted:
///            no room under the budget or on the disk. kUnavailable, kInternal: the tier itself
///            does not work; nothing is known about the key. kInvalidArgument: the caller's error
class BlobStore {
 public:
  using Done = std::function<void(Status)>;
  using GetDone = std::function<void(std::vector<Status>)>;  // one for each target, in order
  using FindDone = std::function<void(Result<Found>)>;
  using ListDone = std::function<void(Result<std::vector<Found>>)>;

  virtual ~BlobStore() = default;

  /// "ssd", "redis": for messages and metrics.
  virtual const std::string& name() const = 0;

  /// Writes what is not there yet; a key that is there keeps its bytes (equal, by the meaning of
  /// keys) and takes the new value and the later expiry. Ok means that all of it can be read. After
  /// an error blobs of the request may be there, the boundary is not, unless it was before.
  /// A boundary whose parts are neither here nor in the request: kNotFound.
  virtual void put(PutRequest request, Done done) = 0;

  /// Reads blobs. Where a status is not ok its pieces hold anything. A target of another size than
  /// the blob: kInvalidArgument.
  virtual void get(std::vector<BlobTarget> targets, GetDone done) = 0;

  /// Whether a blob or a whole boundary is there, and what it is. For a boundary this includes that
  /// every part is there.
  virtual void find(BlobKey key, FindDone done) = 0;

  /// Removes a blob and every boundary that needs it, or a boundary and every part that no other
  /// boundary needs. Ok when nothing was there. A put of the key that is under way ends without it.
  virtual void erase(BlobKey key, Done done) = 0;

  /// All boundaries when `kind` is kBoundary, else all blobs of that kind, in no order.
  virtual void list(BlobKind kind, ListDone done) = 0;

  /// The owner's eviction order: the least value leaves first, among equals the least recently
  /// used; NaN counts as 0. Of a boundary, or of a blob without one; others are ignored, as are
  /// stores without a budget.
  virtual void set_value(BlobKey key, double value) = 0;

  virtual StoreStats stats() const = 0;
  /// Measured on its own transfers, a whole request each.
  virtual LinkRates link_rates() const = 0;

  // The same, waiting. Not from inside a `done`.
  Status put_now(PutRequest request);
  std::vector<Status> get_now(std::vector<BlobTarget> targets);
  Status get_now(BlobTarget target);
  Result<Found> find_now(BlobKey key);
  bool contains_now(BlobKey key) { return find_now(key).ok(); }
  Status erase_now(BlobKey key);
  Result<std::vector<Found>> list_now(BlobKind kind);
};

}  // namespace triax::store
