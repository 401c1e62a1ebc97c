#include "engine/sequence_memory.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/check.h"
#include "device/cuda/cuda_queue.h"

namespace triax::engine {
namespace {

using cache::kBlock;

constexpr double kWaitSeconds = 1e-3;
constexpr double kTendSeconds = 0.25;  // between looks at who may return

/// Bytes of one slot and of one page; a pool of one each knows.
struct Sizes {
  int64_t slot = 0;
  int64_t page = 0;
};

Sizes sizes_of(const checkpoint::ModelConfig& config, DType latents) {
  const model::StatePool one(config, {.sequences = 1, .tokens = 0, .latents = latents});
  return {one.slot_bytes(), one.page_bytes()};
}

/// What the cache is told: `bytes` on the device, and the tiers below it.
cache::CacheConfig settings_of(const checkpoint::ModelConfig& config, const Sizes& sizes,
                               int64_t bytes, const SequenceMemoryOptions& options) {
  const TierOptions& tiers = options.tiers;
  const int64_t at_rest = StateAtRest(config, sizes.slot, tiers.states).bytes();
  cache::CacheConfig settings;
  settings.page_bytes = sizes.page;
  settings.running_state_bytes = sizes.slot;
  settings.policy = options.policy;
  const auto tier = [&settings](cache::Tier which) -> cache::TierConfig& {
    return settings.tiers[static_cast<size_t>(cache::index(which))];
  };
  tier(cache::Tier::kDevice) = {
      .budget_bytes = bytes, .state_bytes = sizes.slot, .ttl_seconds = tiers.device_ttl_s};
  tier(cache::Tier::kRam) = {.budget_bytes = tiers.ram_bytes,
                             .state_bytes = at_rest,
                             .write = tiers.ram_write,
                             .ttl_seconds = tiers.ram_ttl_s};
  // Files are a little larger than what they hold.
  tier(cache::Tier::kSsd) = {.budget_bytes = tiers.ssd_bytes / 10 * 9,
                             .state_bytes = at_rest,
                             .write = tiers.ssd_write,
                             .ttl_seconds = tiers.ssd_ttl_s};
  if (tiers.shared) {
    tier(cache::Tier::kShared) = {.budget_bytes = tiers.shared_bytes,
                                  .state_bytes = at_rest,
                                  .write = tiers.shared_write,
                                  .ttl_seconds = 1e-3 * static_cast<double>(tiers.shared->ttl_ms)};
  }
  return settings;
}

}  // namespace

Result<std::unique_ptr<SequenceMemory>> SequenceMemory::create(
    const checkpoint::ModelConfig& config, DType latents, CudaQueue* cuda,
    const SequenceMemoryOptions& options) {
  const Sizes sizes = sizes_of(config, latents);
  const int64_t bytes = cuda != nullptr ? options.bytes / 2 : options.bytes;
  Result<std::unique_ptr<cache::Cache>> made =
      cache::Cache::create(settings_of(config, sizes, bytes, options));
  if (!made.ok()) {
    return made.status();
  }
  // The cache counts bytes and gives out the lowest numbers; each number has a place of its own.
  const model::StatePoolSize size{.sequences = options.marks,
                                  .tokens = 0,
                                  .latents = latents,
                                  .lent_slots = bytes / std::max<int64_t>(1, sizes.slot),
                                  .lent_pages = bytes / std::max<int64_t>(1, sizes.page),
                                  .poison = options.poison};
  try {
    std::unique_ptr<SequenceMemory> memory(new SequenceMemory(config, size, cuda, options));
    memory->cache_ = std::move(*made);
    Result<std::unique_ptr<TierMemory>> tiers =
        TierMemory::create(options.tiers, config, *memory->cache_, memory->pool_);
    if (!tiers.ok()) {
      return tiers.status();
    }
    memory->tiers_ = std::move(*tiers);
    const Result<int64_t> adopted = memory->tiers_->adopt(0.0);
    if (!adopted.ok()) {
      return adopted.status();
    }
    memory->adopted_ = *adopted;
    return memory;
  } catch (const std::bad_alloc& error) {
    return Status::resource_exhausted(
        fmt::format("no room for {} bytes of sequences; use a smaller budget: {}", options.bytes,
                    error.what()));
  }
}

SequenceMemory::Entry& SequenceMemory::entry(sched::SequenceId id) {
  const auto found = entries_.find(id);
  check(found != entries_.end(), "sequence memory: no such sequence");
  return found->second;
}

const SequenceMemory::Entry& SequenceMemory::entry(sched::SequenceId id) const {
  const auto found = entries_.find(id);
  check(found != entries_.end(), "sequence memory: no such sequence");
  return found->second;
}

void SequenceMemory::set_now(double now) {
  now_ = now;
  note(tiers_->poll(now_));
  adopt_found();
  if (options_.tiers.any() && now - tended_ >= kTendSeconds) {
    tended_ = now;
    tend(now);
  }
}

/// What nobody waits for: what is too old goes, what is likely to be wanted is fetched.
void SequenceMemory::tend(double now) {
  double ttl_min = 0;
  for (const cache::TierConfig& tier : cache_->config().tiers) {
    ttl_min = tier.ttl_seconds > 0 && (ttl_min == 0 || tier.ttl_seconds < ttl_min)
                  ? tier.ttl_seconds
                  : ttl_min;
  }
  if (ttl_min > 0 && now - expired_ >= ttl_min / 16) {
    expired_ = now;
    cache_->expire(now);
  }
  const cache::Tier to = options_.tiers.ram_bytes > 0 ? cache::Tier::kRam : cache::Tier::kDevice;
  const int64_t ahead = cache_->use(to).budget_bytes / 8 - tiers_->loading_bytes();
  if (options_.tiers.outlive_process() && options_.reuse && ahead > 0) {
    cache_->prefetch_returning(to, ahead, now);
  }
  note(tiers_->poll(now));
}

void SequenceMemory::forget(sched::SessionId session) {
  while (tiers_->busy()) {
    tiers_->wait(kWaitSeconds);
    note(tiers_->poll(now_));
  }
  cache_->forget(session, now_);
  note(tiers_->poll(now_));
}

void SequenceMemory::measured_prefill(int64_t tokens, double seconds) {
  const double per_token = seconds / static_cast<double>(tokens);
  prefill_seconds_ += (prefill_seconds_ == 0.0 ? 1.0 : 0.125) * (per_token - prefill_seconds_);
  if (options_.tiers.loads_must_pay) {
    cache_->set_prefill_seconds(prefill_seconds_);
  }
}

MemoryStats SequenceMemory::stats() const {
  MemoryStats stats{.use = {}, .cache = cache_->stats(), .lower = tiers_->stats()};
  for (int t = 0; t < cache::kTiers; ++t) {
    stats.use[static_cast<size_t>(t)] = cache_->use(static_cast<cache::Tier>(t));
  }
  return stats;
}

void SequenceMemory::expect(sched::SequenceId id, int64_t tokens) {
  Entry& e = entry(id);
  if (!options_.reuse || !options_.tiers.any()) {
    return;
  }
  check(e.tokens.tokens() == tokens, "sequence memory: other tokens are expected");
  const cache::Request request{.prompt = e.tokens.prompt(), .session = e.session};
  const cache::Match match = cache_->match(request);
  e.looking = tiers_->look_up(id, request.prompt, match.matched + match.not_loaded);
  if (e.looking) {
    looking_.push_back(id);
  } else {
    fetch_ahead(request);
  }
}

/// What the shared store has of prompts that came: now the cache knows too.
void SequenceMemory::adopt_found() {
  std::erase_if(looking_, [&](sched::SequenceId id) {
    const auto at = entries_.find(id);
    const std::optional<int64_t> tokens = tiers_->found(id);
    if (at == entries_.end() || !tokens) {
      return at == entries_.end();
    }
    Entry& e = at->second;
    e.looking = false;
    const cache::Request request{.prompt = e.tokens.prompt(), .session = e.session};
    if (*tokens > 0) {
      // Without room to keep it in mind it is computed.
      (void)cache_->adopt(cache::Tier::kShared, request.prompt,
                          {*tokens, cache::AnchorKind::kPromptEnd}, now_);
    }
    if (!e.running) {
      fetch_ahead(request);
    }
    return true;
  });
}

/// For a request that waits, perhaps for long: into this process's memory. Without that tier only
/// into room on the device that nobody has.
void SequenceMemory::fetch_ahead(const cache::Request& request) {
  const bool ram = options_.tiers.ram_bytes > 0;
  const cache::Tier to = ram ? cache::Tier::kRam : cache::Tier::kDevice;
  const cache::TierUse use = cache_->use(to);
  const bool fits = ram || use.used_bytes + 2 * bytes(request.prompt.tokens) <= use.budget_bytes;
  if (fits && tiers_->loading_bytes() < use.budget_bytes / 4) {
    cache_->prefetch(request, now_, to);
    note(tiers_->poll(now_));
  }
}

void SequenceMemory::note(const Status& status) {
  if (status_.ok()) {
    status_ = status;
  }
}

void SequenceMemory::add(sched::SequenceId id, std::span<const int32_t> tokens,
                         sched::SessionId session, uint64_t salt) {
  // Without reuse no two sequences have a prefix in common, not even the empty one.
  const cache::Key root = cache::root_key(options_.tiers.fingerprint, salt);
  Entry entry{.tokens = cache::BlockHasher(options_.reuse ? root : cache::chained(root, id)),
              .session = session,
              .failed = tiers_->failed()};
  entry.tokens.append(tokens);
  check(entries_.emplace(id, std::move(entry)).second, "sequence memory: the id is in use");
}

void SequenceMemory::remove(sched::SequenceId id) {
  check(!entry(id).running, "sequence memory: removed while running");
  tiers_->forget_ticket(id);
  entries_.erase(id);
}

void SequenceMemory::append(sched::SequenceId id, int32_t token) {
  entry(id).tokens.append(std::span(&token, 1));
}

void SequenceMemory::set_outcome(sched::SequenceId id, cache::Outcome outcome) {
  entry(id).outcome = outcome;
}

model::SequenceState& SequenceMemory::state(sched::SequenceId id) {
  Entry& e = entry(id);
  check(e.running, "sequence memory: the sequence does not run");
  return e.state;
}

std::span<const int32_t> SequenceMemory::tokens(sched::SequenceId id) const {
  return entry(id).tokens.prompt().ids;
}

const Reuse& SequenceMemory::reuse(sched::SequenceId id) const { return entry(id).reuse; }

void SequenceMemory::refresh_pages(Entry& e) {
  std::vector<int32_t> pages;
  cache_->append_pages(e.lease, pages);
  pool_.set_pages(e.state, std::move(pages));
}

/// The first step's state, on slots and pages that are its own: what it goes on from is copied
/// before anything is written.
Status SequenceMemory::prepare(Entry& e) {
  const cache::Lease& lease = cache_->lease(e.lease);
  Status status = lease.resumed > 0 ? pool_.copy_slot(lease.read_slot, lease.write_slot)
                                    : pool_.clear_slot(lease.write_slot);
  if (status.ok() && lease.tail.rows > 0) {
    status = pool_.copy_page(lease.tail.from, lease.tail.to);
  }
  const std::span<const int32_t> ids = e.tokens.prompt().ids;
  const auto seen = ids.first(static_cast<size_t>(lease.resumed));
  e.state = pool_.lend(lease.write_slot, {seen.begin(), seen.end()});
  refresh_pages(e);
  cache_->state_read(e.lease, now_);
  return status;
}

sched::Start SequenceMemory::start(sched::SequenceId id, int64_t tokens) {
  Entry& e = entry(id);
  check(!e.running && e.tokens.tokens() == tokens, "sequence memory: start of other tokens");
  if (e.looking) {
    return {};  // draining() says to ask again
  }
  const cache::Request request{.prompt = e.tokens.prompt(), .session = e.session};
  if (tiers_->failed() == e.failed && cache_->prefetch(request, now_)) {
    note(tiers_->poll(now_));  // from this process's memory: done at once
    if (cache_->prefetch(request, now_)) {
      return {};  // from a slower tier: draining() says to ask again
    }
  }
  const Result<cache::LeaseId> lease = cache_->begin(request, now_);
  if (!lease.ok()) {
    return {};
  }
  e.lease = *lease;
  e.running = true;
  note(tiers_->poll(now_));
  while (cache_->lease(e.lease).loading) {  // evicted meanwhile, and room for it since
    tiers_->wait(kWaitSeconds);
    note(tiers_->poll(now_));
  }
  note(prepare(e));
  const cache::Lease& view = cache_->lease(e.lease);
  if (!e.started) {
    e.reuse = {view.match, view.resumed};
    e.started = true;
  }
  sched::Start start{.fits = true, .ready = true, .tokens = view.resumed, .stops = {}};
  for (const cache::Anchor& anchor : view.anchors) {
    if (options_.reuse && anchor.tokens > view.resumed) {
      start.stops.push_back(anchor.tokens);
    }
  }
  return start;
}

/// Every start is ready.
sched::Start SequenceMemory::poll(sched::SequenceId id) {
  check(false, "sequence memory: no load is waited for after a start");
  (void)id;
  return {};
}

bool SequenceMemory::grow(sched::SequenceId id, int64_t tokens) {
  Entry& e = entry(id);
  const auto before = e.state.pages().size();
  if (!cache_->extend(e.lease, tokens, now_).ok()) {
    note(tiers_->poll(now_));  // what is evicted may have to be copied first
    if (!cache_->extend(e.lease, tokens, now_).ok()) {
      return false;
    }
  }
  refresh_pages(e);
  for (size_t i = before; i < e.state.pages().size(); ++i) {
    note(pool_.poison_page(e.state.pages()[i]));  // nobody may read what was there
  }
  return true;
}

bool SequenceMemory::is_anchor(sched::SequenceId id, int64_t tokens) const {
  const Entry& e = entry(id);
  return options_.reuse && e.running &&
         std::ranges::any_of(cache_->lease(e.lease).anchors,
                             [&](const cache::Anchor& a) { return a.tokens == tokens; });
}

void SequenceMemory::publish_anchor(sched::SequenceId id) {
  const Entry& e = entry(id);
  const int64_t length = e.state.length();
  for (const cache::Anchor& anchor : cache_->lease(e.lease).anchors) {
    if (anchor.tokens == length) {
      publish(id, anchor.kind);
      return;
    }
  }
}

void SequenceMemory::publish(sched::SequenceId id, cache::AnchorKind kind) {
  Entry& e = entry(id);
  const int64_t length = e.state.length();
  if (!options_.reuse || !status_.ok() || length == 0 || length <= cache_->lease(e.lease).resumed) {
    return;
  }
  if (kind == cache::AnchorKind::kAnswerEnd && !cache_->wants_answer_end(e.lease, length)) {
    return;
  }
  const std::optional<cache::Publication> granted =
      cache_->publish(e.lease, e.tokens.prompt(), {length, kind}, now_);
  refresh_pages(e);
  if (!granted || granted->exists) {
    return;
  }
  Status copied = pool_.copy_slot(granted->from, granted->to);
  if (copied.ok() && granted->tail.rows > 0) {
    copied = pool_.copy_page(granted->tail.from, granted->tail.to);
  }
  note(copied);
  if (copied.ok()) {
    const cache::Prompt all = e.tokens.prompt();
    tiers_->remember(e.tokens.key_at(length), all.root, all.ids.first(static_cast<size_t>(length)));
    cache_->commit(e.lease, now_);
  }
}

void SequenceMemory::preempt(sched::SequenceId id, int64_t tokens) {
  (void)tokens;  // the state may be behind while a draft was not accepted
  publish(id, cache::AnchorKind::kPreempted);
  release(id);
}

void SequenceMemory::release(sched::SequenceId id) {
  Entry& e = entry(id);
  note(pool_.poison_slot(e.state.slot()));
  e.state = model::SequenceState();
  e.running = false;
  cache_->end(e.lease, e.outcome, now_);
}

int64_t SequenceMemory::bytes(int64_t tokens) const {
  return pool_.slot_bytes() + (tokens + kBlock - 1) / kBlock * pool_.page_bytes();
}

int64_t SequenceMemory::tokens_max() const {
  return std::max<int64_t>(0, (capacity_bytes() - pool_.slot_bytes()) / pool_.page_bytes()) *
         kBlock;
}

}  // namespace triax::engine
