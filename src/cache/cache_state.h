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

}  // namespace triax::cache
