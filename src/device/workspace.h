// Scratch memory that is taken and given back in nested scopes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace triax {

/// A stack of bytes. Blocks are kept when given back, so a step that repeats allocates nothing.
/// Alignment  64 bytes. Contents are not defined.
class Workspace {
 public:
  Workspace() = default;
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  /// Everything allocated after its construction is given back when it ends.
  class Scope {
   public:
    explicit Scope(Workspace& workspace)
        : workspace_(workspace), block_(workspace.block_), used_(workspace.used_) {}
    ~Scope() {
      workspace_.block_ = block_;
      workspace_.used_ = used_;
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

    /// `count` objects of T, uninitialised; valid until this scope (or an outer one) ends.
    template <typename T>
    T* take(int64_t count) {
      return static_cast<T*>(workspace_.take_bytes(count * static_cast<int64_t>(sizeof(T))));
    }

   private:
    Workspace& workspace_;
    size_t block_;
    int64_t used_;
  };

  /// Bytes held from the system.
  int64_t bytes_held() const;

 private:
  struct FreeBlock {
    void operator()(std::byte* p) const;
  };
  struct Block {
    std::unique_ptr<std::byte, FreeBlock> data;
    int64_t bytes = 0;
  };
  void* take_bytes(int64_t bytes);

  std::vector<Block> blocks_;
  size_t block_ = 0;  // index of the block in use
  int64_t used_ = 0;  // bytes used in it
};

}  // namespace triax
