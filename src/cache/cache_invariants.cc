// The self-check: everything that must agree, counted anew and compared.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "cache/cache_state.h"

namespace triax::cache {
namespace {

Status broken(std::string_view what, uint32_t where) {
  return Status::internal(fmt::format("cache: invariant broken: {} at {}", what, where));
}

}  // namespace

/// What check_invariants counts by walking, to be compared with the books.
struct Cache::Census {
  std::array<int64_t, kTiers> bytes{};
  std::array<std::vector<int32_t>, kTiers> pages, slots;  // all ids in use
  std::vector<int32_t> running;
  std::vector<int32_t> node_pins, checkpoint_pins;
  std::vector<uint32_t> session_refs;
  std::vector<std::array<int64_t, kTiers>> session_bytes;
  int64_t ghosts = 0;
};

Status Cache::count_leases(Census& census) const {
  ++census.node_pins[kRoot];  // the root's own
  for (uint32_t i = 0; i < leases_.size(); ++i) {
    const LeaseState& lease = leases_[i];
    if (!lease.open) {
      continue;
    }
    ++census.node_pins[lease.node];
    ++census.session_refs[lease.session];
    const auto bytes = static_cast<int64_t>(lease.own.size()) * config_.page_bytes;
    census.bytes[0] += bytes + (lease.view.write_slot == kNoId ? 0 : config_.running_state_bytes);
    census.session_bytes[lease.session][0] += bytes;
    census.pages[0].insert(census.pages[0].end(), lease.own.begin(), lease.own.end());
    (one_slot_size_ ? census.slots[0] : census.running).push_back(lease.view.write_slot);
    if (lease.reading != kNone) {
      ++census.checkpoint_pins[lease.reading];
      if (tree_.checkpoint(lease.reading).slots[0] != lease.view.read_slot ||
          lease.view.read_slot == kNoId) {
        return broken("a lease reads another slot than its checkpoint's", i);
      }
      if (one_slot_size_ && lease.view.read_slot == lease.view.write_slot) {
        return broken("read slot and write slot are one", i);
      }
    }
    if (!tree_.node(lease.node).in(Tier::kDevice)) {
      return broken("a lease's path is not on the device", i);
    }
    const int64_t have =
        (tree_.node(lease.node).end_block() + static_cast<int64_t>(lease.own.size())) * kBlock;
    if (lease.view.tokens != have) {
      return broken("a lease's pages do not reach to its tokens", i);
    }
  }
  return {};
}

Status Cache::count_transfers(Census& census) const {
  for (uint32_t i = 0; i < transfers_.size(); ++i) {
    const TransferState& transfer = transfers_[i];
    if (!transfer.open) {
      continue;
    }
    const auto t = static_cast<size_t>(transfer.to);
    const Checkpoint& c = tree_.checkpoint(transfer.checkpoint);
    if (!c.in(transfer.from) || transfer_by_id_.find(transfer.id) != i ||
        static_cast<int64_t>(transfer.pages.size()) !=
            tree_.node(c.node).end_block() - transfer.first_block) {
      return broken("a transfer lost its source, or is not as long as its path", i);
    }
    ++census.checkpoint_pins[transfer.checkpoint];
    ++census.node_pins[c.node];
    ++census.node_pins[transfer.attach];
    census.bytes[t] += static_cast<int64_t>(transfer.pages.size()) * config_.page_bytes +
                       state_bytes(c, transfer.to);
    census.pages[t].insert(census.pages[t].end(), transfer.pages.begin(), transfer.pages.end());
    census.slots[t].push_back(transfer.slot);
    if (c.rows > 0) {
      census.pages[t].push_back(transfer.tail);
    }
  }
  return {};
}

Status Cache::count_run(uint32_t i, Census& census) const {
  const Node& n = tree_.node(i);
  const Node& parent = tree_.node(n.parent);
  if (!tree_.alive(n.parent) || n.first_block != parent.end_block() ||
      tree_.starting_with(n.first) != i) {
    return broken("a run does not continue its parent, or cannot be found", i);
  }
  ++census.session_refs[n.session];
  census.ghosts += n.tiers == 0 ? 1 : 0;
  const size_t keys = n.tiers == 0 ? 0 : static_cast<size_t>(n.blocks);
  if (n.keys.size() != keys ||
      (keys > 0 && (n.keys.front() != n.first || n.keys.back() != n.last))) {
    return broken("a run's keys are not those of its blocks", i);
  }
  std::array<int32_t, kTiers> children{};
  for (uint32_t c = n.child; c != kNone; c = tree_.node(c).next) {
    if (tree_.node(c).parent != i) {
      return broken("a child names another parent", c);
    }
    for (size_t t = 0; t < kTiers; ++t) {
      children[t] += tree_.node(c).tiers >> t & 1;
    }
  }
  for (size_t t = 0; t < kTiers; ++t) {
    const auto tier = static_cast<Tier>(t);
    const bool here = n.in(tier);
    if (here && !parent.in(tier)) {
      return broken("a run is in a tier without its parent", i);
    }
    if (n.pages[t].size() != (here ? static_cast<size_t>(n.blocks) : 0)) {
      return broken("a run has not all its pages in a tier, or pages of a tier it is not in", i);
    }
    if (n.children[t] != children[t]) {
      return broken("a run miscounts its children", i);
    }
    const bool listed = (n.listed >> t & 1) != 0;
    if (listed != (here && children[t] == 0 && n.pins == 0)) {
      return broken("a policy has a run that may not go, or lacks one", i);
    }
    if (here) {
      census.bytes[t] += run_bytes(n);
      census.session_bytes[n.session][t] += run_bytes(n);
      census.pages[t].insert(census.pages[t].end(), n.pages[t].begin(), n.pages[t].end());
    }
  }
  return {};
}

Status Cache::count_states(uint32_t node, Census& census) const {
  for (uint32_t i = tree_.node(node).checkpoint; i != kNone; i = tree_.checkpoint(i).next) {
    const Checkpoint& c = tree_.checkpoint(i);
    ++census.session_refs[c.session];
    if (c.node != node || c.tiers == 0 || (c.rows == 0 && c.key != tree_.node(node).last)) {
      return broken("a checkpoint lies at another boundary than its key's, or nowhere", i);
    }
    for (size_t t = 0; t < kTiers; ++t) {
      const auto tier = static_cast<Tier>(t);
      if (c.in(tier) != (c.slots[t] != kNoId) ||
          (c.in(tier) && c.rows > 0) != (c.tails[t] != kNoId)) {
        return broken("a checkpoint's slot or tail page is not where it is", i);
      }
      if (c.in(tier) && !tree_.node(node).in(tier)) {
        return broken("a checkpoint lacks pages", i);
      }
      const bool listed = (c.listed >> t & 1) != 0;
      if (listed != (c.in(tier) && c.pins == 0 && !c.writing)) {
        return broken("a policy has a checkpoint that may not go, or lacks one", i);
      }
      if (c.in(tier)) {
        census.bytes[t] += state_bytes(c, tier);
        census.session_bytes[c.session][t] += state_bytes(c, tier);
        census.slots[t].push_back(c.slots[t]);
        if (c.rows > 0) {
          census.pages[t].push_back(c.tails[t]);
        }
      }
    }
  }
  return {};
}

Status Cache::compare_books(Census& census) const {
  if (census.ghosts != tree_.ghosts()) {
    return broken("ghosts are miscounted", 0);
  }
  const auto distinct = [](std::vector<int32_t>& ids, const IdPool& pool) {
    const auto used = static_cast<int64_t>(ids.size());
    ids.insert(ids.end(), pool.free_ids().begin(), pool.free_ids().end());
    std::sort(ids.begin(), ids.end());
    return used == pool.in_use() && std::adjacent_find(ids.begin(), ids.end()) == ids.end() &&
           (ids.empty() || (ids.front() == 0 && ids.back() == pool.limit() - 1));
  };
  for (uint32_t t = 0; t < kTiers; ++t) {
    if (census.bytes[t] != used_[t] || used_[t] > config_.tiers[t].budget_bytes) {
      return broken("a tier's bytes are miscounted or above its budget", t);
    }
    if (!distinct(census.pages[t], pages_[t]) || !distinct(census.slots[t], slots_[t])) {
      return broken("a page or slot has two owners, or none", t);
    }
  }
  if (!distinct(census.running, running_slots_)) {
    return broken("a running slot has two owners, or none", 0);
  }
  for (uint32_t i = 0; i < tree_.nodes_end(); ++i) {
    if (tree_.node(i).pins != census.node_pins[i]) {
      return broken("a run's pins are miscounted", i);
    }
  }
  for (uint32_t i = 0; i < tree_.checkpoints_end(); ++i) {
    if (tree_.checkpoint(i).pins != census.checkpoint_pins[i]) {
      return broken("a checkpoint's pins are miscounted", i);
    }
  }
  for (uint32_t i = 0; i < sessions_.size(); ++i) {
    if (sessions_[i].refs != census.session_refs[i] ||
        sessions_[i].view.bytes != census.session_bytes[i]) {
      return broken("a session's references or bytes are miscounted", i);
    }
  }
  return {};
}

Status Cache::check_invariants() const {
  Census census;
  census.node_pins.resize(tree_.nodes_end());
  census.checkpoint_pins.resize(tree_.checkpoints_end());
  census.session_refs.resize(sessions_.size());
  census.session_bytes.resize(sessions_.size());
  if (Status s = count_leases(census); !s.ok()) {
    return s;
  }
  if (Status s = count_transfers(census); !s.ok()) {
    return s;
  }
  for (uint32_t i = 0; i < tree_.nodes_end(); ++i) {
    if (!tree_.alive(i)) {
      continue;
    }
    if (i != kRoot) {
      if (Status s = count_run(i, census); !s.ok()) {
        return s;
      }
    }
    if (Status s = count_states(i, census); !s.ok()) {
      return s;
    }
  }
  return compare_books(census);
}

}  // namespace triax::cache
