// The tiers as one store: finding, reading, removing, and which tier takes part. Writing down and
// loading up: tiered_transfer.cc.
#include "store/tiered_store.h"

#include <fmt/core.h>

#include <algorithm>
#include <future>
#include <utility>

#include "store/tiered_jobs.h"

namespace triax::store {

Result<std::unique_ptr<TieredStore>> TieredStore::create(TieredOptions options) {
  std::unique_ptr<TieredStore> store(new TieredStore(std::move(options)));
  TieredStore* raw = store.get();
  Result<std::unique_ptr<RamStore>> ram =
      RamStore::create({.budget_bytes = raw->options_.ram_bytes,
                        .on_evict = [raw](Evicted evicted) { raw->write_back(std::move(evicted)); },
                        .now_ms = raw->options_.now_ms});
  if (!ram.ok()) {
    return ram.status();
  }
  store->ram_ = *std::move(ram);
  return store;
}

TieredStore::TieredStore(TieredOptions options)
    : options_(std::move(options)), under_way_(std::make_shared<UnderWay>()) {
  for (LowerTier& lower : options_.lower) {
    auto tier = std::make_unique<Tier>();
    tier->options = std::move(lower);
    tier->store = tier->options.store.get();
    tiers_.push_back(std::move(tier));
  }
}

// An answer of one tier may lead to work in another: none may end before all is done.
TieredStore::~TieredStore() { under_way_->wait(); }

void TieredStore::notice(const std::string& text) const {
  if (options_.on_notice) {
    options_.on_notice(text);
  }
}

bool TieredStore::usable(Tier& tier) {
  {
    const std::lock_guard lock(mutex_);
    if (!tier.out) {
      return true;
    }
    if (Steady::now() < tier.retry_at) {
      ++tier.skipped;
      return false;
    }
    tier.retry_at = Steady::now() + std::chrono::milliseconds(tier.retry_ms);  // one at a time
    tier.probing = true;
    if (tier.erased_meanwhile.empty()) {
      return true;
    }
    ++tier.skipped;
  }
  erase_first(tier);
  return false;
}

void TieredStore::take_out(Tier& tier, const Status& status) {
  int64_t retry_ms = 0;
  {
    const std::lock_guard lock(mutex_);
    if (tier.out && !tier.probing) {
      return;  // it was under way when the tier was taken out
    }
    if (tier.out) {
      tier.retry_ms = std::min(tier.retry_ms * 2, tier.options.retry_ms_max);
    } else {
      ++tier.failures;
      tier.retry_ms = retry_ms = tier.options.retry_ms_min;
    }
    tier.out = true;
    tier.probing = false;
    tier.retry_at = Steady::now() + std::chrono::milliseconds(tier.retry_ms);
  }
  if (retry_ms > 0) {
    notice(fmt::format("cache tier {} is left out, next attempt in {} ms: {}", tier.store->name(),
                       retry_ms, status.message()));
  }
}

void TieredStore::report(Tier& tier, const Status& status) {
  if (status.code() == StatusCode::kUnavailable || status.code() == StatusCode::kInternal) {
    take_out(tier, status);
    return;
  }
  bool erases = false;
  {
    const std::lock_guard lock(mutex_);
    if (!tier.out) {
      return;
    }
    erases = !tier.erased_meanwhile.empty();
    tier.out = erases;
  }
  if (erases) {
    erase_first(tier);
  } else {
    notice(fmt::format("cache tier {} is back", tier.store->name()));
  }
}

// A tier that answers again first forgets what was erased while it was out.
void TieredStore::erase_first(Tier& tier) {
  std::vector<BlobKey> keys;
  {
    const std::lock_guard lock(mutex_);
    keys.swap(tier.erased_meanwhile);
  }
  struct Outcome {
    std::atomic<size_t> left;
    std::mutex mutex;
    Status status;
  };
  auto outcome = std::make_shared<Outcome>();
  outcome->left = keys.size();
  const auto hold = under_way_->hold();
  for (const BlobKey& key : keys) {
    tier.store->erase(key, [this, hold, &tier, key, outcome](Status status) {
      if (!status.ok()) {
        {
          const std::lock_guard lock(mutex_);
          tier.erased_meanwhile.push_back(key);
        }
        const std::lock_guard lock(outcome->mutex);
        outcome->status = std::move(status);
      }
      if (--outcome->left == 0) {
        report(tier, outcome->status);
      }
    });
  }
}

void TieredStore::erase_in(Tier& tier, const BlobKey& key, Done done) {
  {
    const std::lock_guard lock(mutex_);
    if (tier.out) {
      tier.erased_meanwhile.push_back(key);
    }
  }
  if (!usable(tier)) {
    done({});
    return;
  }
  const auto hold = under_way_->hold();
  tier.store->erase(key, [this, hold, &tier, key, done = std::move(done)](const Status& status) {
    if (!status.ok()) {
      const std::lock_guard lock(mutex_);
      tier.erased_meanwhile.push_back(key);
    }
    report(tier, status);
    done({});
  });
}

void TieredStore::erase(BlobKey key, Done done) {
  (void)ram_->erase_now(key);
  auto left = std::make_shared<std::atomic<size_t>>(tiers_.size() + 1);
  const auto one_done = [left, done = std::move(done)](Status) {
    if (--*left == 0) {
      done({});
    }
  };
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(remembered_, [&](const Boundary& boundary) { return boundary.key == key; });
    for (const std::unique_ptr<Tier>& tier : tiers_) {
      tier->below.erase(key);
    }
    if (const auto load = loads_.find(key); load != loads_.end()) {
      load->second->erased = true;
    }
  }
  for (const std::unique_ptr<Tier>& tier : tiers_) {
    erase_in(*tier, key, one_done);
  }
  one_done({});
}

void TieredStore::set_value(BlobKey key, double value) {
  ram_->set_value(key, value);
  for (const std::unique_ptr<Tier>& tier : tiers_) {
    tier->store->set_value(key, value);
  }
}

void TieredStore::find(BlobKey key, FindDone done) {
  locate(key, [done = std::move(done)](Result<Located> located) {
    done(located.ok() ? Result<Found>(std::move(located->found)) : located.status());
  });
}

void TieredStore::locate(BlobKey key, LocateDone done) {
  Result<Found> found = ram_->find_now(key);
  if (found.ok()) {
    done(Located{*std::move(found), ram_->name(), 0.0});
    return;
  }
  locate_from(key, 0, std::move(done));
}

void TieredStore::locate_from(BlobKey key, size_t index, LocateDone done) {
  while (index < tiers_.size() && !usable(*tiers_[index])) {
    ++index;
  }
  if (index == tiers_.size()) {
    done(Status::not_found(fmt::format("{} is in no tier", to_string(key))));
    return;
  }
  Tier& tier = *tiers_[index];
  const auto hold = under_way_->hold();
  tier.store->find(
      key, [this, hold, key, index, &tier, done = std::move(done)](Result<Found> found) mutable {
        report(tier, found.status());
        if (!found.ok()) {
          locate_from(key, index + 1, std::move(done));
          return;
        }
        int64_t bytes = found->blob.bytes;
        if (found->boundary) {
          bytes = 0;
          for (const BlobRef& part : found->boundary->parts) {
            bytes += ram_->contains_now(part.key) ? 0 : part.bytes;
          }
          remember(*found->boundary);
        }
        const std::optional<double> seconds = tier.store->link_rates().read.seconds(bytes);
        done(Located{*std::move(found), tier.store->name(), seconds});
      });
}

void TieredStore::remember(const Boundary& boundary) {
  const std::lock_guard lock(mutex_);
  std::erase_if(remembered_, [&](const Boundary& old) { return old.key == boundary.key; });
  if (remembered_.size() >= 64) {
    remembered_.erase(remembered_.begin());
  }
  remembered_.push_back(boundary);
}

void TieredStore::list(BlobKind kind, ListDone done) {
  auto found = std::make_shared<std::vector<Found>>(ram_->list_now(kind).value());
  list_from(std::move(found), kind, 0, std::move(done));
}

void TieredStore::list_from(std::shared_ptr<std::vector<Found>> found, BlobKind kind, size_t index,
                            ListDone done) {
  while (index < tiers_.size() && !usable(*tiers_[index])) {
    ++index;
  }
  if (index == tiers_.size()) {
    done(std::move(*found));
    return;
  }
  Tier& tier = *tiers_[index];
  const auto hold = under_way_->hold();
  tier.store->list(kind, [this, hold, found, kind, index, &tier,
                          done = std::move(done)](Result<std::vector<Found>> more) mutable {
    report(tier, more.status());
    std::unordered_set<BlobKey, BlobKeyHash> known;
    for (const Found& one : *found) {
      known.insert(one.blob.key);
    }
    for (size_t i = 0; more.ok() && i < more->size(); ++i) {
      if (known.insert((*more)[i].blob.key).second) {
        found->push_back(std::move((*more)[i]));
      }
    }
    list_from(std::move(found), kind, index + 1, std::move(done));
  });
}

std::vector<TierStats> TieredStore::tier_stats() const {
  std::vector<TierStats> all;
  TierStats top;
  top.name = ram_->name();
  top.store = ram_->stats();
  top.rates = ram_->link_rates();
  all.push_back(std::move(top));
  for (const std::unique_ptr<Tier>& tier : tiers_) {
    TierStats stats;
    stats.name = tier->store->name();
    stats.store = tier->store->stats();
    stats.rates = tier->store->link_rates();
    const std::lock_guard lock(mutex_);
    stats.out = tier->out;
    stats.failures = tier->failures;
    stats.skipped = tier->skipped;
    stats.dropped_writes = tier->dropped_writes;
    stats.failed_writes = tier->failed_writes;
    stats.writing_bytes = tier->writing_bytes;
    all.push_back(std::move(stats));
  }
  return all;
}

Status TieredStore::prefetch_now(BlobKey boundary) {
  auto promise = std::make_shared<std::promise<Status>>();
  std::future<Status> future = promise->get_future();
  prefetch(boundary, [promise](Status status) { promise->set_value(std::move(status)); });
  return future.get();
}

}  // namespace triax::store
