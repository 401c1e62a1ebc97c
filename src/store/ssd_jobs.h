// What ssd_store.cc and ssd_transfer.cc share: requests under way, and bytes that count.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "store/ssd_store.h"

namespace triax::store {

using Steady = std::chrono::steady_clock;

/// Bytes of a file that count against the budget until this ends.
struct Charge {
  Charge(std::shared_ptr<std::atomic<int64_t>> counter, int64_t count)
      : used(std::move(counter)), bytes(count) {
    *used += bytes;
  }
  ~Charge() { *used -= bytes; }
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;

  std::shared_ptr<std::atomic<int64_t>> used;
  int64_t bytes;
};

/// A put: its blobs are written by any worker; the last one to end commits and answers.
struct SsdStore::PutJob {
  PutRequest request;
  Done done;
  int64_t expires_ms = 0;
  std::vector<size_t> missing;  // indices of the blobs to write
  std::atomic<size_t> left{0};
  std::atomic<bool> failed{false};
  std::vector<EntryPtr> pinned;  // under the store's lock
  Status status;                 // the first error; under the store's lock
  Steady::time_point begin = Steady::now();
  std::atomic<int64_t> written_bytes{0};

  bool names(const BlobKey& key) const {
    return (request.boundary && request.boundary->key == key) ||
           std::any_of(request.blobs.begin(), request.blobs.end(),
                       [&](const BlobSource& source) { return source.key == key; });
  }
};

/// A get: the last target to end answers.
struct SsdStore::GetJob {
  std::vector<BlobTarget> targets;
  GetDone done;
  std::vector<Status> statuses;
  Steady::time_point begin = Steady::now();
  std::atomic<size_t> left{0};
};

/// The status of a file operation that failed with that errno.
Status file_status(const std::string& path, std::string_view done_to_it, int error);

}  // namespace triax::store
