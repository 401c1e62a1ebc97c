// Hands out small integers: a page's or a slot's place in memory that somebody else owns.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace triax::cache {

using PageId = int32_t;
using SlotId = int32_t;
inline constexpr int32_t kNoId = -1;

/// Ids from 0; a freed one is given out again before a new one is made, the last freed first. So no
/// id is ever above the highest number of ids in use at one time.
class IdPool {
 public:
  int32_t take() {
    if (free_.empty()) {
      return next_++;
    }
    const int32_t id = free_.back();
    free_.pop_back();
    return id;
  }

  /// Appends `count` ids to `out`.
  void take(int64_t count, std::vector<int32_t>& out) {
    const auto reused = std::min<size_t>(free_.size(), static_cast<size_t>(count));
    out.insert(out.end(), free_.end() - static_cast<std::ptrdiff_t>(reused), free_.end());
    free_.resize(free_.size() - reused);
    for (auto i = static_cast<int64_t>(reused); i < count; ++i) {
      out.push_back(next_++);
    }
  }

  void give(int32_t id) { free_.push_back(id); }
  void give(std::span<const int32_t> ids) { free_.insert(free_.end(), ids.begin(), ids.end()); }

  int64_t in_use() const { return next_ - static_cast<int64_t>(free_.size()); }
  int32_t limit() const { return next_; }  // every id is below
  const std::vector<int32_t>& free_ids() const { return free_; }

 private:
  std::vector<int32_t> free_;
  int32_t next_ = 0;
};

}  // namespace triax::cache
