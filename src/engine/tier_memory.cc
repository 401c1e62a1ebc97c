#include "engine/tier_memory.h"

#include <chrono>
#include <cstring>

namespace triax::engine {
namespace {

using cache::Tier;

store::BlobKey blob(const cache::Key& key, store::BlobKind kind) {
  return {key.low, key.high, kind};
}

constexpr size_t kRememberedMax = 1 << 16;

/// Root, then the tokens.
std::vector<std::byte> encode(const cache::Key& root, std::span<const int32_t> tokens) {
  std::vector<std::byte> bytes(sizeof(root) + tokens.size_bytes());
  std::memcpy(bytes.data(), &root, sizeof(root));
  std::memcpy(bytes.data() + sizeof(root), tokens.data(), tokens.size_bytes());
  return bytes;
}

}  // namespace

Result<std::unique_ptr<TierMemory>> TierMemory::create(const TierOptions& options,
                                                       cache::Cache& cache,
                                                       model::StatePool& pool) {
  std::unique_ptr<TierMemory> made(new TierMemory(options, cache, pool));
  if (options.ssd_bytes > 0) {
    Result<std::unique_ptr<store::SsdStore>> ssd =
        store::SsdStore::open({.folder = options.ssd_folder, .budget_bytes = options.ssd_bytes});
    if (!ssd.ok()) {
      return ssd.status();
    }
    made->ssd_ = std::move(*ssd);
  }
  return made;
}

TierMemory::~TierMemory() = default;

void TierMemory::remember(cache::Key state, cache::Key root, std::span<const int32_t> tokens) {
  if (ssd_ != nullptr) {
    if (remembered_.size() >= kRememberedMax) {
      remembered_.clear();  // a restart will find less
    }
    remembered_[state] = {root, {tokens.begin(), tokens.end()}};
  }
}

/// Before new copies: a number may have been given to something else since.
void TierMemory::forget_drops() {
  std::vector<cache::Drop> drops;
  cache_.take_drops(drops);
  for (const cache::Drop& drop : drops) {
    if (drop.tier == Tier::kRam) {
      (drop.state ? ram_slots_ : ram_pages_).erase(drop.id);
    } else if (drop.tier == Tier::kSsd && ssd_ != nullptr) {
      const auto ignore = [](const Status&) {};
      if (drop.state) {
        ssd_->erase_record(blob(drop.key, store::BlobKind::kBoundary));
        ssd_->erase(blob(drop.key, store::BlobKind::kState), ignore);
        ssd_->erase(blob(drop.key, store::BlobKind::kOther), ignore);
        remembered_.erase(drop.key);
      } else {
        ssd_->erase(blob(drop.key, store::BlobKind::kPage), ignore);
      }
    }
  }
}

Status TierMemory::poll(double now) {
  std::vector<std::pair<uint64_t, bool>> done;
  {
    const std::lock_guard lock(mutex_);
    done.swap(ended_);
  }
  for (const auto& [id, made] : done) {
    const auto found = jobs_.find(id);
    const std::unique_ptr<Job> job = std::move(found->second);
    jobs_.erase(found);
    if (made && job->transfer.to != Tier::kSsd) {
      if (Status s = deliver(*job); !s.ok()) {
        return s;
      }
    }
    failed_ += made ? 0 : 1;
    cache_.confirm(id, made, now);
  }
  for (;;) {
    forget_drops();
    std::vector<cache::Transfer> planned;
    cache_.take_transfers(planned);
    if (planned.empty()) {
      return {};
    }
    for (cache::Transfer& transfer : planned) {
      if (Status s = begin(std::move(transfer), now); !s.ok()) {
        return s;
      }
    }
  }
}

Status TierMemory::begin(cache::Transfer transfer, double now) {
  const uint64_t id = transfer.id;
  auto job = std::make_unique<Job>();
  job->transfer = std::move(transfer);
  const auto page_bytes = static_cast<size_t>(pool_.page_bytes());
  job->pages.assign(job->transfer.pages.size(), Bytes(page_bytes));
  job->tail.resize(job->transfer.tail.rows > 0 ? page_bytes : 0);
  job->state.resize(static_cast<size_t>(pool_.slot_bytes()));
  if (job->transfer.from == Tier::kSsd) {
    Job& reading = *jobs_.emplace(id, std::move(job)).first->second;
    read_ssd(id, reading);
    return {};
  }
  if (Status s = gather(*job); !s.ok()) {
    return s;
  }
  if (job->transfer.to == Tier::kSsd) {
    Job& writing = *jobs_.emplace(id, std::move(job)).first->second;
    write_ssd(id, writing);
    return {};
  }
  if (Status s = deliver(*job); !s.ok()) {
    return s;
  }
  cache_.confirm(id, true, now);
  return {};
}

Status TierMemory::gather(Job& job) {
  const cache::Transfer& t = job.transfer;
  if (t.from == Tier::kRam) {
    for (size_t i = 0; i < t.pages.size(); ++i) {
      job.pages[i] = ram_pages_.at(t.pages[i].from);
    }
    if (t.tail.rows > 0) {
      job.tail = ram_pages_.at(t.tail.from);
    }
    job.state = ram_slots_.at(t.state_from);
    return {};
  }
  Status status = pool_.read_slot(t.state_from, job.state);
  for (size_t i = 0; i < t.pages.size() && status.ok(); ++i) {
    status = pool_.read_page(t.pages[i].from, job.pages[i]);
  }
  return status.ok() && t.tail.rows > 0 ? pool_.read_page(t.tail.from, job.tail) : status;
}

Status TierMemory::deliver(Job& job) {
  const cache::Transfer& t = job.transfer;
  if (t.to == Tier::kRam) {
    for (size_t i = 0; i < t.pages.size(); ++i) {
      ram_pages_[t.pages[i].to] = std::move(job.pages[i]);
    }
    if (t.tail.rows > 0) {
      ram_pages_[t.tail.to] = std::move(job.tail);
    }
    ram_slots_[t.state_to] = std::move(job.state);
    return {};
  }
  Status status = pool_.write_slot(t.state_to, job.state);
  for (size_t i = 0; i < t.pages.size() && status.ok(); ++i) {
    status = pool_.write_page(t.pages[i].to, job.pages[i]);
  }
  return status.ok() && t.tail.rows > 0 ? pool_.write_page(t.tail.to, job.tail) : status;
}

void TierMemory::read_ssd(uint64_t id, Job& job) {
  std::vector<store::BlobTarget> targets;
  const cache::Transfer& t = job.transfer;
  targets.push_back({blob(t.state_key, store::BlobKind::kState), {job.state}});
  if (t.tail.rows > 0) {
    targets.push_back({blob(t.state_key, store::BlobKind::kPage), {job.tail}});
  }
  for (size_t i = 0; i < t.pages.size(); ++i) {
    targets.push_back({blob(t.pages[i].key, store::BlobKind::kPage), {job.pages[i]}});
  }
  ssd_->get(std::move(targets), [this, id](const std::vector<Status>& statuses) {
    bool made = true;
    for (const Status& status : statuses) {
      made = made && status.ok();
    }
    ended(id, made);
  });
}

void TierMemory::write_ssd(uint64_t id, Job& job) {
  const cache::Transfer& t = job.transfer;
  store::PutRequest request;
  const auto add = [&](const cache::Key& key, store::BlobKind kind, const Bytes& bytes) {
    request.blobs.push_back({blob(key, kind), {bytes}});
  };
  add(t.state_key, store::BlobKind::kState, job.state);
  if (t.tail.rows > 0) {
    add(t.state_key, store::BlobKind::kPage, job.tail);
  }
  for (size_t i = 0; i < t.pages.size(); ++i) {
    add(t.pages[i].key, store::BlobKind::kPage, job.pages[i]);
  }
  // The record of all that a restart needs: every page of the path, most of them there already.
  if (const auto known = remembered_.find(t.state_key); known != remembered_.end()) {
    job.tokens = encode(known->second.root, known->second.tokens);
    add(t.state_key, store::BlobKind::kOther, job.tokens);
    store::Boundary boundary{blob(t.state_key, store::BlobKind::kBoundary), {}, {}};
    const auto part = [&](const cache::Key& key, store::BlobKind kind, int64_t bytes) {
      boundary.parts.push_back({blob(key, kind), bytes});
    };
    part(t.state_key, store::BlobKind::kState, pool_.slot_bytes());
    part(t.state_key, store::BlobKind::kOther, static_cast<int64_t>(job.tokens.size()));
    if (t.tail.rows > 0) {
      part(t.state_key, store::BlobKind::kPage, pool_.page_bytes());
    }
    cache::BlockHasher hasher(known->second.root);
    hasher.append(known->second.tokens);
    for (const cache::Key& key : hasher.prompt().blocks) {
      part(key, store::BlobKind::kPage, pool_.page_bytes());
    }
    boundary.note.resize(sizeof(options_.fingerprint));
    std::memcpy(boundary.note.data(), &options_.fingerprint, sizeof(options_.fingerprint));
    request.boundary = std::move(boundary);
  }
  ssd_->put(std::move(request), [this, id](const Status& status) { ended(id, status.ok()); });
}

void TierMemory::ended(uint64_t id, bool made) {
  const std::lock_guard lock(mutex_);
  ended_.emplace_back(id, made);
  changed_.notify_all();
}

void TierMemory::wait(double seconds_max) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::duration<double>(seconds_max),
                    [this] { return !ended_.empty(); });
}

Result<int64_t> TierMemory::adopt(double now) {
  if (ssd_ == nullptr) {
    return int64_t{0};
  }
  const Result<std::vector<store::Found>> found = ssd_->list_now(store::BlobKind::kBoundary);
  if (!found.ok()) {
    return found.status();
  }
  int64_t adopted = 0;
  for (const store::Found& entry : *found) {
    const store::Boundary& boundary = *entry.boundary;
    if (boundary.note.size() != sizeof(options_.fingerprint) ||
        std::memcmp(boundary.note.data(), &options_.fingerprint, boundary.note.size()) != 0) {
      continue;  // another model's
    }
    Bytes bytes;
    for (const store::BlobRef& part : boundary.parts) {
      if (part.key.kind == store::BlobKind::kOther) {
        bytes.resize(static_cast<size_t>(part.bytes));
        const store::BlobTarget target{part.key, {bytes}};
        bytes.resize(ssd_->get_now(target).ok() ? bytes.size() : 0);
      }
    }
    cache::Key root;
    if (bytes.size() <= sizeof(root)) {
      continue;
    }
    std::memcpy(&root, bytes.data(), sizeof(root));
    std::vector<int32_t> tokens((bytes.size() - sizeof(root)) / sizeof(int32_t));
    std::memcpy(tokens.data(), bytes.data() + sizeof(root), tokens.size() * sizeof(int32_t));
    cache::BlockHasher hasher(root);
    hasher.append(tokens);
    const cache::Anchor end{hasher.tokens(), cache::AnchorKind::kPromptEnd};
    if (blob(hasher.key_at(end.tokens), store::BlobKind::kBoundary) == boundary.key &&
        cache_.adopt(Tier::kSsd, hasher.prompt(), end, now).ok()) {
      remember(hasher.key_at(end.tokens), root, tokens);
      ++adopted;
    }
  }
  return adopted;
}

}  // namespace triax::engine
