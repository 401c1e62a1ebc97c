// What a cache remembers of leases and sessions; for cache*.cc only.
#pragma once

#include "cache/cache.h"

namespace triax::cache {

struct Cache::LeaseState {
  Lease view;
  bool open = false;
  bool counted = false;  // among its session's active requests
  uint32_t generation = 0;
  uint32_t node = kRoot;    // pinned: the path of all shared pages
  std::vector<PageId> own;  // pages beyond it
  uint32_t session = kNone;
  uint32_t reading = kNone;       // the checkpoint at read_slot, pinned until state_read
  uint32_t resumed_from = kNone;  // the same afterwards, for what it supersedes
  uint32_t resumed_generation = 0;
  uint32_t writing = kNone;  // a publication without commit
  int64_t published = 0;     // its furthest checkpoint
  uint32_t newest = kNone;   // that checkpoint
  uint32_t newest_generation = 0;
  AnchorQuery query;  // of its prompt
};

struct Cache::SessionState {
  Session view;
  uint32_t refs = 0;  // nodes, checkpoints and leases of it
  uint32_t generation = 0;
  uint32_t tip = kRoot;  // node of its last checkpoint: where the next prompt is looked for
  uint32_t tip_generation = 0;
  std::vector<Key> tail;  // of its last prompt, the last kTailBlocks
  int64_t blocks = 0;     // whole blocks of that prompt
};

/// A copy between tiers, planned and not confirmed. Holds room in `to`; pins what it reads and the
/// run that it will hang on. Runs may be cut meanwhile: pages are kept by block.
struct Cache::TransferState {
  bool open = false;
  Tier from = Tier::kDevice;
  Tier to = Tier::kDevice;
  uint64_t id = 0;
  uint32_t checkpoint = kNone;
  uint32_t attach = kRoot;  // the deepest run of its path in `to` when it was planned
  int32_t first_block = 0;
  std::vector<PageId> pages;  // in `to`, from first_block to the end of the checkpoint's run
  SlotId slot = kNoId;
  PageId tail = kNoId;
  std::vector<LeaseId> waiting;
};

}  // namespace triax::cache
