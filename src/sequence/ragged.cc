#include "sequence/ragged.h"

#include <fmt/core.h>

#include <algorithm>

namespace triax::sequence {

Status check_ragged(std::string_view operation, std::span<const int64_t> cu_seqlens,
                    size_t sequences, int64_t tokens) {
  if (cu_seqlens.size() != sequences + 1) {
    return Status::invalid_argument(fmt::format("{}: 'cu_seqlens' has {} entries, expected {}",
                                                operation, cu_seqlens.size(), sequences + 1));
  }
  if (cu_seqlens.front() != 0 || cu_seqlens.back() > tokens) {
    return Status::invalid_argument(
        fmt::format("{}: 'cu_seqlens' runs from {} to {}, expected from 0 to at most {}", operation,
                    cu_seqlens.front(), cu_seqlens.back(), tokens));
  }
  for (size_t n = 0; n < sequences; ++n) {
    if (cu_seqlens[n + 1] < cu_seqlens[n]) {
      return Status::invalid_argument(
          fmt::format("{}: 'cu_seqlens' falls from {} to {} at sequence {}, expected ascending",
                      operation, cu_seqlens[n], cu_seqlens[n + 1], n));
    }
  }
  return {};
}

Status check_slots(std::string_view operation, std::span<const SlotList> lists, int64_t pool,
                   Workspace& workspace) {
  Workspace::Scope scope(workspace);
  auto* taken = scope.take<uint8_t>(pool);
  std::fill(taken, taken + pool, uint8_t{0});
  for (const SlotList& list : lists) {
    for (size_t i = 0; i < list.slots.size(); ++i) {
      const int32_t slot = list.slots[i];
      if (slot < list.lowest || slot >= pool) {
        return Status::invalid_argument(fmt::format("{}: '{}' entry {} is {}, expected in [{}, {})",
                                                    operation, list.name, i, slot, list.lowest,
                                                    pool));
      }
      if (slot >= 0 && taken[slot]++ != 0) {
        return Status::invalid_argument(
            fmt::format("{}: '{}' entry {} is {}, a slot that is already taken in this call",
                        operation, list.name, i, slot));
      }
    }
  }
  return {};
}

}  // namespace triax::sequence
