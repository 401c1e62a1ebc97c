// Where the next prompt leaves the last one: how far before a prompt's end its checkpoint belongs.
#pragma once

#include <array>
#include <cstdint>

#include "cache/policy.h"

namespace triax::cache {

/// A checkpoint `m` blocks before the end costs m blocks of prefill each time the session goes on,
/// and saves the whole prompt when the next one differs within the last m blocks (a trailing
/// reminder, a rendered generation prompt). The distances seen decide.
class TailModel {
 public:
  TailModel() { fit(); }

  /// See Policy::prompt_compared.
  void observe(int32_t back, int64_t blocks);
  /// Blocks to stay before the end.
  int32_t distance() const { return distance_; }

 private:
  void fit();

  // Before anything was seen: of 24 prompts three differ within their last three blocks.
  std::array<double, kTailBlocks + 1> count_{21, 1, 1, 1};
  std::array<double, kTailBlocks + 1> loss_{0, 1000, 1000, 1000};  // blocks computed again
  int32_t distance_ = 0;
  int32_t until_fit_ = 1;
};

}  // namespace triax::cache
