// The routes of a batch, sorted by expert, so that each expert's weights are read once.
#pragma once

#include <cstdint>

#include "device/workspace.h"
#include "tensor/tensor.h"

namespace triax::width::internal {

/// Rows [begin(e), end(e)) of the grouped order belong to expert e; within one expert, tokens
/// ascend. Arrays live in the workspace of the scope that made them.
class ExpertGroups {
 public:
  /// ids [T, k], each in [0, experts), distinct within a token.
  ExpertGroups(ConstTensorView ids, int64_t experts, Workspace::Scope& scope);

  int64_t experts() const { return experts_; }
  int64_t begin(int64_t expert) const { return offsets_[expert]; }
  int64_t end(int64_t expert) const { return offsets_[expert + 1]; }
  int64_t rows() const { return offsets_[experts_]; }

  /// The token of a grouped row.
  int64_t token(int64_t row) const { return tokens_[row]; }
  /// The grouped row of route j of token t.
  int64_t row(int64_t t, int64_t j) const { return rows_[t * routes_ + j]; }
  /// Whether the expert's tokens follow each other, so that its input rows need no copy.
  bool consecutive(int64_t expert) const {
    const int64_t first = begin(expert);
    const int64_t last = end(expert) - 1;
    return last >= first && tokens_[last] - tokens_[first] == last - first;
  }

 private:
  int64_t experts_;
  int64_t routes_;
  int64_t* offsets_;  // [E + 1]
  int64_t* tokens_;   // [T k]
  int64_t* rows_;     // [T, k]
};

}  // namespace triax::width::internal
