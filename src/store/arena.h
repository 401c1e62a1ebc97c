// One fixed piece of memory, handed out in parts of any size, without loss to fragmentation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "store/blob.h"

namespace triax::store {

/// An allocation is one range where one hole is large enough, else several, largest holes first:
/// it succeeds whenever that many bytes are free. Sizes are rounded up to 64 bytes. Thread-safe.
class Arena : public std::enable_shared_from_this<Arena> {
 public:
  static constexpr int64_t kGrain = 64;

  /// Address space for `bytes`; the system gives memory on first touch.
  /// Errors     kResourceExhausted
  static Result<std::shared_ptr<Arena>> create(int64_t bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Goes back to the arena when it ends; keeps the arena alive.
  class Allocation {
   public:
    Allocation(std::shared_ptr<Arena> arena, Pieces pieces)
        : arena_(std::move(arena)), pieces_(std::move(pieces)) {}
    ~Allocation() { arena_->release(pieces_); }
    Allocation(const Allocation&) = delete;
    Allocation& operator=(const Allocation&) = delete;
    const Pieces& pieces() const { return pieces_; }

   private:
    std::shared_ptr<Arena> arena_;
    Pieces pieces_;
  };

  /// Null when less than `bytes` are free.
  std::shared_ptr<Allocation> allocate(int64_t bytes);

  /// All of it, e.g. to register it with a GPU.
  std::span<std::byte> memory() const { return {base_, static_cast<size_t>(bytes_)}; }
  int64_t bytes() const { return bytes_; }
  int64_t bytes_used() const;
  static int64_t rounded(int64_t bytes) { return (bytes + kGrain - 1) / kGrain * kGrain; }

 private:
  Arena(std::byte* base, int64_t bytes);
  void release(const Pieces& pieces);
  void add_hole(int64_t offset, int64_t bytes);
  void remove_hole(std::map<int64_t, int64_t>::iterator hole);
  std::span<std::byte> cut(int64_t hole_offset, int64_t bytes, int64_t payload);

  std::byte* base_;
  int64_t bytes_;
  mutable std::mutex mutex_;
  int64_t used_ = 0;
  std::map<int64_t, int64_t> holes_;               // offset -> bytes
  std::set<std::pair<int64_t, int64_t>> by_size_;  // bytes, offset
};

}  // namespace triax::store
