#include "engine/tier_memory.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "engine/blob_names.h"

namespace triax::engine {
namespace {

using cache::Tier;
using Seconds = std::chrono::duration<double>;

constexpr int64_t kRememberedTokensMax = int64_t{64} << 20;
constexpr int64_t kSpareBytesMin = int64_t{64} << 20;

}  // namespace

TierMemory::TierMemory(const TierOptions& options, const checkpoint::ModelConfig& config,
                       cache::Cache& cache, model::StatePool& pool)
    : options_(options),
      cache_(cache),
      pool_(pool),
      at_rest_(config, pool.slot_bytes(), options.states),
      blocks_(std::max(kSpareBytesMin, 2 * pool.slot_bytes())),
      slot_(options.any() && !at_rest_.exact() ? static_cast<size_t>(pool.slot_bytes()) : 0) {}

Result<std::unique_ptr<TierMemory>> TierMemory::create(const TierOptions& options,
                                                       const checkpoint::ModelConfig& config,
                                                       cache::Cache& cache,
                                                       model::StatePool& pool) {
  std::unique_ptr<TierMemory> made(new TierMemory(options, config, cache, pool));
  if (options.ssd_bytes > 0) {
    Result<std::unique_ptr<store::SsdStore>> ssd =
        store::SsdStore::open({.folder = options.ssd_folder, .budget_bytes = options.ssd_bytes});
    if (!ssd.ok()) {
      return ssd.status();
    }
    made->ssd_ = std::make_unique<LowerTier>(*std::move(ssd), options.failing);
  }
  if (options.shared) {
    Result<std::unique_ptr<store::RedisStore>> redis = store::RedisStore::create(*options.shared);
    if (!redis.ok()) {
      return redis.status();
    }
    made->shared_ = std::make_unique<LowerTier>(*std::move(redis), options.failing);
  }
  return made;
}

TierMemory::~TierMemory() = default;

LowerTier* TierMemory::lower(Tier tier) {
  return tier == Tier::kSsd ? ssd_.get() : tier == Tier::kShared ? shared_.get() : nullptr;
}

std::vector<LowerTierStats> TierMemory::stats() const {
  std::vector<LowerTierStats> stats;
  for (const std::unique_ptr<LowerTier>* tier : {&ssd_, &shared_}) {
    if (*tier != nullptr) {
      stats.push_back((*tier)->stats());
    }
  }
  return stats;
}

void TierMemory::remember(cache::Key state, cache::Key root, std::span<const int32_t> tokens) {
  if (ssd_ == nullptr) {
    return;
  }
  if (remembered_tokens_ > kRememberedTokensMax) {
    remembered_.clear();  // a restart will find less
    remembered_tokens_ = 0;
  }
  remembered_tokens_ += static_cast<int64_t>(tokens.size());
  remembered_[state] = {root, {tokens.begin(), tokens.end()}};
}

/// What is deleted in a store that others share: no boundary needs it that this process knows of.
/// Others that did find it gone and compute.
void TierMemory::delete_shared(const cache::Drop& drop) {
  if (shared_ == nullptr || !drop.deleted) {
    return;
  }
  if (drop.state) {
    shared_->erase(blob(drop.key, store::BlobKind::kBoundary));
    shared_->erase(blob(drop.key, store::BlobKind::kState));
  }
  if (!drop.state || drop.tail) {
    shared_->erase(blob(drop.key, store::BlobKind::kPage));
  }
}

/// Before new copies: a number may have been given to something else since.
void TierMemory::forget_drops() {
  std::vector<cache::Drop> drops;
  cache_.take_drops(drops);
  const auto ignore = [](const Status&) {};
  for (const cache::Drop& drop : drops) {
    if (drop.tier == Tier::kRam) {
      (drop.state ? ram_slots_ : ram_pages_).erase(drop.id);
      ram_pages_.erase(drop.tail_id);
    } else if (drop.tier == Tier::kShared) {
      delete_shared(drop);
    } else if (drop.tier == Tier::kSsd && ssd_ != nullptr) {
      auto& ssd = static_cast<store::SsdStore&>(ssd_->store());
      if (drop.state) {
        ssd.erase_record(blob(drop.key, store::BlobKind::kBoundary));
        ssd.erase(blob(drop.key, store::BlobKind::kState), ignore);
        ssd.erase(blob(drop.key, store::BlobKind::kOther), ignore);
        if (const auto known = remembered_.find(drop.key); known != remembered_.end()) {
          remembered_tokens_ -= static_cast<int64_t>(known->second.tokens.size());
          remembered_.erase(known);
        }
      }
      if (!drop.state || drop.tail) {
        ssd.erase(blob(drop.key, store::BlobKind::kPage), ignore);
      }
    }
  }
}

/// Tells the cache which tiers can be asked, and how fast they have been.
void TierMemory::watch_tiers() {
  for (const Tier tier : {Tier::kRam, Tier::kSsd, Tier::kShared}) {
    LowerTier* const below = lower(tier);
    if (below != nullptr) {
      cache_.set_out(tier, !below->usable());
    }
    if (options_.loads_must_pay && (below != nullptr || tier == Tier::kRam)) {
      const store::LinkRate rate =
          below != nullptr ? below->store().link_rates().read : ram_meter_.rate();
      cache_.set_link(tier, rate.latency_s, rate.bytes_per_s);
    }
  }
}

Status TierMemory::poll(double now) {
  std::vector<Ended> done;
  std::vector<std::pair<uint64_t, Result<int64_t>>> seen;
  {
    const std::lock_guard lock(mutex_);
    done.swap(ended_);
    seen.swap(seen_);
  }
  for (const auto& [ticket, found] : seen) {
    --looking_;
    shared_->report(found.ok() ? Status() : found.status());
    if (const auto asked = answers_.find(ticket); asked != answers_.end()) {
      asked->second = found.ok() ? *found : 0;
    }
  }
  for (Ended& one : done) {
    if (Status s = finish(one, now); !s.ok()) {
      return s;
    }
  }
  watch_tiers();
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

Status TierMemory::finish(Ended& one, double now) {
  const auto found = jobs_.find(one.id);
  std::unique_ptr<Job> job = std::move(found->second);
  jobs_.erase(found);
  const cache::Transfer& t = job->transfer;
  const bool made = std::ranges::all_of(one.statuses, [](const Status& s) { return s.ok(); });
  LowerTier& tier = *lower(job->reading ? t.from : t.to);
  for (const Status& status : one.statuses) {
    tier.report(status);
  }
  loading_bytes_ -= job->reading ? t.bytes : 0;
  if (!made) {
    fail(*job, one.statuses, now);
    return {};
  }
  if (job->reading && lower(t.to) != nullptr) {
    job->reading = false;
    Job& writing = *jobs_.emplace(one.id, std::move(job)).first->second;
    write(one.id, writing);
    return {};
  }
  if (job->reading) {
    const Status delivered = deliver(*job);
    if (delivered.code() == StatusCode::kDataLoss) {
      fail(*job, {delivered}, now);
      return {};
    }
    if (!delivered.ok()) {
      return delivered;
    }
  }
  cache_.confirm(one.id, true, now);
  return {};
}

/// Tells the cache what is gone, if that is why.
void TierMemory::fail(const Job& job, const std::vector<Status>& statuses, double now) {
  const cache::Transfer& t = job.transfer;
  failed_ += job.reading ? 1 : 0;
  const auto is_lost = [&](const Status& s) {
    return s.code() == StatusCode::kNotFound ||
           (job.reading &&
            (s.code() == StatusCode::kDataLoss || s.code() == StatusCode::kInvalidArgument));
  };
  if (std::ranges::none_of(statuses, is_lost)) {
    cache_.confirm(t.id, false, now);
  } else if (!job.reading) {
    cache_.confirm_lost(t.id, t.to, 0, now);  // a part of the boundary that was there, any
  } else {
    // State and partial page come first; the pages after them, from the first that `to` lacked.
    const auto pages =
        std::span(statuses).subspan(std::min<size_t>(statuses.size(), t.tail.rows > 0 ? 2 : 1));
    const auto lost = std::ranges::find_if(pages, is_lost);
    const auto first = t.tokens / cache::kBlock - static_cast<int64_t>(t.pages.size());
    cache_.confirm_lost(
        t.id, t.from,
        lost == pages.end() ? -1 : static_cast<int32_t>(first + (lost - pages.begin())), now);
  }
}

Status TierMemory::begin(cache::Transfer transfer, double now) {
  const uint64_t id = transfer.id;
  for (const Tier tier : {transfer.from, transfer.to}) {
    if (LowerTier* const below = lower(tier); below != nullptr && !below->usable()) {
      below->skip();
      failed_ += tier == transfer.from ? 1 : 0;
      cache_.confirm(id, false, now);
      return {};
    }
  }
  auto job = std::make_unique<Job>();
  job->transfer = std::move(transfer);
  const cache::Transfer& t = job->transfer;
  job->pages.resize(t.pages.size());
  if (lower(t.from) != nullptr) {
    Job& reading = *jobs_.emplace(id, std::move(job)).first->second;
    loading_bytes_ += t.bytes;
    read(id, reading);
    return {};
  }
  const auto begun = std::chrono::steady_clock::now();
  Status status = gather(*job);
  if (status.code() == StatusCode::kInvalidArgument) {  // a state that cannot be encoded
    cache_.confirm(id, false, now);
    return {};
  }
  if (status.ok() && lower(t.to) != nullptr) {
    Job& writing = *jobs_.emplace(id, std::move(job)).first->second;
    write(id, writing);
    return {};
  }
  status = status.ok() ? deliver(*job) : status;
  if (status.ok()) {
    if (t.to == Tier::kDevice) {
      ram_meter_.add(t.bytes, Seconds(std::chrono::steady_clock::now() - begun).count());
    }
    cache_.confirm(id, true, now);
  }
  return status;
}

Status TierMemory::gather(Job& job) {
  const cache::Transfer& t = job.transfer;
  if (t.from == Tier::kRam) {
    for (size_t i = 0; i < t.pages.size(); ++i) {
      job.pages[i] = ram_pages_.at(t.pages[i].from);
    }
    job.tail = t.tail.rows > 0 ? ram_pages_.at(t.tail.from) : Block();
    job.state = ram_slots_.at(t.state_from);
    return {};
  }
  job.state = blocks_.take(at_rest_.bytes());
  Status status = pool_.read_slot(t.state_from, at_rest_.exact() ? job.state.span() : slot_);
  if (status.ok() && !at_rest_.exact()) {
    status = at_rest_.encode(slot_, job.state.span());
  }
  for (size_t i = 0; i < t.pages.size() && status.ok(); ++i) {
    job.pages[i] = blocks_.take(pool_.page_bytes());
    status = pool_.read_page(t.pages[i].from, job.pages[i].span());
  }
  if (status.ok() && t.tail.rows > 0) {
    job.tail = blocks_.take(pool_.page_bytes());
    status = pool_.read_page(t.tail.from, job.tail.span());
  }
  return status;
}

Status TierMemory::deliver(Job& job) {
  const cache::Transfer& t = job.transfer;
  if (t.to == Tier::kRam) {
    for (size_t i = 0; i < t.pages.size(); ++i) {
      ram_pages_[t.pages[i].to] = job.pages[i];
    }
    if (t.tail.rows > 0) {
      ram_pages_[t.tail.to] = job.tail;
    }
    ram_slots_[t.state_to] = job.state;
    return {};
  }
  Status status = at_rest_.exact() ? Status() : at_rest_.decode(job.state.span(), slot_);
  status = status.ok() ? pool_.write_slot(t.state_to, at_rest_.exact() ? job.state.span() : slot_)
                       : status;
  for (size_t i = 0; i < t.pages.size() && status.ok(); ++i) {
    status = pool_.write_page(t.pages[i].to, job.pages[i].span());
  }
  return status.ok() && t.tail.rows > 0 ? pool_.write_page(t.tail.to, job.tail.span()) : status;
}

void TierMemory::read(uint64_t id, Job& job) {
  const cache::Transfer& t = job.transfer;
  job.reading = true;
  std::vector<store::BlobTarget> targets;
  const auto add = [&](const cache::Key& key, store::BlobKind kind, Block& into, int64_t bytes) {
    into = blocks_.take(bytes);
    targets.push_back({blob(key, kind), {into.span()}});
  };
  add(t.state_key, store::BlobKind::kState, job.state, at_rest_.bytes());
  if (t.tail.rows > 0) {
    add(t.state_key, store::BlobKind::kPage, job.tail, pool_.page_bytes());
  }
  for (size_t i = 0; i < t.pages.size(); ++i) {
    add(t.pages[i].key, store::BlobKind::kPage, job.pages[i], pool_.page_bytes());
  }
  lower(t.from)->store().get(std::move(targets), [this, id](std::vector<Status> statuses) {
    ended(id, std::move(statuses));
  });
}

/// All that a boundary needs: every page of the path, most of them there already.
store::Boundary TierMemory::record_of(const Job& job) const {
  const cache::Transfer& t = job.transfer;
  store::Boundary boundary{blob(t.state_key, store::BlobKind::kBoundary), {}, {}};
  const auto part = [&](const cache::Key& key, store::BlobKind kind, int64_t bytes) {
    boundary.parts.push_back({blob(key, kind), bytes});
  };
  part(t.state_key, store::BlobKind::kState, at_rest_.bytes());
  if (!job.tokens.empty()) {
    part(t.state_key, store::BlobKind::kOther, static_cast<int64_t>(job.tokens.size()));
  }
  if (t.tail.rows > 0) {
    part(t.state_key, store::BlobKind::kPage, pool_.page_bytes());
  }
  for (const cache::Key& key : t.path) {
    part(key, store::BlobKind::kPage, pool_.page_bytes());
  }
  boundary.note = note_of(options_.fingerprint);
  return boundary;
}

void TierMemory::write(uint64_t id, Job& job) {
  const cache::Transfer& t = job.transfer;
  store::PutRequest request;
  const auto add = [&](const cache::Key& key, store::BlobKind kind,
                       std::span<const std::byte> bytes) {
    request.blobs.push_back({blob(key, kind), {bytes}});
  };
  add(t.state_key, store::BlobKind::kState, job.state.span());
  if (t.tail.rows > 0) {
    add(t.state_key, store::BlobKind::kPage, job.tail.span());
  }
  for (size_t i = 0; i < t.pages.size(); ++i) {
    add(t.pages[i].key, store::BlobKind::kPage, job.pages[i].span());
  }
  const auto known = remembered_.find(t.state_key);
  if (t.to == Tier::kSsd && known != remembered_.end()) {
    job.tokens = encode_tokens(known->second.root, known->second.tokens);
    add(t.state_key, store::BlobKind::kOther, job.tokens);
  }
  if (t.to == Tier::kShared || !job.tokens.empty()) {
    request.boundary = record_of(job);
  }
  request.ttl_ms = t.to == Tier::kSsd ? static_cast<int64_t>(1e3 * options_.ssd_ttl_s) : 0;
  lower(t.to)->store().put(std::move(request),
                           [this, id](const Status& status) { ended(id, {status}); });
}

void TierMemory::ended(uint64_t id, std::vector<Status> statuses) {
  const std::lock_guard lock(mutex_);
  ended_.push_back({id, std::move(statuses)});
  changed_.notify_all();
}

void TierMemory::wait(double seconds_max) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, Seconds(seconds_max),
                    [this] { return !ended_.empty() || !seen_.empty(); });
}

bool TierMemory::look_up(uint64_t ticket, const cache::Prompt& prompt, int64_t above) {
  std::vector<store::BlobKey> keys;  // of the longest prefix first
  const int64_t last = (prompt.tokens - 1) / cache::kBlock;
  for (int64_t end = last; end * cache::kBlock > above; --end) {
    keys.push_back(blob(prompt.blocks[static_cast<size_t>(end - 1)], store::BlobKind::kBoundary));
  }
  if (keys.empty() || shared_ == nullptr || !shared_->usable()) {
    return false;
  }
  ++looking_;
  answers_[ticket] = std::nullopt;
  static_cast<store::RedisStore&>(shared_->store())
      .find_first(keys, [this, ticket, keys, last](const Result<store::Found>& found) {
        Result<int64_t> tokens = found.ok() ? Result<int64_t>(0) : found.status();
        if (found.ok() && found->boundary->note == note_of(options_.fingerprint)) {
          tokens =
              (last - (std::ranges::find(keys, found->blob.key) - keys.begin())) * cache::kBlock;
        }
        const std::lock_guard lock(mutex_);
        seen_.emplace_back(ticket, std::move(tokens));
        changed_.notify_all();
      });
  return true;
}

std::optional<int64_t> TierMemory::found(uint64_t ticket) {
  const auto asked = answers_.find(ticket);
  if (asked == answers_.end()) {
    return 0;
  }
  const std::optional<int64_t> answer = asked->second;
  if (answer) {
    answers_.erase(asked);
  }
  return answer;
}

Result<int64_t> TierMemory::adopt(double now) {
  if (ssd_ == nullptr) {
    return int64_t{0};
  }
  const Result<std::vector<store::Found>> found =
      ssd_->store().list_now(store::BlobKind::kBoundary);
  if (!found.ok()) {
    return found.status();
  }
  int64_t adopted = 0;
  for (const store::Found& entry : *found) {
    adopted += adopt_one(*entry.boundary, now) ? 1 : 0;
  }
  return adopted;
}

bool TierMemory::adopt_one(const store::Boundary& boundary, double now) {
  if (boundary.note != note_of(options_.fingerprint)) {
    return false;  // another model's
  }
  std::vector<std::byte> bytes;
  for (const store::BlobRef& part : boundary.parts) {
    if (part.key.kind == store::BlobKind::kOther) {
      bytes.resize(static_cast<size_t>(part.bytes));
      const store::BlobTarget target{part.key, {bytes}};
      bytes.resize(ssd_->store().get_now(target).ok() ? bytes.size() : 0);
    }
  }
  cache::Key root;
  std::vector<int32_t> tokens;
  if (!decode_tokens(bytes, &root, &tokens)) {
    return false;
  }
  cache::BlockHasher hasher(root);
  hasher.append(tokens);
  const cache::Anchor end{hasher.tokens(), cache::AnchorKind::kPromptEnd};
  const cache::Key key = hasher.key_at(end.tokens);
  if (blob(key, store::BlobKind::kBoundary) != boundary.key ||
      !cache_.adopt(Tier::kSsd, hasher.prompt(), end, now).ok()) {
    return false;
  }
  remember(key, root, tokens);
  return true;
}

}  // namespace triax::engine
