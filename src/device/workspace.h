// Scratch memory that is taken and given back in nested scopes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/check.h"
#include "device/memory_source.h"

namespace triax {

/// A stack of bytes. Blocks are kept when given back, so a step that repeats allocates nothing.
/// Alignment  256 bytes, as cuBLASLt asks of its own. Contents are not defined.
/// Repetition the same sequence of requests gets the same addresses again
class Workspace {
 public:
  Workspace() : Workspace(host_memory()) {}
  /// Blocks come from `source`, which outlives this.
  explicit Workspace(MemorySource& source) : source_(&source) {}
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  /// Everything allocated after its construction is given back when it ends.
  class Scope {
   public:
    explicit Scope(Workspace& workspace)
        : workspace_(workspace),
          block_(workspace.block_),
          used_(workspace.used_),
          depth_(++workspace.depth_) {}
    ~Scope() {
      --workspace_.depth_;
      workspace_.block_ = block_;
      workspace_.used_ = used_;
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

    /// `count` objects of T, uninitialised; valid until this scope ends.
    /// Errors     aborts while a scope inside this one lives: its end would give the bytes back
    template <typename T>
    T* take(int64_t count) {
      check(depth_ == workspace_.depth_, "workspace: only the innermost scope takes memory");
      check(count >= 0 && count <= kBytesMax / static_cast<int64_t>(sizeof(T)),
            "workspace: size out of range");
      return static_cast<T*>(workspace_.take_bytes(count * static_cast<int64_t>(sizeof(T))));
    }

   private:
    Workspace& workspace_;
    size_t block_;
    int64_t used_;
    int depth_;
  };

  /// Bytes held from the source.
  int64_t bytes_held() const;

 private:
  static constexpr int64_t kBytesMax = int64_t{1} << 46;
  struct FreeBlock {
    MemorySource* source;
    void operator()(std::byte* p) const { source->give_back(p); }
  };
  struct Block {
    std::unique_ptr<std::byte, FreeBlock> data;
    int64_t bytes = 0;
  };
  void* take_bytes(int64_t bytes);

  MemorySource* source_;
  std::vector<Block> blocks_;
  size_t block_ = 0;  // index of the block in use
  int64_t used_ = 0;  // bytes used in it
  int depth_ = 0;     // scopes alive
};

}  // namespace triax
