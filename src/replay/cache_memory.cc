#include "replay/cache_memory.h"

#include <algorithm>

#include "base/check.h"

namespace triax::replay {

// What was generated has no names in the record: it gets some that nobody else has.
cache::Prompt CacheMemory::prompt_of(Flight& flight, sched::SequenceId id, int64_t tokens) const {
  const auto blocks = static_cast<size_t>(tokens / cache::kBlock);
  while (flight.keys.size() < blocks) {
    const cache::Key last = flight.keys.empty() ? cache::root_key(2, id) : flight.keys.back();
    flight.keys.push_back(cache::chained(last, ~id));
  }
  cache::Prompt prompt;
  prompt.blocks = std::span(flight.keys).first(blocks);
  prompt.tokens = tokens;
  return prompt;
}

void CacheMemory::expect(sched::SequenceId id, int64_t tokens) {
  Flight& flight = at(id);
  (void)cache_->prefetch({prompt_of(flight, id, tokens), flight.session, false}, now_s);
}

// A lower tier has more, to load it is cheaper than to compute it, and it is not being loaded: then
// there was no room for it. Computing it would need the same room.
bool CacheMemory::waits_for_room(const cache::Lease& lease) const {
  const cache::CacheConfig& config = cache_->config();
  if (lease.loading || lease.match.not_loaded == 0) {
    return false;
  }
  const cache::TierConfig& tier = config.tiers[static_cast<size_t>(lease.match.tier)];
  const double bytes = static_cast<double>(
      lease.match.not_loaded / cache::kBlock * config.page_bytes + tier.state_bytes);
  const double seconds =
      tier.read_latency_seconds +
      (tier.read_bytes_per_second > 0.0 ? bytes / tier.read_bytes_per_second : 0.0);
  return seconds < config.prefill.seconds(lease.resumed, lease.resumed + lease.match.not_loaded);
}

sched::Start CacheMemory::start(sched::SequenceId id, int64_t tokens) {
  Flight& flight = at(id);
  if (flight.knows_next) {
    cache_->set_next_use(flight.session, now_s + flight.next_after_s, now_s, flight.next_shared);
  }
  const Result<cache::LeaseId> lease =
      cache_->begin({prompt_of(flight, id, tokens), flight.session, false}, now_s);
  if (!lease.ok()) {
    return {};
  }
  if (holders_ > 0 && waits_for_room(cache_->lease(*lease))) {
    cache_->end(*lease, cache::Outcome::kCancelled, now_s);
    return {};
  }
  flight.lease = *lease;
  flight.held = true;
  flight.on_device = cache_->lease(*lease).resumed;
  flight.tier = cache_->lease(*lease).match.tier;
  ++holders_;
  flight.known_tokens = tokens;
  flight.read = false;
  return poll(id);
}

sched::Start CacheMemory::poll(sched::SequenceId id) {
  Flight& flight = at(id);
  const cache::Lease& lease = cache_->lease(flight.lease);
  if (lease.loading) {
    return {.fits = true, .ready = false, .tokens = 0, .stops = {}};
  }
  flight.anchors = lease.anchors;
  sched::Start start{.fits = true, .ready = true, .tokens = lease.resumed, .stops = {}};
  for (const cache::Anchor& anchor : lease.anchors) {
    start.stops.push_back(anchor.tokens);
  }
  if (flight.first_resumed < 0) {
    flight.first_resumed = lease.resumed;
    flight.first_loaded = lease.resumed - flight.on_device;
  }
  return start;
}

bool CacheMemory::grow(sched::SequenceId id, int64_t tokens) {
  return cache_->extend(at(id).lease, tokens, now_s).ok();
}

void CacheMemory::computed(sched::SequenceId id, int64_t begin, int64_t end) {
  Flight& flight = at(id);
  if (!flight.read) {
    cache_->state_read(flight.lease, now_s);
    flight.read = true;
  }
  for (const cache::Anchor& anchor : flight.anchors) {
    if (begin < anchor.tokens && anchor.tokens <= end) {
      const auto publication =
          cache_->publish(flight.lease, prompt_of(flight, id, flight.known_tokens), anchor, now_s);
      if (publication && !publication->exists) {
        cache_->commit(flight.lease, now_s);
      }
    }
  }
}

// The state at the last whole block stands for the state at `tokens`, whose name needs the tokens.
void CacheMemory::preempt(sched::SequenceId id, int64_t tokens) {
  Flight& flight = at(id);
  const int64_t boundary = tokens / cache::kBlock * cache::kBlock;
  if (tokens > 0 && boundary > cache_->lease(flight.lease).resumed) {
    const auto publication =
        cache_->publish(flight.lease, prompt_of(flight, id, std::max(tokens, flight.known_tokens)),
                        {boundary, cache::AnchorKind::kPreempted}, now_s);
    if (publication && !publication->exists) {
      cache_->commit(flight.lease, now_s);
    }
  }
  release(id);
}

void CacheMemory::release(sched::SequenceId id) {
  Flight& flight = at(id);
  check(flight.held, "a request holds its memory once");
  flight.held = false;
  --holders_;
  cache_->end(flight.lease, flight.outcome, now_s);
}

int64_t CacheMemory::bytes(int64_t tokens) const {
  const cache::CacheConfig& config = cache_->config();
  const int64_t pages = (tokens + cache::kBlock - 1) / cache::kBlock;
  return pages * config.page_bytes +
         std::max(config.running_state_bytes, config.tiers[0].state_bytes);
}

int64_t CacheMemory::capacity_bytes() const { return cache_->config().tiers[0].budget_bytes; }

}  // namespace triax::replay
