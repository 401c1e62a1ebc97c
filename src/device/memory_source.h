// Where arrays and scratch memory come from: this process, or a GPU.
#pragma once

#include <cstdint>

namespace triax {

/// Ownership  outlives what it handed out
/// Threads    one at a time
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  /// `bytes` > 0 bytes, aligned to 64 at least, contents not defined.
  /// Errors     throws std::bad_alloc or one derived from it when there is no more
  virtual void* take(int64_t bytes) = 0;
  virtual void give_back(void* memory) noexcept = 0;
};

/// The memory of this process.
MemorySource& host_memory();

}  // namespace triax
