#include "store/catalog.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace triax::store {
namespace {

// What is no number has no place in an order.
double ordered(double value) { return std::isnan(value) ? 0.0 : value; }

}  // namespace

EntryPtr Catalog::find(const BlobKey& key) const {
  const auto at = entries_.find(key);
  return at == entries_.end() ? nullptr : at->second;
}

EntryPtr Catalog::add(EntryPtr entry) {
  entry->used = ++tick_;
  const bool fresh = entries_.emplace(entry->blob.key, entry).second;
  check(fresh, "a key enters the catalog twice");
  boundaries_ += entry->boundary ? 1 : 0;
  enter_orders(*entry);
  return entry;
}

EntryPtr Catalog::insert(BlobRef blob, std::shared_ptr<void> payload, int64_t expires_ms,
                         double value) {
  auto entry = std::make_shared<Entry>();
  entry->blob = blob;
  entry->expires_ms = expires_ms;
  entry->value = ordered(value);
  entry->payload = std::move(payload);
  return add(std::move(entry));
}

Status Catalog::check_parts(const Boundary& boundary) const {
  for (const BlobRef& part : boundary.parts) {
    const EntryPtr entry = find(part.key);
    if (entry == nullptr) {
      return Status::not_found(fmt::format("boundary {}: part {} is not there",
                                           to_string(boundary.key), to_string(part.key)));
    }
    if (entry->blob.bytes != part.bytes) {
      return Status::invalid_argument(fmt::format("boundary {}: part {} has {} bytes, expected {}",
                                                  to_string(boundary.key), to_string(part.key),
                                                  entry->blob.bytes, part.bytes));
    }
  }
  return {};
}

Result<EntryPtr> Catalog::insert_boundary(Boundary boundary, std::shared_ptr<void> payload,
                                          int64_t record_bytes, int64_t expires_ms, double value) {
  if (Status status = check_parts(boundary); !status.ok()) {
    return status;
  }
  for (const BlobRef& part : boundary.parts) {
    Entry& entry = *find(part.key);
    leave_orders(entry);
    ++entry.refs;
    extend(entry, expires_ms);
  }
  auto entry = std::make_shared<Entry>();
  entry->blob = {boundary.key, record_bytes};
  entry->expires_ms = expires_ms;
  entry->value = ordered(value);
  entry->boundary = std::move(boundary);
  entry->payload = std::move(payload);
  return add(std::move(entry));
}

void Catalog::enter_orders(Entry& entry) {
  if (entry.refs > 0) {
    return;
  }
  leaving_.emplace(entry.value, entry.used, &entry);
  if (entry.expires_ms != 0) {
    expiring_.emplace(entry.expires_ms, &entry);
  }
}

void Catalog::leave_orders(Entry& entry) {
  leaving_.erase({entry.value, entry.used, &entry});
  expiring_.erase({entry.expires_ms, &entry});
}

void Catalog::touch(Entry& entry) {
  leave_orders(entry);
  entry.used = ++tick_;
  enter_orders(entry);
}

void Catalog::set_value(Entry& entry, double value) {
  leave_orders(entry);
  entry.value = ordered(value);
  enter_orders(entry);
}

void Catalog::extend(Entry& entry, int64_t expires_ms) {
  leave_orders(entry);
  const bool never = entry.expires_ms == 0 || expires_ms == 0;
  entry.expires_ms = never ? 0 : std::max(entry.expires_ms, expires_ms);
  enter_orders(entry);
}

void Catalog::take_out(const EntryPtr& entry, std::vector<EntryPtr>& out) {
  leave_orders(*entry);
  boundaries_ -= entry->boundary ? 1 : 0;
  out.push_back(entry);
  entries_.erase(entry->blob.key);
}

void Catalog::drop_boundary(const EntryPtr& entry, bool keep_pinned, std::vector<EntryPtr>& out) {
  take_out(entry, out);
  for (const BlobRef& part : entry->boundary->parts) {
    const EntryPtr blob = find(part.key);
    if (--blob->refs > 0) {
      continue;
    }
    if (keep_pinned && blob->pins > 0) {
      enter_orders(*blob);  // somebody reads it, or is about to name it in another boundary
    } else {
      take_out(blob, out);
    }
  }
}

std::vector<EntryPtr> Catalog::remove(const BlobKey& key) {
  std::vector<EntryPtr> out;
  const EntryPtr entry = find(key);
  if (entry == nullptr) {
    return out;
  }
  if (entry->boundary) {
    drop_boundary(entry, true, out);
    return out;
  }
  // Rare (an explicit erase, a damaged blob), so no index leads from blobs to boundaries.
  std::vector<EntryPtr> users;
  for (auto at = entries_.begin();
       at != entries_.end() && static_cast<int>(users.size()) < entry->refs; ++at) {
    const std::optional<Boundary>& boundary = at->second->boundary;
    if (boundary && std::any_of(boundary->parts.begin(), boundary->parts.end(),
                                [&](const BlobRef& part) { return part.key == key; })) {
      users.push_back(at->second);
    }
  }
  for (const EntryPtr& user : users) {
    drop_boundary(user, true, out);
  }
  if (find(key) != nullptr) {
    take_out(entry, out);
  }
  // All records before all parts.
  std::stable_partition(out.begin(), out.end(),
                        [](const EntryPtr& e) { return e->boundary.has_value(); });
  return out;
}

std::vector<EntryPtr> Catalog::remove_record(const BlobKey& key) {
  std::vector<EntryPtr> out;
  const EntryPtr entry = find(key);
  if (entry == nullptr || !entry->boundary) {
    return out;
  }
  take_out(entry, out);
  for (const BlobRef& part : entry->boundary->parts) {
    Entry& blob = *find(part.key);
    if (--blob.refs == 0) {
      enter_orders(blob);
    }
  }
  return out;
}

std::vector<EntryPtr> Catalog::evict() {
  std::vector<EntryPtr> out;
  for (const auto& [value, used, raw] : leaving_) {
    if (raw->pins > 0) {
      continue;
    }
    const EntryPtr entry = find(raw->blob.key);
    if (entry->boundary) {
      drop_boundary(entry, true, out);
    } else {
      take_out(entry, out);
    }
    return out;
  }
  return out;
}

std::vector<EntryPtr> Catalog::expire(int64_t now_ms) {
  std::vector<EntryPtr> out;
  while (!expiring_.empty() && expiring_.begin()->first <= now_ms) {
    const EntryPtr entry = find(expiring_.begin()->second->blob.key);
    if (entry->boundary) {
      drop_boundary(entry, true, out);
    } else {
      take_out(entry, out);
    }
  }
  return out;
}

std::vector<Found> Catalog::list(BlobKind kind) const {
  std::vector<Found> found;
  for (const auto& [key, entry] : entries_) {
    if (key.kind == kind) {
      found.push_back({entry->blob, entry->expires_ms, entry->boundary});
    }
  }
  return found;
}

}  // namespace triax::store
