// The tiers as one store: how blobs sink and how they rise.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "store/tiered_jobs.h"
#include "store/tiered_store.h"

namespace triax::store {
namespace {

int64_t bytes_of(const PutRequest& request) {
  int64_t sum = 0;
  for (const BlobSource& source : request.blobs) {
    sum += total_bytes(source.pieces);
  }
  return sum;
}

// A request over bytes that RAM lends.
PutRequest request_of(std::vector<RamLease> leases, std::optional<Boundary> boundary,
                      int64_t ttl_ms, double value) {
  PutRequest request;
  for (const RamLease& lease : leases) {
    request.blobs.push_back({lease.blob.key, lease.pieces});
  }
  request.boundary = std::move(boundary);
  request.ttl_ms = ttl_ms;
  request.value = value;
  request.owner = std::make_shared<std::vector<RamLease>>(std::move(leases));
  return request;
}

}  // namespace

void TieredStore::put(PutRequest request, Done done) {
  auto shared = std::make_shared<PutRequest>(std::move(request));
  Status status = ram_->put_now(*shared);
  // No room, or parts that have sunk already.
  if (status.code() == StatusCode::kResourceExhausted || status.code() == StatusCode::kNotFound) {
    put_below(std::move(shared), std::move(done), std::move(status));
    return;
  }
  if (status.ok()) {
    std::vector<BlobKey> fresh;
    for (const BlobSource& source : shared->blobs) {
      fresh.push_back(source.key);
    }
    write_through(fresh, shared->boundary, shared->ttl_ms, shared->value);
  }
  shared.reset();  // RAM has its own copy
  done(std::move(status));
}

// The caller's memory goes to the lower tiers, and the answer waits for them.
void TieredStore::put_below(std::shared_ptr<PutRequest> request, Done done, Status ram_status) {
  struct Waiting {
    std::atomic<size_t> left;
    std::atomic<bool> stored{false};
    Status status;
    Done done;
  };
  auto waiting = std::make_shared<Waiting>();
  waiting->left = tiers_.size() + 1;
  waiting->status = std::move(ram_status);
  waiting->done = std::move(done);
  const auto one_done = [waiting, request] {
    if (--waiting->left == 0) {
      waiting->done(waiting->stored ? Status() : waiting->status);
    }
  };
  for (const std::unique_ptr<Tier>& tier : tiers_) {
    if (tier->options.write == WritePolicy::kNone || !usable(*tier)) {
      one_done();
      continue;
    }
    Tier* raw = tier.get();
    const auto hold = under_way_->hold();
    raw->store->put(*request, [this, hold, raw, waiting, one_done](const Status& status) {
      report(*raw, status);
      if (status.ok()) {
        waiting->stored = true;
      }
      one_done();
    });
  }
  one_done();
}

std::vector<RamLease> TieredStore::leases_of(const std::vector<BlobKey>& keys) {
  std::vector<RamLease> leases;
  for (const BlobKey& key : keys) {
    if (std::optional<RamLease> lease = ram_->lease(key)) {
      leases.push_back(*std::move(lease));
    }
  }
  return leases;
}

void TieredStore::write_through(const std::vector<BlobKey>& fresh,
                                const std::optional<Boundary>& boundary, int64_t ttl_ms,
                                double value) {
  for (const std::unique_ptr<Tier>& tier : tiers_) {
    if (tier->options.write == WritePolicy::kThrough && usable(*tier)) {
      PutRequest request = request_of(leases_of(fresh), boundary, ttl_ms, value);
      const int64_t bytes = bytes_of(request);
      sink(*tier, std::move(request), bytes, IfPartsLack::kSendAll);
    }
  }
}

void TieredStore::sink(Tier& tier, PutRequest request, int64_t bytes, IfPartsLack if_lack) {
  {
    const std::lock_guard lock(mutex_);
    if (tier.writing_bytes + bytes > tier.options.writing_bytes_max) {
      ++tier.dropped_writes;
      return;
    }
    tier.writing_bytes += bytes;
  }
  const std::optional<Boundary> boundary = request.boundary;
  const int64_t ttl_ms = request.ttl_ms;
  const double value = request.value;
  const auto hold = under_way_->hold();
  tier.store->put(std::move(request), [this, hold, &tier, bytes, boundary, ttl_ms, value,
                                       if_lack](const Status& status) {
    {
      const std::lock_guard lock(mutex_);
      tier.writing_bytes -= bytes;
    }
    if (status.code() == StatusCode::kNotFound && boundary && if_lack == IfPartsLack::kSendAll) {
      std::vector<BlobKey> keys;
      for (const BlobRef& part : boundary->parts) {
        keys.push_back(part.key);
      }
      PutRequest all = request_of(leases_of(keys), boundary, ttl_ms, value);
      const int64_t all_bytes = bytes_of(all);
      sink(tier, std::move(all), all_bytes, IfPartsLack::kFail);
      return;
    }
    sunk(tier, boundary ? std::optional(boundary->key) : std::nullopt, status);
  });
}

void TieredStore::sunk(Tier& tier, const std::optional<BlobKey>& boundary, const Status& status) {
  report(tier, status);
  const std::lock_guard lock(mutex_);
  if (!status.ok()) {
    ++tier.failed_writes;
  } else if (boundary && tier.options.write == WritePolicy::kThrough) {
    tier.below.insert(*boundary);
  }
}

void TieredStore::write_back(Evicted evicted) {
  int64_t bytes = 0;  // what stays in RAM for this alone
  for (const BlobRef& part : evicted.boundary.parts) {
    bytes += ram_->contains_now(part.key) ? 0 : part.bytes;
  }
  for (const std::unique_ptr<Tier>& tier : tiers_) {
    {
      const std::lock_guard lock(mutex_);
      if (tier->options.write == WritePolicy::kNone ||
          tier->below.erase(evicted.boundary.key) > 0) {
        continue;
      }
    }
    int64_t ttl_ms = 0;
    if (evicted.expires_ms != 0) {
      ttl_ms = evicted.expires_ms - options_.now_ms();
      if (ttl_ms <= 0) {
        continue;
      }
    }
    if (usable(*tier)) {
      sink(*tier, request_of(evicted.parts, evicted.boundary, ttl_ms, evicted.value), bytes,
           IfPartsLack::kFail);
    }
  }
}

Status TieredStore::flush_now() {
  Status first_error;
  const std::vector<Found> boundaries = ram_->list_now(BlobKind::kBoundary).value();
  for (const Found& found : boundaries) {
    int64_t ttl_ms = 0;
    if (found.expires_ms != 0) {
      ttl_ms = std::max<int64_t>(1, found.expires_ms - options_.now_ms());
    }
    std::vector<BlobKey> keys;
    for (const BlobRef& part : found.boundary->parts) {
      keys.push_back(part.key);
    }
    const std::vector<RamLease> leases = leases_of(keys);
    if (leases.size() < keys.size()) {
      continue;  // it is leaving just now, and is written for that
    }
    for (const std::unique_ptr<Tier>& tier : tiers_) {
      {
        const std::lock_guard lock(mutex_);
        if (tier->options.write == WritePolicy::kNone || tier->below.contains(found.blob.key)) {
          continue;
        }
      }
      if (usable(*tier)) {
        Status status = tier->store->put_now(request_of(leases, found.boundary, ttl_ms, 0));
        sunk(*tier, found.blob.key, status);
        first_error = first_error.ok() ? std::move(status) : first_error;
      }
    }
  }
  return first_error;
}

void TieredStore::get(std::vector<BlobTarget> targets, GetDone done) {
  auto job = std::make_shared<GetJob>();
  job->targets = std::move(targets);
  job->done = std::move(done);
  job->statuses = ram_->get_now(job->targets);
  get_from(std::move(job), 0);
}

void TieredStore::get_from(std::shared_ptr<GetJob> job, size_t index) {
  std::vector<size_t> missing;
  for (size_t i = 0; i < job->targets.size(); ++i) {
    if (job->statuses[i].code() == StatusCode::kNotFound) {
      missing.push_back(i);
    }
  }
  while (index < tiers_.size() && !missing.empty() && !usable(*tiers_[index])) {
    ++index;
  }
  if (missing.empty() || index == tiers_.size()) {
    job->done(std::move(job->statuses));
    return;
  }
  std::vector<BlobTarget> targets;
  for (const size_t i : missing) {
    targets.push_back(job->targets[i]);
  }
  Tier& tier = *tiers_[index];
  const auto hold = under_way_->hold();
  tier.store->get(
      std::move(targets), [this, hold, job, index, missing, &tier](std::vector<Status> statuses) {
        for (size_t k = 0; k < missing.size(); ++k) {
          report(tier, statuses[k]);
          const StatusCode code = statuses[k].code();
          const bool final = code == StatusCode::kOk || code == StatusCode::kInvalidArgument;
          job->statuses[missing[k]] =
              final ? statuses[k]
                    : Status::not_found(fmt::format("{} is in no tier; {}: {}",
                                                    to_string(job->targets[missing[k]].key),
                                                    tier.store->name(), statuses[k].message()));
        }
        if (job->rises) {
          promote(job->targets, missing, job->statuses);
        }
        get_from(job, index + 1);
      });
}

void TieredStore::promote(const std::vector<BlobTarget>& targets,
                          const std::vector<size_t>& indices, const std::vector<Status>& statuses) {
  std::unordered_set<BlobKey, BlobKeyHash> risen;
  for (const size_t i : indices) {
    if (!statuses[i].ok()) {
      continue;
    }
    PutRequest request;
    request.blobs.push_back({targets[i].key, as_const(targets[i].pieces)});
    if (ram_->put_now(std::move(request)).ok()) {
      risen.insert(targets[i].key);
    }
  }
  std::vector<Boundary> candidates;
  if (!risen.empty()) {
    const std::lock_guard lock(mutex_);
    for (const Boundary& boundary : remembered_) {
      if (std::any_of(boundary.parts.begin(), boundary.parts.end(),
                      [&](const BlobRef& part) { return risen.contains(part.key); })) {
        candidates.push_back(boundary);
      }
    }
  }
  for (Boundary& boundary : candidates) {
    const BlobKey key = boundary.key;
    PutRequest request;
    request.boundary = std::move(boundary);
    if (ram_->put_now(std::move(request)).ok()) {
      const std::lock_guard lock(mutex_);
      std::erase_if(remembered_, [&](const Boundary& old) { return old.key == key; });
    }
  }
}

void TieredStore::prefetch(BlobKey boundary, Done done) {
  if (ram_->contains_now(boundary)) {
    done({});
    return;
  }
  std::shared_ptr<Load> fresh;
  {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Load>& under_way = loads_[boundary];
    if (under_way == nullptr) {
      fresh = under_way = std::make_shared<Load>();
      fresh->key = boundary;
    }
    under_way->waiting.push_back(std::move(done));
  }
  if (fresh == nullptr) {
    return;
  }
  locate_from(boundary, 0, [this, fresh](Result<Located> located) {
    if (!located.ok() || !located->found.boundary) {
      finish_load(*fresh, located.ok() ? Status::invalid_argument("only boundaries are prefetched")
                                       : located.status());
      return;
    }
    fresh->boundary = *located->found.boundary;
    if (located->found.expires_ms != 0) {
      fresh->ttl_ms = std::max<int64_t>(1, located->found.expires_ms - options_.now_ms());
    }
    load(fresh);
  });
}

void TieredStore::load(std::shared_ptr<Load> load) {
  std::vector<BlobRef> missing;
  for (const BlobRef& part : load->boundary.parts) {
    if (std::optional<RamLease> lease = ram_->lease(part.key)) {
      load->held.push_back(*std::move(lease));
    } else {
      missing.push_back(part);
      load->bytes += part.bytes;
    }
  }
  {
    const std::lock_guard lock(mutex_);
    loading_bytes_ += load->bytes;
    if (loading_bytes_ > options_.loading_bytes_max) {
      loading_bytes_ -= load->bytes;
      load->bytes = -1;
    }
  }
  if (load->bytes < 0) {
    load->bytes = 0;
    finish_load(*load, Status::resource_exhausted("tiers: too much is being loaded already"));
    return;
  }
  auto job = std::make_shared<GetJob>();
  for (const BlobRef& part : missing) {
    Result<RamStore::Stage> stage = ram_->stage(part);
    if (!stage.ok()) {
      finish_load(*load, stage.status());
      return;
    }
    job->targets.push_back({part.key, stage->pieces()});
    load->stages.push_back(*std::move(stage));
  }
  job->statuses.assign(job->targets.size(), Status::not_found(""));
  job->rises = false;  // it is read to where it belongs
  job->done = [this, load](const std::vector<Status>& statuses) { arrived(*load, statuses); };
  get_from(std::move(job), 0);
}

void TieredStore::arrived(Load& load, const std::vector<Status>& statuses) {
  for (const Status& status : statuses) {
    if (!status.ok()) {
      finish_load(load, status);
      return;
    }
  }
  bool erased = false;
  {
    const std::lock_guard lock(mutex_);
    erased = load.erased;
  }
  if (erased) {
    finish_load(load, Status::not_found("erased while it was loaded"));
    return;
  }
  PutRequest request;
  for (const RamLease& lease : load.held) {
    request.blobs.push_back({lease.blob.key, lease.pieces});
  }
  request.boundary = load.boundary;
  request.ttl_ms = load.ttl_ms;
  for (RamStore::Stage& stage : load.stages) {
    ram_->publish(std::move(stage), load.ttl_ms, 0);
  }
  load.stages.clear();
  finish_load(load, ram_->put_now(std::move(request)));
}

void TieredStore::finish_load(Load& load, const Status& status) {
  load.stages.clear();
  load.held.clear();
  std::vector<Done> waiting;
  {
    const std::lock_guard lock(mutex_);
    loading_bytes_ -= load.bytes;
    waiting.swap(load.waiting);
    loads_.erase(load.key);
  }
  for (const Done& done : waiting) {
    done(status);
  }
}

}  // namespace triax::store
