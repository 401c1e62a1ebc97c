#include "cache/tree.h"

#include <algorithm>

#include "base/check.h"

namespace triax::cache {

Tree::Tree() {
  nodes_.emplace_back();
  nodes_[kRoot].tiers = (1 << kTiers) - 1;
  nodes_[kRoot].pins = 1;
}

Tree::Place Tree::find(std::span<const Key> blocks, uint32_t hint) const {
  const auto count = static_cast<int32_t>(blocks.size());
  // A chained key that agrees proves the whole path above it.
  uint32_t at = hint;
  while (at != kRoot) {
    const Node& node = nodes_[at];
    if (node.end_block() <= count &&
        blocks[static_cast<size_t>(node.end_block() - 1)] == node.last) {
      break;
    }
    at = node.parent;
  }
  for (;;) {
    const int32_t begin = nodes_[at].end_block();
    if (begin == count) {
      return {at, kNone, 0};
    }
    const uint32_t next = by_first_.find(blocks[static_cast<size_t>(begin)]);
    if (next == kNone) {
      return {at, kNone, 0};
    }
    const Node& node = nodes_[next];
    if (node.end_block() <= count &&
        blocks[static_cast<size_t>(node.end_block() - 1)] == node.last) {
      at = next;
      continue;
    }
    if (node.keys.empty()) {
      return {at, kNone, 0};  // a ghost knows its ends only
    }
    int32_t low = 1;  // blocks that agree; the first does
    int32_t high = std::min(node.blocks, count - begin);
    while (low < high) {
      const int32_t middle = (low + high + 1) / 2;
      const auto i = static_cast<size_t>(middle - 1);
      if (node.keys[i] == blocks[static_cast<size_t>(begin) + i]) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return {at, next, low};
  }
}

uint32_t Tree::new_node() {
  if (free_nodes_.empty()) {
    nodes_.emplace_back();
    return nodes_end() - 1;
  }
  const uint32_t i = free_nodes_.back();
  free_nodes_.pop_back();
  return i;
}

void Tree::set_keys(Node& node, std::span<const Key> keys) {
  if (!spare_keys_.empty()) {
    node.keys = std::move(spare_keys_.back());
    spare_keys_.pop_back();
  } else {
    node.keys.reserve(kRunBlocksMax);
  }
  node.keys.assign(keys.begin(), keys.end());
}

void Tree::clear_keys(Node& node) {
  if (node.keys.capacity() > 0) {
    node.keys.clear();
    spare_keys_.push_back(std::move(node.keys));
    node.keys = {};
  }
}

void Tree::link(uint32_t node, uint32_t parent) {
  Node& n = nodes_[node];
  Node& p = nodes_[parent];
  n.parent = parent;
  n.next = p.child;
  n.previous = kNone;
  if (p.child != kNone) {
    nodes_[p.child].previous = node;
  }
  p.child = node;
  for (int t = 0; t < kTiers; ++t) {
    p.children[static_cast<size_t>(t)] += n.tiers >> t & 1;
  }
}

void Tree::unlink(uint32_t node) {
  Node& n = nodes_[node];
  Node& p = nodes_[n.parent];
  (n.previous == kNone ? p.child : nodes_[n.previous].next) = n.next;
  if (n.next != kNone) {
    nodes_[n.next].previous = n.previous;
  }
  for (int t = 0; t < kTiers; ++t) {
    p.children[static_cast<size_t>(t)] -= n.tiers >> t & 1;
  }
}

uint32_t Tree::add(uint32_t parent, std::span<const Key> keys) {
  check(!keys.empty() && keys.size() <= kRunBlocksMax, "a run holds 1..kRunBlocksMax blocks");
  const uint32_t i = new_node();
  Node& n = nodes_[i];
  n.first_block = nodes_[parent].end_block();
  n.blocks = static_cast<int32_t>(keys.size());
  set_keys(n, keys);
  n.first = keys.front();
  n.last = keys.back();
  check(by_first_.find(n.first) == kNone, "a run is added once");
  by_first_.set(n.first, i);
  link(i, parent);
  return i;
}

void Tree::revive(uint32_t node, std::span<const Key> keys) {
  Node& n = nodes_[node];
  check(n.keys.empty() && n.first == keys.front() && n.last == keys.back(), "another run's keys");
  set_keys(n, keys);
  --ghosts_;
}

void Tree::make_ghost(uint32_t node) {
  Node& n = nodes_[node];
  check(n.tiers == 0 && n.pins == 0 && !n.keys.empty(), "only a run in no tier becomes a ghost");
  clear_keys(n);
  ++ghosts_;
}

uint32_t Tree::split(uint32_t node, int32_t blocks) {
  const uint32_t parent = nodes_[node].parent;
  unlink(node);
  const uint32_t upper = new_node();
  Node& lower_node = nodes_[node];
  Node& u = nodes_[upper];
  const auto cut = static_cast<std::ptrdiff_t>(blocks);
  check(blocks > 0 && blocks < lower_node.blocks && !lower_node.keys.empty(), "a cut inside a run");
  u.first_block = lower_node.first_block;
  u.blocks = blocks;
  u.session = lower_node.session;
  u.tiers = lower_node.tiers;
  u.last_used = lower_node.last_used;
  u.created = lower_node.created;
  set_keys(u, std::span(lower_node.keys).first(static_cast<size_t>(blocks)));
  u.first = u.keys.front();
  u.last = u.keys.back();
  lower_node.keys.erase(lower_node.keys.begin(), lower_node.keys.begin() + cut);
  lower_node.first = lower_node.keys.front();
  lower_node.first_block += blocks;
  lower_node.blocks -= blocks;
  for (size_t t = 0; t < kTiers; ++t) {
    std::vector<PageId>& pages = lower_node.pages[t];
    if ((u.tiers >> t & 1) != 0) {
      u.pages[t].assign(pages.begin(), pages.begin() + cut);
      pages.erase(pages.begin(), pages.begin() + cut);
    }
  }
  by_first_.set(u.first, upper);
  by_first_.set(lower_node.first, node);
  link(upper, parent);
  link(node, upper);
  return upper;
}

void Tree::remove(uint32_t node) {
  Node& n = nodes_[node];
  check(node != kRoot && n.child == kNone && n.checkpoint == kNone && n.pins == 0 && n.listed == 0,
        "only a bare leaf is removed");
  unlink(node);
  by_first_.erase(n.first);
  ghosts_ -= n.keys.empty() ? 1 : 0;
  clear_keys(n);
  const uint32_t generation = n.generation + 1;
  n = Node{};
  n.generation = generation;
  free_nodes_.push_back(node);
}

uint32_t Tree::add_checkpoint(uint32_t node, int32_t rows, Key key) {
  uint32_t i = checkpoints_end();
  if (free_checkpoints_.empty()) {
    checkpoints_.emplace_back();
  } else {
    i = free_checkpoints_.back();
    free_checkpoints_.pop_back();
  }
  Checkpoint& c = checkpoints_[i];
  c.key = key;
  c.node = node;
  c.rows = rows;
  c.next = nodes_[node].checkpoint;
  nodes_[node].checkpoint = i;
  return i;
}

void Tree::remove_checkpoint(uint32_t checkpoint) {
  Checkpoint& c = checkpoints_[checkpoint];
  check(c.tiers == 0 && c.pins == 0 && c.listed == 0, "only a tombstone is removed");
  uint32_t* link = &nodes_[c.node].checkpoint;
  while (*link != checkpoint) {
    link = &checkpoints_[*link].next;
  }
  *link = c.next;
  const uint32_t generation = c.generation + 1;
  c = Checkpoint{};
  c.generation = generation;
  free_checkpoints_.push_back(checkpoint);
}

uint32_t Tree::find_checkpoint(uint32_t node, int32_t rows, const Key& key) const {
  uint32_t i = nodes_[node].checkpoint;
  while (i != kNone && (checkpoints_[i].rows != rows || !(checkpoints_[i].key == key))) {
    i = checkpoints_[i].next;
  }
  return i;
}

}  // namespace triax::cache
