// Checkpoints: a lease's pages become runs of the tree, its state an object at their end.
#include <algorithm>

#include "base/check.h"
#include "cache/cache_state.h"

namespace triax::cache {
namespace {

constexpr size_t kDevice = 0;
constexpr uint8_t kDeviceBit = 1;

}  // namespace

/// The run below `at` that holds keys.front(), cut or made so that it ends within `keys`.
uint32_t Cache::next_run(uint32_t at, std::span<const Key> keys, LeaseState& lease) {
  const uint32_t next = tree_.starting_with(keys.front());
  if (next != kNone) {
    Node& node = tree_.node(next);
    const auto blocks = static_cast<size_t>(node.blocks);
    const bool whole = blocks <= keys.size() && keys[blocks - 1] == node.last;
    if (whole && node.tiers == 0) {
      tree_.revive(next, keys.first(blocks));
    }
    if (whole) {
      return next;
    }
    if (node.tiers != 0) {
      const auto end = std::mismatch(node.keys.begin(), node.keys.end(), keys.begin(), keys.end());
      const uint32_t upper = tree_.split(next, static_cast<int32_t>(end.first - node.keys.begin()));
      hold_session(tree_.node(upper).session);
      return upper;
    }
    remove_ghosts(next);  // it ends where this path does not
  }
  const size_t blocks = std::min<size_t>(keys.size(), kRunBlocksMax);
  const uint32_t made = tree_.add(at, keys.first(blocks));
  tree_.node(made).session = lease.session;
  hold_session(lease.session);
  return made;
}

/// The lease's own pages from `first` on become those of `node`, or are given back where it has
/// pages. They stay listed in `own` for the caller to take out.
void Cache::give_pages(LeaseState& lease, size_t first, uint32_t node) {
  Node& n = tree_.node(node);
  const auto pages = std::span(lease.own).subspan(first, static_cast<size_t>(n.blocks));
  charge(Tier::kDevice, lease.session, -run_bytes(n));
  if (n.in(Tier::kDevice)) {
    pages_[kDevice].give(pages);
    return;
  }
  charge(Tier::kDevice, n.session, run_bytes(n));
  if (!spare_pages_.empty()) {
    n.pages[kDevice] = std::move(spare_pages_.back());
    spare_pages_.pop_back();
  }
  n.pages[kDevice].assign(pages.begin(), pages.end());
  n.tiers |= kDeviceBit;
  ++tree_.node(n.parent).children[kDevice];
}

void Cache::walk_to(LeaseState& lease, const Prompt& sequence, int32_t blocks, double now) {
  size_t given = 0;
  while (tree_.node(lease.node).end_block() < blocks) {
    const uint32_t at = lease.node;
    const auto begin = static_cast<size_t>(tree_.node(at).end_block());
    const uint32_t next =
        next_run(at, sequence.blocks.subspan(begin, static_cast<size_t>(blocks) - begin), lease);
    give_pages(lease, given, next);
    given += static_cast<size_t>(tree_.node(next).blocks);
    if (tree_.node(next).created == 0) {
      tree_.node(next).created = now;
    }
    tree_.node(next).last_used = now;
    move_pin(lease, next);
    refresh_run(at, now);
    refresh_run(next, now);
    if (tree_.node(next).child != kNone) {
      refresh_run(tree_.node(next).child, now);  // perhaps the lower part of a cut run
    }
  }
  lease.own.erase(lease.own.begin(), lease.own.begin() + static_cast<std::ptrdiff_t>(given));
}

void Cache::supersede(LeaseState& lease, int64_t tokens, double now) {
  if (lease.resumed_from == kNone || tokens <= lease.view.resumed) {
    return;
  }
  Checkpoint& c = tree_.checkpoint(lease.resumed_from);
  if (c.generation == lease.resumed_generation && !c.superseded) {
    c.superseded = true;
    refresh_state(lease.resumed_from, now);
  }
}

std::optional<Publication> Cache::publish(LeaseId id, const Prompt& sequence, Anchor anchor,
                                          double now) {
  LeaseState& lease = state_of(id);
  const auto blocks = static_cast<int32_t>(anchor.tokens / kBlock);
  const auto rows = static_cast<int32_t>(anchor.tokens % kBlock);
  const int32_t shared = tree_.node(lease.node).end_block();
  check(anchor.tokens > 0 && blocks >= shared && anchor.tokens <= lease.view.tokens &&
            anchor.tokens <= sequence.tokens && lease.writing == kNone,
        "a checkpoint lies on the lease's pages, beyond the last one, one at a time");
  walk_to(lease, sequence, blocks, now);
  const Key key = key_of(sequence, anchor.tokens);
  supersede(lease, anchor.tokens, now);
  Publication publication;
  uint32_t c = tree_.find_checkpoint(lease.node, rows, key);
  if (c != kNone && tree_.checkpoint(c).in(Tier::kDevice)) {
    tree_.checkpoint(c).last_used = now;
    refresh_state(c, now);
    publication.exists = true;
    lease.published = anchor.tokens;
    return publication;
  }
  const int64_t bytes = config_.tiers[kDevice].state_bytes + (rows > 0 ? config_.page_bytes : 0);
  if (!make_room(Tier::kDevice, bytes, now)) {
    ++stats_.states_declined;
    return std::nullopt;
  }
  c = tree_.find_checkpoint(lease.node, rows, key);  // may have left a lower tier meanwhile
  if (c == kNone) {
    c = tree_.add_checkpoint(lease.node, rows, key);
    tree_.checkpoint(c).session = lease.session;
    tree_.checkpoint(c).created = now;
    hold_session(lease.session);
  }
  Checkpoint& made = tree_.checkpoint(c);
  made.kind = anchor.kind;
  made.last_used = now;
  made.writing = true;
  made.superseded = false;
  made.tiers |= kDeviceBit;
  made.slots[kDevice] = slots_[kDevice].take();
  charge(Tier::kDevice, made.session, bytes);
  publication.from = lease.view.write_slot;
  publication.to = made.slots[kDevice];
  if (rows > 0) {
    made.tails[kDevice] = pages_[kDevice].take();
    publication.tail = {lease.own.front(), made.tails[kDevice], rows};
  }
  refresh_state(c, now);
  lease.writing = c;
  lease.published = anchor.tokens;
  return publication;
}

bool Cache::wants_answer_end(LeaseId id, int64_t tokens) const {
  const LeaseState& lease = state_of(id);
  const int64_t last = std::max(lease.published, lease.view.resumed);
  return policies_[kDevice]->wants_answer_end(tokens, tokens - last);
}

void Cache::commit(LeaseId id, double now) {
  LeaseState& lease = state_of(id);
  check(lease.writing != kNone, "commit follows a publish that was granted");
  Checkpoint& c = tree_.checkpoint(lease.writing);
  c.writing = false;
  tree_.node(c.node).had_state |= c.rows == 0;
  ++stats_.states_written[static_cast<size_t>(c.kind)];
  SessionState& session = sessions_[lease.session];
  session.tip = c.node;
  session.tip_generation = tree_.node(c.node).generation;
  refresh_state(lease.writing, now);
  lease.newest = lease.writing;
  lease.newest_generation = c.generation;
  lease.writing = kNone;
}

void Cache::drop_uncommitted(LeaseState& lease, double now) {
  if (lease.writing != kNone) {
    const uint32_t c = lease.writing;
    lease.writing = kNone;
    const uint32_t generation = tree_.checkpoint(c).generation;
    evict_state(c, Tier::kDevice, now);
    if (tree_.checkpoint(c).generation == generation) {  // a lower tier has it, complete
      tree_.checkpoint(c).writing = false;
      refresh_state(c, now);
    }
  }
}

void Cache::end(LeaseId id, Outcome outcome, double now) {
  LeaseState& lease = state_of(id);
  drop_uncommitted(lease, now);
  state_read(id, now);
  charge(Tier::kDevice, lease.session,
         -static_cast<int64_t>(lease.own.size()) * config_.page_bytes);
  pages_[kDevice].give(lease.own);
  if (lease.view.write_slot != kNoId) {
    (one_slot_size_ ? slots_[kDevice] : running_slots_).give(lease.view.write_slot);
    charge(Tier::kDevice, kNone, -config_.running_state_bytes);
  }
  --tree_.node(lease.node).pins;
  refresh_run(lease.node, now);
  if (lease.newest != kNone &&
      tree_.checkpoint(lease.newest).generation == lease.newest_generation) {
    store_down(lease.newest, Tier::kDevice, now);
  }
  if (lease.counted) {
    Session& s = sessions_[lease.session].view;
    --s.active;
    ++s.requests;
    s.last_end = now;
    s.last_outcome = outcome;
    for (auto& policy : policies_) {
      policy->session_changed(lease.session, s, now);
    }
  }
  drop_session(lease.session);
  lease.open = false;
  ++lease.generation;
  std::vector<PageId>().swap(lease.own);
  free_leases_.push_back(id.index);
}

void Cache::set_next_use(uint64_t session, double when, double now, int64_t tokens) {
  const uint32_t s = session_with(session);
  Session& view = sessions_[s].view;
  view.next_use = when;
  view.next_tokens = tokens;
  for (auto& policy : policies_) {
    policy->session_changed(s, view, now);
  }
}

TierUse Cache::use(Tier tier) const {
  const auto t = static_cast<size_t>(tier);
  TierUse use;
  use.budget_bytes = config_.tiers[t].budget_bytes;
  use.used_bytes = used_[t];
  use.pages = pages_[t].in_use();
  use.states = slots_[t].in_use();
  if (one_slot_size_ && t == kDevice) {
    for (const LeaseState& lease : leases_) {
      use.states -= lease.open && lease.view.write_slot != kNoId ? 1 : 0;
    }
  }
  return use;
}

}  // namespace triax::cache
