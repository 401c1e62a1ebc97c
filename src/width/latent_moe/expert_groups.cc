// A counting sort by expert.
#include "width/latent_moe/expert_groups.h"

#include <algorithm>

namespace triax::width::internal {

ExpertGroups::ExpertGroups(ConstTensorView ids, int64_t experts, Workspace::Scope& scope)
    : experts_(experts),
      routes_(ids.size(1)),
      offsets_(scope.take<int64_t>(experts + 1)),
      tokens_(scope.take<int64_t>(ids.elements())),
      rows_(scope.take<int64_t>(ids.elements())) {
  const int64_t tokens = ids.size(0);
  const auto id = [&](int64_t t, int64_t j) {
    return static_cast<int64_t>(ids.data<int32_t>()[t * ids.stride(0) + j]);
  };
  std::fill_n(offsets_, experts + 1, int64_t{0});
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t j = 0; j < routes_; ++j) {
      ++offsets_[id(t, j) + 1];
    }
  }
  for (int64_t e = 0; e < experts; ++e) {
    offsets_[e + 1] += offsets_[e];
  }
  // Each offset moves to its group's end while rows are handed out, then one place back.
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t j = 0; j < routes_; ++j) {
      const int64_t row = offsets_[id(t, j)]++;
      rows_[t * routes_ + j] = row;
      tokens_[row] = t;
    }
  }
  for (int64_t e = experts; e > 0; --e) {
    offsets_[e] = offsets_[e - 1];
  }
  offsets_[0] = 0;
}

}  // namespace triax::width::internal
