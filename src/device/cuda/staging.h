// Small arrays of the host made available on the GPU. Internal to device/cuda.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "device/cuda/cuda_library.h"

namespace triax {

/// Memory for the metadata of one step: pinned on the host, mirrored on the GPU, handed out from
/// the front. The same sequence of sizes gets the same addresses in every step.
class StagingArena {
 public:
  StagingArena(const CudaLibrary& library, void* stream) : library_(library), stream_(stream) {}
  StagingArena(const StagingArena&) = delete;
  StagingArena& operator=(const StagingArena&) = delete;
  ~StagingArena();

  /// Takes memory for so many bytes, and no more later: while a step is captured it cannot.
  Status reserve(int64_t bytes) {
    Status status = grow(bytes);
    fixed_ = true;
    return status;
  }

  /// Starts anew at the front; waits until the GPU has read what was staged before.
  Status reset();

  /// The GPU's address of an array that holds `bytes` bytes of `data`. An array that was staged
  /// since reset, and still holds the same, is not copied again.
  /// `now`: the copy is enqueued at once; else upload() does it.
  Result<const void*> stage(const void* data, int64_t bytes, bool now);

  /// Enqueues the copy of everything staged since it was made, also before reset.
  Status upload();

 private:
  struct Chunk {
    std::byte* pinned = nullptr;
    std::byte* device = nullptr;
    int64_t bytes = 0;
    int64_t used = 0;
    int64_t used_max = 0;
  };
  struct Entry {
    int64_t bytes;
    const std::byte* pinned;
    const std::byte* device;
  };
  Status grow(int64_t bytes);
  Status enqueue(const Chunk& chunk, int64_t begin, int64_t bytes);

  const CudaLibrary& library_;
  void* stream_;
  std::vector<Chunk> chunks_;
  size_t chunk_ = 0;
  std::unordered_map<const void*, Entry> entries_;
  void* read_ = nullptr;  // event: the GPU has read all of it
  bool pending_ = false;
  bool fixed_ = false;  // may not grow
};

}  // namespace triax
