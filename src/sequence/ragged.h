// Checks that operations over a ragged batch with slots in a pool share.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/status.h"
#include "device/workspace.h"

namespace triax::sequence {

/// cu_seqlens has sequences + 1 entries, starts at 0, ascends and ends at <= tokens.
Status check_ragged(std::string_view operation, std::span<const int64_t> cu_seqlens,
                    size_t sequences, int64_t tokens);

/// Slots of one kind: each in [lowest, pool).
struct SlotList {
  std::string_view name;
  std::span<const int32_t> slots;
  int32_t lowest = 0;
};

/// Every slot is in range, and those >= 0 are distinct, over all lists together.
Status check_slots(std::string_view operation, std::span<const SlotList> lists, int64_t pool,
                   Workspace& workspace);

}  // namespace triax::sequence
