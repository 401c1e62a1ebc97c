// Room: what leaves a tier, what is remembered of it, and the books of bytes.
#include <algorithm>

#include "base/check.h"
#include "cache/cache_state.h"

namespace triax::cache {
namespace {

constexpr uint8_t bit(Tier tier) { return static_cast<uint8_t>(1u << index(tier)); }
constexpr uint32_t item_id(uint32_t i, Item::Kind kind) {
  return i * 2 + (kind == Item::Kind::kRun ? 1 : 0);
}

}  // namespace

int64_t Cache::state_bytes(const Checkpoint& checkpoint, Tier tier) const {
  return config_.tiers[static_cast<size_t>(tier)].state_bytes +
         (checkpoint.rows > 0 ? config_.page_bytes : 0);
}

void Cache::charge(Tier tier, uint32_t session, int64_t bytes) {
  used_[static_cast<size_t>(tier)] += bytes;
  if (session != kNone) {
    sessions_[session].view.bytes[static_cast<size_t>(tier)] += bytes;
  }
}

Item Cache::item_of_run(uint32_t node, Tier tier) const {
  const Node& n = tree_.node(node);
  Item item;
  item.id = item_id(node, Item::Kind::kRun);
  item.kind = Item::Kind::kRun;
  item.session = n.session;
  item.bytes = run_bytes(n);
  item.tokens = n.end_tokens();
  item.last_used = n.last_used;
  item.created = n.created;
  item.dead = true;
  for (uint32_t c = n.checkpoint; c != kNone; c = tree_.checkpoint(c).next) {
    item.dead = item.dead && !tree_.checkpoint(c).in(tier);
  }
  return item;
}

Item Cache::item_of_state(uint32_t checkpoint, Tier tier) const {
  const Checkpoint& c = tree_.checkpoint(checkpoint);
  Item item;
  item.id = item_id(checkpoint, Item::Kind::kState);
  item.anchor = c.kind;
  item.superseded = c.superseded;
  item.session = c.session;
  item.uses = c.uses;
  item.bytes = state_bytes(c, tier);
  item.tokens = tree_.node(c.node).end_tokens() + c.rows;
  item.last_used = c.last_used;
  item.created = c.created;
  return item;
}

void Cache::refresh_run(uint32_t node, double now) {
  Node& n = tree_.node(node);
  if (node == kRoot) {
    return;
  }
  for (size_t t = 0; t < kTiers; ++t) {
    const auto tier = static_cast<Tier>(t);
    if ((n.listed & bit(tier)) != 0) {
      policies_[t]->erase(item_id(node, Item::Kind::kRun));
      n.listed = static_cast<uint8_t>(n.listed & ~bit(tier));
    }
    if (n.in(tier) && n.children[t] == 0 && n.pins == 0) {
      policies_[t]->insert(item_of_run(node, tier), now);
      n.listed = static_cast<uint8_t>(n.listed | bit(tier));
    }
  }
}

void Cache::refresh_state(uint32_t checkpoint, double now) {
  Checkpoint& c = tree_.checkpoint(checkpoint);
  for (size_t t = 0; t < kTiers; ++t) {
    const auto tier = static_cast<Tier>(t);
    if ((c.listed & bit(tier)) != 0) {
      policies_[t]->erase(item_id(checkpoint, Item::Kind::kState));
      c.listed = static_cast<uint8_t>(c.listed & ~bit(tier));
    }
    if (c.in(tier) && c.pins == 0 && !c.writing) {
      policies_[t]->insert(item_of_state(checkpoint, tier), now);
      c.listed = static_cast<uint8_t>(c.listed | bit(tier));
    }
  }
}

bool Cache::make_room(Tier tier, int64_t bytes, double now) {
  const auto t = static_cast<size_t>(tier);
  const int64_t budget = config_.tiers[t].budget_bytes;
  while (used_[t] + bytes > budget) {
    uint32_t id = 0;
    if (!policies_[t]->victim(now, &id)) {
      return false;
    }
    if (keep_below(id, tier, now)) {
      continue;  // not a candidate any more: it waits for its copy
    }
    if (id % 2 == 1) {
      evict_run(id / 2, tier, now);
    } else {
      evict_state(id / 2, tier, now);
    }
  }
  return true;
}

void Cache::evict_state(uint32_t checkpoint, Tier tier, double now) {
  const auto t = static_cast<size_t>(tier);
  Checkpoint& c = tree_.checkpoint(checkpoint);
  const uint32_t node = c.node;
  check(c.in(tier), "only what is there is evicted");
  if ((c.listed & bit(tier)) != 0) {
    policies_[t]->erase(item_id(checkpoint, Item::Kind::kState));
    c.listed = static_cast<uint8_t>(c.listed & ~bit(tier));
  }
  charge(tier, c.session, -state_bytes(c, tier));
  note_drop(c, tier);
  slots_[t].give(c.slots[t]);
  c.slots[t] = kNoId;
  if (c.rows > 0) {
    pages_[t].give(c.tails[t]);
    c.tails[t] = kNoId;
  }
  c.tiers = static_cast<uint8_t>(c.tiers & ~bit(tier));
  remove_if_gone(checkpoint);
  refresh_run(node, now);  // it may be dead now
}

void Cache::remove_if_gone(uint32_t checkpoint) {
  const Checkpoint& c = tree_.checkpoint(checkpoint);
  if (c.tiers == 0 && c.pins == 0) {
    stats_.states_wasted[static_cast<size_t>(c.kind)] += c.uses == 0 && !c.writing ? 1 : 0;
    const uint32_t session = c.session;
    tree_.remove_checkpoint(checkpoint);
    drop_session(session);
  }
}

void Cache::evict_run(uint32_t node, Tier tier, double now) {
  const auto t = static_cast<size_t>(tier);
  for (uint32_t c = tree_.node(node).checkpoint; c != kNone;) {
    const uint32_t next = tree_.checkpoint(c).next;
    if (tree_.checkpoint(c).in(tier)) {
      evict_state(c, tier, now);
    }
    c = next;
  }
  Node& n = tree_.node(node);
  check(n.in(tier) && n.children[t] == 0 && n.pins == 0, "only a free leaf is evicted");
  if ((n.listed & bit(tier)) != 0) {
    policies_[t]->erase(item_id(node, Item::Kind::kRun));
    n.listed = static_cast<uint8_t>(n.listed & ~bit(tier));
  }
  charge(tier, n.session, -run_bytes(n));
  note_drop(n, tier);
  pages_[t].give(n.pages[t]);
  n.pages[t].clear();
  spare_pages_.push_back(std::move(n.pages[t]));
  n.pages[t] = {};
  n.tiers = static_cast<uint8_t>(n.tiers & ~bit(tier));
  Node& parent = tree_.node(n.parent);
  --parent.children[t];
  parent.last_used = std::max(parent.last_used, n.last_used);
  const uint32_t above = n.parent;
  if (n.tiers == 0) {
    tree_.make_ghost(node);
    ghost_order_.emplace_back(node, n.generation);
    bound_ghosts();
  }
  refresh_run(above, now);
}

/// What hangs on a run in that tier, and the run, as far as nobody uses it.
void Cache::evict_branch(uint32_t node, Tier tier, double now) {
  const auto t = static_cast<size_t>(tier);
  std::vector<std::pair<uint32_t, uint32_t>> children;
  for (uint32_t i = tree_.node(node).child; i != kNone; i = tree_.node(i).next) {
    children.emplace_back(i, tree_.node(i).generation);
  }
  for (const auto& [i, generation] : children) {
    if (tree_.alive(i) && tree_.node(i).generation == generation && tree_.node(i).in(tier)) {
      evict_branch(i, tier, now);
    }
  }
  for (uint32_t c = tree_.node(node).checkpoint; c != kNone;) {
    const uint32_t next = tree_.checkpoint(c).next;
    if ((tree_.checkpoint(c).listed & bit(tier)) != 0) {
      evict_state(c, tier, now);
    }
    c = next;
  }
  const Node& n = tree_.node(node);
  if (node != kRoot && n.in(tier) && n.children[t] == 0 && n.pins == 0) {
    evict_run(node, tier, now);
  }
}

/// Evicts from a tier what `is_old` says of states and of runs that no state needs any more.
template <typename IsOld>
void Cache::evict_all(Tier tier, double now, const IsOld& is_old) {
  for (uint32_t c = 0; c < tree_.checkpoints_end(); ++c) {
    if ((tree_.checkpoint(c).listed & bit(tier)) != 0 && is_old(tree_.checkpoint(c))) {
      evict_state(c, tier, now);
    }
  }
  for (bool again = true; again;) {
    again = false;
    for (uint32_t i = 1; i < tree_.nodes_end(); ++i) {
      if (tree_.alive(i) && (tree_.node(i).listed & bit(tier)) != 0 && is_old(tree_.node(i)) &&
          item_of_run(i, tier).dead) {
        evict_run(i, tier, now);
        again = true;
      }
    }
  }
}

void Cache::forget(uint64_t session, double now) {
  const uint32_t s = session_by_id_.find(session);
  if (s == kNone) {
    return;
  }
  deleting_ = true;
  for (int t = 0; t < kTiers; ++t) {
    evict_all(static_cast<Tier>(t), now, [s](const auto& held) { return held.session == s; });
  }
  deleting_ = false;
}

void Cache::expire(double now) {
  for (int t = 0; t < kTiers; ++t) {
    const double ttl = config_.tiers[static_cast<size_t>(t)].ttl_seconds;
    if (ttl > 0) {
      evict_all(static_cast<Tier>(t), now,
                [&](const auto& held) { return held.last_used + ttl <= now; });
    }
  }
}

void Cache::remove_ghosts(uint32_t node) {
  while (tree_.node(node).child != kNone) {
    remove_ghosts(tree_.node(node).child);
  }
  const uint32_t session = tree_.node(node).session;
  tree_.remove(node);
  drop_session(session);
}

void Cache::bound_ghosts() {
  while (tree_.ghosts() > config_.ghosts_max && !ghost_order_.empty()) {
    const auto [node, generation] = ghost_order_.front();
    ghost_order_.pop_front();
    const Node& n = tree_.node(node);
    if (tree_.alive(node) && n.generation == generation && n.keys.empty()) {
      remove_ghosts(node);
    }
  }
  // Runs that came back to life leave stale entries behind.
  while (static_cast<int64_t>(ghost_order_.size()) > 4 * (config_.ghosts_max + 16)) {
    ghost_order_.pop_front();
  }
}

void Cache::hold_session(uint32_t session) { ++sessions_[session].refs; }

void Cache::drop_session(uint32_t session) {
  SessionState& s = sessions_[session];
  check(s.refs > 0, "a session is dropped once");
  if (--s.refs > 0) {
    return;
  }
  session_order_.emplace_back(session, s.generation);
  while (static_cast<int64_t>(session_order_.size()) > config_.sessions_max) {
    const auto [old, generation] = session_order_.front();
    session_order_.pop_front();
    SessionState& o = sessions_[old];
    if (o.refs == 0 && o.generation == generation) {
      session_by_id_.erase(o.view.id);
      o = SessionState{};
      o.generation = generation + 1;
      free_sessions_.push_back(old);
    }
  }
}

}  // namespace triax::cache
