#include "store/ram_store.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <utility>

namespace triax::store {
namespace {

using Seconds = std::chrono::duration<double>;
using Steady = std::chrono::steady_clock;

std::shared_ptr<Arena::Allocation> memory_of(const Entry& entry) {
  return std::static_pointer_cast<Arena::Allocation>(entry.payload);
}

RamLease lease_of(const Entry& entry) {
  const std::shared_ptr<Arena::Allocation> memory = memory_of(entry);
  return {entry.blob, as_const(memory->pieces()), memory};
}

}  // namespace

void copy_pieces(const ConstPieces& from, const Pieces& to) {
  size_t i = 0, read = 0;
  for (const std::span<std::byte> piece : to) {
    size_t written = 0;
    while (written < piece.size()) {
      if (read == from[i].size()) {
        ++i;
        read = 0;
        continue;
      }
      const size_t count = std::min(piece.size() - written, from[i].size() - read);
      std::memcpy(piece.data() + written, from[i].data() + read, count);
      written += count;
      read += count;
    }
  }
}

Result<std::unique_ptr<RamStore>> RamStore::create(RamOptions options) {
  Result<std::shared_ptr<Arena>> arena = Arena::create(options.budget_bytes);
  if (!arena.ok()) {
    return arena.status();
  }
  return std::unique_ptr<RamStore>(new RamStore(std::move(options), *std::move(arena)));
}

RamStore::RamStore(RamOptions options, std::shared_ptr<Arena> arena)
    : options_(std::move(options)), arena_(std::move(arena)) {}

void RamStore::drop_expired() {
  std::vector<EntryPtr> gone;  // memory goes back without the lock
  const std::lock_guard lock(mutex_);
  gone = catalog_.expire(options_.now_ms());
  stats_.expired_blobs += static_cast<int64_t>(gone.size());
}

void RamStore::add_leases(const std::vector<EntryPtr>& leaving, Evicted& evicted) const {
  std::unordered_map<BlobKey, const Entry*, BlobKeyHash> gone;
  for (const EntryPtr& entry : leaving) {
    gone.emplace(entry->blob.key, entry.get());
  }
  for (const BlobRef& part : evicted.boundary.parts) {
    const auto at = gone.find(part.key);
    evicted.parts.push_back(lease_of(at != gone.end() ? *at->second : *catalog_.find(part.key)));
  }
}

Result<std::shared_ptr<Arena::Allocation>> RamStore::allocate(int64_t bytes) {
  if (bytes > arena_->bytes()) {
    return Status::resource_exhausted(fmt::format(
        "ram store: a blob of {} bytes is larger than the budget, {}", bytes, arena_->bytes()));
  }
  for (;;) {
    if (std::shared_ptr<Arena::Allocation> memory = arena_->allocate(bytes)) {
      return memory;
    }
    std::vector<EntryPtr> leaving;
    std::optional<Evicted> evicted;
    {
      const std::lock_guard lock(mutex_);
      leaving = catalog_.evict();
      if (leaving.empty()) {
        return Status::resource_exhausted(fmt::format(
            "ram store: no room for {} bytes: {} of {} are in use and none of it may leave now",
            bytes, arena_->bytes_used(), arena_->bytes()));
      }
      const Entry& first = *leaving.front();
      if (first.boundary && options_.on_evict) {
        evicted.emplace(Evicted{*first.boundary, first.value, first.expires_ms, {}});
        add_leases(leaving, *evicted);
      }
      for (const EntryPtr& entry : leaving) {
        stats_.evicted_blobs += 1;
        stats_.evicted_bytes += entry->boundary ? 0 : entry->blob.bytes;
      }
    }
    leaving.clear();
    if (evicted) {
      options_.on_evict(*std::move(evicted));
    }
  }
}

EntryPtr RamStore::pin_known(const BlobKey& key, int64_t bytes, int64_t expires_ms,
                             Status* status) {
  const EntryPtr entry = catalog_.find(key);
  if (entry == nullptr) {
    return nullptr;
  }
  if (entry->blob.bytes != bytes) {
    *status = Status::invalid_argument(fmt::format(
        "ram store: {} is there with {} bytes, now with {}: equal keys need equal bytes",
        to_string(key), entry->blob.bytes, bytes));
    return nullptr;
  }
  ++stats_.known_blobs;
  catalog_.touch(*entry);
  catalog_.extend(*entry, expires_ms);
  ++entry->pins;
  return entry;
}

Status RamStore::put_blobs(const PutRequest& request, int64_t expires_ms,
                           std::vector<EntryPtr>& pinned) {
  for (const BlobSource& source : request.blobs) {
    const int64_t bytes = total_bytes(source.pieces);
    Status status;
    const auto known = [&] {
      const EntryPtr entry = pin_known(source.key, bytes, expires_ms, &status);
      if (entry != nullptr) {
        pinned.push_back(entry);
        if (!request.boundary) {
          catalog_.set_value(*entry, request.value);
        }
      }
      return entry != nullptr || !status.ok();
    };
    {
      const std::lock_guard lock(mutex_);
      if (known()) {
        if (!status.ok()) {
          return status;
        }
        continue;
      }
    }
    Result<std::shared_ptr<Arena::Allocation>> memory = allocate(bytes);
    if (!memory.ok()) {
      const std::lock_guard lock(mutex_);
      ++stats_.refused_writes;
      return memory.status();
    }
    copy_pieces(source.pieces, (*memory)->pieces());
    const std::lock_guard lock(mutex_);
    if (known()) {  // somebody else wrote it meanwhile
      if (!status.ok()) {
        return status;
      }
      continue;
    }
    const EntryPtr entry = catalog_.insert({source.key, bytes}, *memory, expires_ms, request.value);
    ++entry->pins;
    pinned.push_back(entry);
    ++stats_.written_blobs;
    stats_.written_bytes += bytes;
  }
  return {};
}

Status RamStore::commit(const PutRequest& request, int64_t expires_ms) {
  const std::lock_guard lock(mutex_);
  const EntryPtr known = catalog_.find(request.boundary->key);
  if (known != nullptr) {
    if (*known->boundary != *request.boundary) {
      return Status::invalid_argument(
          fmt::format("ram store: boundary {} is there with other parts or another note",
                      to_string(request.boundary->key)));
    }
    catalog_.touch(*known);
    catalog_.set_value(*known, request.value);
    catalog_.extend(*known, expires_ms);
    for (const BlobRef& part : known->boundary->parts) {
      catalog_.extend(*catalog_.find(part.key), expires_ms);
    }
    return {};
  }
  return catalog_.insert_boundary(*request.boundary, nullptr, 0, expires_ms, request.value)
      .status();
}

void RamStore::put(PutRequest request, Done done) {
  drop_expired();
  Status status;
  for (const BlobSource& source : request.blobs) {
    if (source.key.kind == BlobKind::kBoundary) {
      status = Status::invalid_argument("ram store: a boundary is put as such, not as a blob");
    }
  }
  if (status.ok() && request.boundary) {
    status = check_boundary(*request.boundary);
  }
  std::vector<EntryPtr> pinned;
  if (status.ok()) {
    const int64_t expires_ms = expiry(request.ttl_ms);
    const Steady::time_point begin = Steady::now();
    const int64_t written = [&] {
      const std::lock_guard lock(mutex_);
      // Parts that are there already must not leave while the others are written.
      for (const BlobRef& part :
           request.boundary ? request.boundary->parts : std::vector<BlobRef>{}) {
        if (const EntryPtr entry = catalog_.find(part.key)) {
          ++entry->pins;
          pinned.push_back(entry);
        }
      }
      return stats_.written_bytes;
    }();
    status = put_blobs(request, expires_ms, pinned);
    if (status.ok() && request.boundary) {
      status = commit(request, expires_ms);
    }
    const std::lock_guard lock(mutex_);
    for (const EntryPtr& entry : pinned) {
      --entry->pins;
    }
    if (stats_.written_bytes > written) {
      write_meter_.add(stats_.written_bytes - written, Seconds(Steady::now() - begin).count());
    }
  }
  pinned.clear();
  done(std::move(status));
}

Status RamStore::get_one(const BlobTarget& target) {
  EntryPtr entry;
  std::shared_ptr<Arena::Allocation> memory;
  {
    const std::lock_guard lock(mutex_);
    entry = catalog_.find(target.key);
    if (entry == nullptr || target.key.kind == BlobKind::kBoundary) {
      ++stats_.missed_blobs;
      return Status::not_found(fmt::format("ram store: {} is not there", to_string(target.key)));
    }
    catalog_.touch(*entry);
    memory = memory_of(*entry);
  }
  const int64_t bytes = entry->blob.bytes;
  if (total_bytes(target.pieces) != bytes) {
    return Status::invalid_argument(fmt::format("ram store: {} has {} bytes, the target {}",
                                                to_string(target.key), bytes,
                                                total_bytes(target.pieces)));
  }
  copy_pieces(as_const(memory->pieces()), target.pieces);
  const std::lock_guard lock(mutex_);
  ++stats_.read_blobs;
  stats_.read_bytes += bytes;
  return {};
}

void RamStore::get(std::vector<BlobTarget> targets, GetDone done) {
  drop_expired();
  const Steady::time_point begin = Steady::now();
  std::vector<Status> statuses;
  statuses.reserve(targets.size());
  int64_t bytes = 0;
  for (const BlobTarget& target : targets) {
    statuses.push_back(get_one(target));
    bytes += statuses.back().ok() ? total_bytes(target.pieces) : 0;
  }
  if (bytes > 0) {
    read_meter_.add(bytes, Seconds(Steady::now() - begin).count());
  }
  done(std::move(statuses));
}

void RamStore::find(BlobKey key, FindDone done) {
  drop_expired();
  const auto look = [&]() -> Result<Found> {
    const std::lock_guard lock(mutex_);
    const EntryPtr entry = catalog_.find(key);
    if (entry == nullptr) {
      return Status::not_found(fmt::format("ram store: {} is not there", to_string(key)));
    }
    return Found{entry->blob, entry->expires_ms, entry->boundary};
  };
  done(look());
}

void RamStore::erase(BlobKey key, Done done) {
  {
    std::vector<EntryPtr> gone;
    const std::lock_guard lock(mutex_);
    gone = catalog_.remove(key);
  }
  done({});
}

void RamStore::list(BlobKind kind, ListDone done) {
  drop_expired();
  std::vector<Found> found;
  {
    const std::lock_guard lock(mutex_);
    found = catalog_.list(kind);
  }
  done(std::move(found));
}

void RamStore::set_value(BlobKey key, double value) {
  const std::lock_guard lock(mutex_);
  if (const EntryPtr entry = catalog_.find(key)) {
    catalog_.set_value(*entry, value);
  }
}

std::optional<RamLease> RamStore::lease(const BlobKey& key) {
  drop_expired();
  const std::lock_guard lock(mutex_);
  const EntryPtr entry = catalog_.find(key);
  if (entry == nullptr || entry->boundary) {
    ++stats_.missed_blobs;
    return std::nullopt;
  }
  catalog_.touch(*entry);
  return lease_of(*entry);
}

Result<RamStore::Stage> RamStore::stage(BlobRef blob) {
  Result<std::shared_ptr<Arena::Allocation>> memory = allocate(blob.bytes);
  if (!memory.ok()) {
    const std::lock_guard lock(mutex_);
    ++stats_.refused_writes;
    return memory.status();
  }
  return Stage{blob, *std::move(memory)};
}

void RamStore::publish(Stage stage, int64_t ttl_ms, double value) {
  const std::lock_guard lock(mutex_);
  if (catalog_.find(stage.blob.key) == nullptr) {
    catalog_.insert(stage.blob, stage.memory, expiry(ttl_ms), value);
    ++stats_.written_blobs;
    stats_.written_bytes += stage.blob.bytes;
  }
}

StoreStats RamStore::stats() const {
  const std::lock_guard lock(mutex_);
  StoreStats stats = stats_;
  stats.bytes_used = arena_->bytes_used();
  stats.bytes_budget = arena_->bytes();
  stats.blobs = catalog_.blobs();
  stats.boundaries = catalog_.boundaries();
  return stats;
}

LinkRates RamStore::link_rates() const { return {read_meter_.rate(), write_meter_.rate()}; }

}  // namespace triax::store
