// The prefix tree: runs of whole blocks, and the checkpoints at their ends. Links and keys only;
// what may go and what must stay is decided above (cache.h).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "cache/config.h"
#include "cache/flat_map.h"
#include "cache/id_pool.h"
#include "cache/key.h"
#include "cache/policy.h"

namespace triax::cache {

/// The root of the tree: the empty prefix. It holds no blocks and is in every tier.
inline constexpr uint32_t kRoot = 0;

/// Runs are cut at this many blocks, so that a run is a fair unit of eviction.
inline constexpr int32_t kRunBlocksMax = 128;

/// A run of blocks. `keys` is empty once it is in no tier: then it is a ghost, which remembers only
/// that this prefix has been here.
struct Node {
  uint32_t parent = kNone;
  uint32_t child = kNone;  // first of the children, linked by next and previous
  uint32_t next = kNone;
  uint32_t previous = kNone;
  uint32_t checkpoint = kNone;  // first of those at its end, linked by Checkpoint::next
  uint32_t session = kNone;
  uint32_t generation = 0;
  int32_t first_block = 0;
  int32_t blocks = 0;
  int32_t pins = 0;        // leases whose path ends here, and transfers
  uint8_t tiers = 0;       // bit t: all its pages are in tier t, and those of all above it
  uint8_t listed = 0;      // bit t: the policy of tier t has it
  bool had_state = false;  // a checkpoint has been at its end
  std::array<int32_t, kTiers> children{};  // those with bit t
  std::array<std::vector<PageId>, kTiers> pages;
  std::vector<Key> keys;
  Key first, last;
  double last_used = 0;
  double created = 0;

  int32_t end_block() const { return first_block + blocks; }
  int64_t end_tokens() const { return end_block() * kBlock; }
  bool in(Tier tier) const { return (tiers >> index(tier) & 1) != 0; }
};

/// A state that has seen exactly 64 * end_block(node) + rows tokens. In no tier: a tombstone.
struct Checkpoint {
  Key key;  // of exactly these tokens
  uint32_t node = kNone;
  uint32_t next = kNone;
  uint32_t session = kNone;
  uint32_t generation = 0;
  int32_t rows = 0;  // tokens beyond the node, 0..63; with a page of its own when not 0
  int32_t pins = 0;  // leases that read it, and transfers
  uint32_t uses = 0;
  uint8_t tiers = 0;
  uint8_t listed = 0;
  uint8_t refused = 0;  // bit t: a copy to tier t failed, so eviction does not wait for one again
  AnchorKind kind = AnchorKind::kPromptEnd;
  bool writing = false;  // published, not committed
  bool superseded = false;
  std::array<SlotId, kTiers> slots{kNoId, kNoId, kNoId, kNoId};
  std::array<PageId, kTiers> tails{kNoId, kNoId, kNoId, kNoId};
  double last_used = 0;
  double created = 0;

  bool in(Tier tier) const { return (tiers >> index(tier) & 1) != 0; }
};

class Tree {
 public:
  Tree();

  Node& node(uint32_t i) { return nodes_[i]; }
  const Node& node(uint32_t i) const { return nodes_[i]; }
  Checkpoint& checkpoint(uint32_t i) { return checkpoints_[i]; }
  const Checkpoint& checkpoint(uint32_t i) const { return checkpoints_[i]; }
  uint32_t nodes_end() const { return static_cast<uint32_t>(nodes_.size()); }
  uint32_t checkpoints_end() const { return static_cast<uint32_t>(checkpoints_.size()); }
  bool alive(uint32_t node) const { return node == kRoot || nodes_[node].blocks > 0; }
  int64_t ghosts() const { return ghosts_; }

  /// Where a prompt leaves the tree.
  struct Place {
    uint32_t node = kRoot;     // the deepest whose blocks all match
    uint32_t partial = kNone;  // a child of it of which the first `common` blocks match
    int32_t common = 0;        // > 0 with `partial`
  };
  /// The deepest match of `blocks`. `hint`: a node that is likely on the path (its place changes
  /// nothing but the time).
  Place find(std::span<const Key> blocks, uint32_t hint) const;

  /// The run that begins with this block; kNone: there is none.
  uint32_t starting_with(const Key& first) const { return by_first_.find(first); }

  /// A new run below `parent`.
  uint32_t add(uint32_t parent, std::span<const Key> keys);
  /// A ghost becomes a run again.
  void revive(uint32_t node, std::span<const Key> keys);
  /// A run in no tier becomes a ghost.
  void make_ghost(uint32_t node);
  /// Cuts a run in two; the new node is the upper part, with the first `blocks`. Pages follow;
  /// checkpoints, pins and children stay with the lower part, which keeps its index.
  uint32_t split(uint32_t node, int32_t blocks);
  /// Takes out a node without children and checkpoints.
  void remove(uint32_t node);

  uint32_t add_checkpoint(uint32_t node, int32_t rows, Key key);
  void remove_checkpoint(uint32_t checkpoint);
  /// Returns    kNone when there is none
  uint32_t find_checkpoint(uint32_t node, int32_t rows, const Key& key) const;

 private:
  uint32_t new_node();
  void set_keys(Node& node, std::span<const Key> keys);
  void clear_keys(Node& node);
  void link(uint32_t node, uint32_t parent);
  void unlink(uint32_t node);

  std::vector<Node> nodes_;
  std::vector<uint32_t> free_nodes_;
  std::vector<Checkpoint> checkpoints_;
  std::vector<uint32_t> free_checkpoints_;
  FlatMap<Key> by_first_;  // first block's key -> node: chained keys name the parent too
  std::vector<std::vector<Key>> spare_keys_;  // buffers of runs that are gone, to be used again
  int64_t ghosts_ = 0;
};

}  // namespace triax::cache
