// The life of a lease: begin, extend, publish, commit, end.
#include "cache/cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "cache/cache_state.h"

namespace triax::cache {
namespace {

constexpr size_t kDevice = 0;

int64_t blocks_for(int64_t tokens) { return (tokens + kBlock - 1) / kBlock; }

}  // namespace

Cache::Cache(const CacheConfig& config) : config_(config) {}
Cache::~Cache() = default;

Result<std::unique_ptr<Cache>> Cache::create(const CacheConfig& config) {
  const TierConfig& device = config.tiers[kDevice];
  if (config.page_bytes <= 0 || config.running_state_bytes < 0) {
    return Status::invalid_argument(
        fmt::format("cache: page_bytes is {}, running_state_bytes {}; expected above 0 and not "
                    "negative",
                    config.page_bytes, config.running_state_bytes));
  }
  for (size_t t = 0; t < kTiers; ++t) {
    const TierConfig& tier = config.tiers[t];
    if (tier.budget_bytes < 0 || (tier.budget_bytes > 0 && tier.state_bytes <= 0)) {
      return Status::invalid_argument(
          fmt::format("cache: tier {} has a budget of {} bytes and states of {}; expected neither "
                      "negative nor a budget without a state's size",
                      t, tier.budget_bytes, tier.state_bytes));
    }
  }
  const int64_t least = config.running_state_bytes + config.page_bytes + device.state_bytes;
  if (device.budget_bytes < least) {
    return Status::invalid_argument(
        fmt::format("cache: the device's budget is {} bytes; one page, one running state and one "
                    "checkpoint take {}",
                    device.budget_bytes, least));
  }
  std::unique_ptr<Cache> cache(new Cache(config));
  cache->one_slot_size_ = config.running_state_bytes == device.state_bytes;
  for (size_t t = 0; t < kTiers; ++t) {
    auto policy = make_policy(config.policy, config, static_cast<Tier>(t));
    if (!policy.ok()) {
      return policy.status();
    }
    cache->policies_[t] = std::move(*policy);
  }
  return cache;
}

Cache::LeaseState& Cache::state_of(LeaseId id) {
  check(id.index < leases_.size() && leases_[id.index].open &&
            leases_[id.index].generation == id.generation,
        "a lease is used between begin and end");
  return leases_[id.index];
}

const Cache::LeaseState& Cache::state_of(LeaseId id) const {
  return const_cast<Cache*>(this)->state_of(id);
}

const Lease& Cache::lease(LeaseId id) const { return state_of(id).view; }

uint32_t Cache::session_of(const Request& request, const Tree::Place& place) {
  uint64_t id = request.session;
  if (id == 0) {
    const uint32_t owner = tree_.node(place.node).session;
    if (owner != kNone && sessions_[owner].tip == place.node) {
      return owner;  // goes on where that session ended
    }
    id = ++derived_sessions_ | uint64_t{1} << 63;
  }
  return session_with(id);
}

uint32_t Cache::session_with(uint64_t id) {
  uint32_t i = session_by_id_.find(id);
  if (i == kNone) {
    i = static_cast<uint32_t>(sessions_.size());
    if (free_sessions_.empty()) {
      sessions_.emplace_back();
    } else {
      i = free_sessions_.back();
      free_sessions_.pop_back();
    }
    sessions_[i].view.id = id;
    session_by_id_.set(id, i);
  }
  return i;
}

void Cache::compare_prompts(uint32_t session, const Prompt& prompt) {
  SessionState& s = sessions_[session];
  const std::span<const Key> blocks = prompt.blocks;
  const auto remembered = static_cast<int64_t>(s.tail.size());
  if (remembered > 0) {
    int64_t back = 0;
    for (; back < remembered; ++back) {
      const int64_t i = s.blocks - 1 - back;
      if (i < static_cast<int64_t>(blocks.size()) &&
          blocks[static_cast<size_t>(i)] == s.tail[static_cast<size_t>(remembered - 1 - back)]) {
        break;
      }
    }
    for (auto& policy : policies_) {
      policy->prompt_compared(static_cast<int32_t>(back), s.blocks);
    }
  }
  const auto kept = std::min<size_t>(blocks.size(), kTailBlocks);
  s.tail.assign(blocks.end() - static_cast<std::ptrdiff_t>(kept), blocks.end());
  s.blocks = static_cast<int64_t>(blocks.size());
}

Result<LeaseId> Cache::begin(const Request& request, double now) {
  check(static_cast<int64_t>(request.prompt.blocks.size()) == request.prompt.tokens / kBlock,
        "a prompt has one key for each whole block");
  const Found found = find(request);
  const uint32_t session = session_of(request, found.place);
  hold_session(session);

  uint32_t index = static_cast<uint32_t>(leases_.size());
  if (free_leases_.empty()) {
    leases_.emplace_back();
  } else {
    index = free_leases_.back();
    free_leases_.pop_back();
  }
  LeaseState& lease = leases_[index];
  const uint32_t generation = lease.generation;
  lease = LeaseState{};
  lease.generation = generation;
  lease.open = true;
  lease.session = session;
  lease.view.match = found.match;
  ++tree_.node(kRoot).pins;
  pin_boundary(lease, found.best, now);
  const int64_t tail_bytes = found.best.tokens % kBlock != 0 ? config_.page_bytes : 0;
  const LeaseId id{index, generation};
  if (!make_room(Tier::kDevice, config_.running_state_bytes + tail_bytes, now)) {
    end(id, Outcome::kCancelled, now);
    return Status::resource_exhausted(
        fmt::format("cache: no room for a running state of {} bytes: all {} bytes are in use",
                    config_.running_state_bytes, used_[kDevice]));
  }
  start(lease, request, found, now);
  if (found.match.not_loaded > 0) {
    load_for(id, request, found, Tier::kDevice, now);
  }
  return id;
}

void Cache::pin_boundary(LeaseState& lease, const Boundary& boundary, double now) {
  const uint32_t before = lease.node;
  move_pin(lease, boundary.node);
  refresh_run(before, now);
  refresh_run(boundary.node, now);
  lease.view.resumed = boundary.tokens;
  lease.view.tokens = tree_.node(boundary.node).end_tokens();
  if (boundary.checkpoint != kNone) {
    Checkpoint& c = tree_.checkpoint(boundary.checkpoint);
    ++c.pins;
    refresh_state(boundary.checkpoint, now);
    lease.reading = lease.resumed_from = boundary.checkpoint;
    lease.resumed_generation = c.generation;
    lease.view.read_slot = c.slots[kDevice];
  }
}

/// The running state will be that of `reading`; room for a page of its own was made.
void Cache::read_boundary(LeaseState& lease, double now) {
  tree_.node(lease.node).last_used = now;
  if (lease.reading == kNone) {
    return;
  }
  Checkpoint& c = tree_.checkpoint(lease.reading);
  c.last_used = now;
  ++c.uses;
  ++stats_.states_read[static_cast<size_t>(c.kind)];
  if (c.rows > 0) {
    charge(Tier::kDevice, lease.session, config_.page_bytes);
    lease.own.push_back(pages_[kDevice].take());
    lease.view.tail = {c.tails[kDevice], lease.own.back(), c.rows};
    lease.view.tokens += kBlock;
  }
}

void Cache::start(LeaseState& lease, const Request& request, const Found& found, double now) {
  charge(Tier::kDevice, kNone, config_.running_state_bytes);
  lease.view.write_slot = (one_slot_size_ ? slots_[kDevice] : running_slots_).take();
  read_boundary(lease, now);
  AnchorQuery& query = lease.query;
  query.resumed = found.best.tokens;
  query.pages_matched = std::max(found.pages_matched, found.best.tokens / kBlock * kBlock);
  query.true_fork = found.true_fork;
  query.next_tokens = sessions_[lease.session].view.next_tokens;
  query.end = std::max<int64_t>(0, request.prompt.tokens - 1) / kBlock * kBlock;
  compare_prompts(lease.session, request.prompt);
  policies_[kDevice]->anchors(lease.query, lease.view.anchors);

  ++stats_.requests;
  stats_.tokens_prompt += request.prompt.tokens;
  stats_.tokens.possible += found.match.possible;
  stats_.tokens.matched += found.match.matched;
  stats_.tokens.not_loaded += found.match.not_loaded;
  stats_.tokens.evicted += found.match.evicted;
  stats_.tokens.state_missing += found.match.state_missing;

  SessionState& session = sessions_[lease.session];
  Session& s = session.view;
  if (s.requests > 0 && s.active == 0) {
    const double gap = std::max(0.0, now - s.last_end);
    const double before = std::log1p(s.gap_seconds_mean);
    const double weight = s.requests == 1 ? 1 : 0.25;
    s.gap_seconds_mean = std::expm1(before + weight * (std::log1p(gap) - before));
  }
  lease.counted = true;
  ++s.active;
  s.last_begin = now;
  s.tokens = request.prompt.tokens;
  for (auto& policy : policies_) {
    policy->session_changed(lease.session, s, now);
  }
}

void Cache::move_pin(LeaseState& lease, uint32_t node) {
  --tree_.node(lease.node).pins;
  ++tree_.node(node).pins;
  lease.node = node;
}

Status Cache::extend(LeaseId id, int64_t tokens, double now) {
  LeaseState& lease = state_of(id);
  check(!lease.view.loading, "a lease is extended once it is loaded");
  const int64_t have = tree_.node(lease.node).end_block() + static_cast<int64_t>(lease.own.size());
  const int64_t more = blocks_for(tokens) - have;
  if (more <= 0) {
    return {};
  }
  if (!make_room(Tier::kDevice, more * config_.page_bytes, now)) {
    return Status::resource_exhausted(
        fmt::format("cache: no room for {} pages of {} bytes: {} of {} bytes are in use", more,
                    config_.page_bytes, used_[kDevice], config_.tiers[kDevice].budget_bytes));
  }
  charge(Tier::kDevice, lease.session, more * config_.page_bytes);
  pages_[kDevice].take(more, lease.own);
  lease.view.tokens = (have + more) * kBlock;
  return {};
}

void Cache::append_pages(LeaseId id, std::vector<PageId>& out) const {
  const LeaseState& lease = state_of(id);
  const size_t begin = out.size();
  out.resize(begin + static_cast<size_t>(tree_.node(lease.node).end_block()));
  for (uint32_t i = lease.node; i != kRoot; i = tree_.node(i).parent) {
    const Node& node = tree_.node(i);
    std::copy(node.pages[kDevice].begin(), node.pages[kDevice].end(),
              out.begin() + static_cast<std::ptrdiff_t>(begin) + node.first_block);
  }
  out.insert(out.end(), lease.own.begin(), lease.own.end());
}

void Cache::state_read(LeaseId id, double now) {
  LeaseState& lease = state_of(id);
  if (lease.reading != kNone) {
    const uint32_t c = lease.reading;
    lease.reading = kNone;
    lease.view.read_slot = kNoId;
    --tree_.checkpoint(c).pins;
    refresh_state(c, now);
  }
}

}  // namespace triax::cache
