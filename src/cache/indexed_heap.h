// A priority queue whose members can change their place: the least key first, ties by id.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "cache/flat_map.h"

namespace triax::cache {

/// Ids are dense small integers. set, erase: O(log n).
template <typename K>
class IndexedHeap {
 public:
  bool empty() const { return heap_.empty(); }
  size_t size() const { return heap_.size(); }
  uint32_t top() const { return heap_.front().id; }
  const K& top_key() const { return heap_.front().key; }
  bool contains(uint32_t id) const { return id < place_.size() && place_[id] != kNone; }

  /// Inserts, or moves to another key.
  void set(uint32_t id, K key) {
    if (id >= place_.size()) {
      place_.resize(static_cast<size_t>(id) * 2 + 16, kNone);
    }
    if (place_[id] == kNone) {
      heap_.push_back({key, id});
      up(heap_.size() - 1);
      return;
    }
    const size_t i = place_[id];
    heap_[i].key = key;
    up(i);
    down(place_[id]);
  }

  /// Does nothing when it is not there.
  void erase(uint32_t id) {
    if (!contains(id)) {
      return;
    }
    const size_t i = place_[id];
    place_[id] = kNone;
    const Cell last = heap_.back();
    heap_.pop_back();
    if (i < heap_.size()) {
      heap_[i] = last;
      place_[last.id] = static_cast<uint32_t>(i);
      up(i);
      down(place_[last.id]);
    }
  }

 private:
  struct Cell {
    K key;
    uint32_t id;
    bool operator<(const Cell& other) const {
      return key < other.key || (!(other.key < key) && id < other.id);
    }
  };

  void up(size_t i) {
    const Cell cell = heap_[i];
    while (i > 0 && cell < heap_[(i - 1) / 2]) {
      move((i - 1) / 2, i);
      i = (i - 1) / 2;
    }
    put(cell, i);
  }

  void down(size_t i) {
    const Cell cell = heap_[i];
    for (;;) {
      size_t child = 2 * i + 1;
      if (child >= heap_.size()) {
        break;
      }
      child += child + 1 < heap_.size() && heap_[child + 1] < heap_[child] ? 1 : 0;
      if (!(heap_[child] < cell)) {
        break;
      }
      move(child, i);
      i = child;
    }
    put(cell, i);
  }

  void move(size_t from, size_t to) { put(heap_[from], to); }
  void put(const Cell& cell, size_t i) {
    heap_[i] = cell;
    place_[cell.id] = static_cast<uint32_t>(i);
  }

  std::vector<Cell> heap_;
  std::vector<uint32_t> place_;
};

}  // namespace triax::cache
