// A hash map for small keys: open addressing, linear probing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace triax::cache {

/// Nothing: of an index of 32 bits.
inline constexpr uint32_t kNone = 0xffffffff;

/// Maps keys to indices (never kNone).
template <typename K>
class FlatMap {
 public:
  /// Returns    kNone when the key is not there
  uint32_t find(const K& key) const {
    if (size_ == 0) {
      return kNone;
    }
    for (size_t i = home(key);; i = (i + 1) & mask_) {
      if (cells_[i].value == kNone) {
        return kNone;
      }
      if (cells_[i].key == key) {
        return cells_[i].value;
      }
    }
  }

  /// Inserts, or replaces the value.
  void set(const K& key, uint32_t value) {
    if ((size_ + 1) * 2 > cells_.size()) {
      grow();
    }
    size_t i = home(key);
    while (cells_[i].value != kNone && !(cells_[i].key == key)) {
      i = (i + 1) & mask_;
    }
    size_ += cells_[i].value == kNone ? 1 : 0;
    cells_[i] = {key, value};
  }

  /// Does nothing when the key is not there.
  void erase(const K& key) {
    if (size_ == 0) {
      return;
    }
    size_t hole = home(key);
    while (cells_[hole].value == kNone || !(cells_[hole].key == key)) {
      if (cells_[hole].value == kNone) {
        return;
      }
      hole = (hole + 1) & mask_;
    }
    --size_;
    // Whatever the hole would make unreachable moves back into it.
    for (size_t i = (hole + 1) & mask_; cells_[i].value != kNone; i = (i + 1) & mask_) {
      if (((i - home(cells_[i].key)) & mask_) >= ((i - hole) & mask_)) {
        cells_[hole] = cells_[i];
        hole = i;
      }
    }
    cells_[hole].value = kNone;
  }

  size_t size() const { return size_; }

 private:
  struct Cell {
    K key{};
    uint32_t value = kNone;
  };

  /// Numbers given out in steps of a power of two spread too (Fibonacci hashing).
  size_t home(const K& key) const {
    return (uint64_t{std::hash<K>{}(key)} * 0x9e3779b97f4a7c15ULL >> 20) & mask_;
  }

  void grow() {
    std::vector<Cell> old(cells_.empty() ? 16 : cells_.size() * 2);
    old.swap(cells_);
    mask_ = cells_.size() - 1;
    size_ = 0;
    for (const Cell& cell : old) {
      if (cell.value != kNone) {
        set(cell.key, cell.value);
      }
    }
  }

  std::vector<Cell> cells_;
  size_t mask_ = 0;
  size_t size_ = 0;
};

}  // namespace triax::cache
