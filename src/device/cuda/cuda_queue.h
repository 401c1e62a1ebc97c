// A GPU as operations see it: kernels, copies and memory in the order of one queue. No CUDA types.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/status.h"
#include "device/cuda/cuda_library.h"
#include "device/device.h"
#include "device/memory_source.h"

namespace triax {

class StagingArena;

/// A step that was captured: its kernels can be run again in one launch.
/// Ownership  the queue that made it outlives it; so must all memory that its kernels use
class CudaGraph {
 public:
  ~CudaGraph();
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

 private:
  friend class CudaQueue;
  CudaGraph(const CudaLibrary& library, std::unique_ptr<StagingArena> arena);
  const CudaLibrary& library_;
  std::unique_ptr<StagingArena> arena_;
  void* exec_ = nullptr;
};

/// One GPU's stream, its memory, and the library of kernels.
/// Order      everything runs in the order of the calls; only what says so waits for it
/// Errors     a Status that names what was done and CUDA's own error. Errors of kernels may come
///            with a later call: CUDA works that way
/// Threads    one at a time; a step belongs to the thread that called begin_step
class CudaQueue {
 public:
  /// Opens GPU number `index`.
  /// Errors     kUnavailable without library, driver or such a GPU, and why
  static Result<std::unique_ptr<CudaQueue>> open(int index);
  ~CudaQueue();
  CudaQueue(const CudaQueue&) = delete;
  CudaQueue& operator=(const CudaQueue&) = delete;

  int index() const { return index_; }
  const TriaxCudaGpu& gpu() const { return gpu_; }
  const CudaLibrary& library() const { return library_; }
  /// True where cuBLASLt is installed, which some products need.
  bool has_matmul_bf16() const;
  /// True where the fast kernels for Hopper run.
  bool is_sm90() const { return gpu_.major == 9 && gpu_.minor == 0; }

  /// Calls the library's `extern "C" int entry(const Args* args, void* stream)`. `entry` is a
  /// literal: its address is remembered.
  Status launch(const char* entry, const void* args);
  /// The same; false where the launcher says that it does not take such arguments, or is absent:
  /// another way must be taken then.
  Result<bool> try_launch(const char* entry, const void* args);
  /// Another function of the library, as its header declares it; aborts when it is absent.
  ///   queue.function<decltype(triax_cuda_x_scratch_bytes)>("triax_cuda_x_scratch_bytes")(n)
  template <typename F>
  F* function(const char* entry) {
    void* found = find(entry);
    check(found != nullptr, entry);
    return reinterpret_cast<F*>(found);
  }

  /// Device memory in the order of the queue; throws CudaOutOfMemory when there is no more.
  MemorySource& memory() { return memory_; }

  /// Forgets what was staged, so that its memory can serve again. Before each forward pass.
  Status begin_step();

  /// A copy of a small host array on the GPU, valid until the next begin_step. Within a step an
  /// array (same address, same contents) is copied once.
  template <typename T>
  Result<const T*> stage(std::span<const T> values) {
    const Result<const void*> staged =
        stage_bytes(values.data(), static_cast<int64_t>(values.size_bytes()));
    if (!staged.ok()) {
      return staged.status();
    }
    return static_cast<const T*>(*staged);
  }

  /// To the GPU; the host's memory may be reused on return.
  Status copy_in(void* to, const void* from, int64_t bytes);
  /// To the host, complete on return: the one place of a forward pass that waits.
  Status read(void* to, const void* from, int64_t bytes);
  /// In the order of the queue, between any two places. A copy to the host is complete after
  /// synchronize().
  Status copy(void* to, const void* from, int64_t bytes);
  Status fill(void* to, int byte, int64_t bytes);

  /// Waits for everything.
  Status synchronize();

  /// Milliseconds of GPU time that `work` takes, waiting for it.
  Result<double> time(const std::function<Status()>& work);

  /// Captures: all calls between begin_capture and end_capture are recorded, not run; synchronize,
  /// copy_in and read are errors there. What the step stages lies at addresses of its own,
  /// which a replay fills anew: begin_replay, stage the same sequence of arrays with new contents
  /// (further ones keep theirs), replay.
  Status begin_capture();
  Result<std::unique_ptr<CudaGraph>> end_capture();
  /// Throws a begun capture away.
  void abandon_capture();
  Status begin_replay(CudaGraph& graph);
  Status replay(CudaGraph& graph);

 private:
  class Memory final : public MemorySource {
   public:
    explicit Memory(CudaQueue& queue) : queue_(queue) {}
    void* take(int64_t bytes) override;
    void give_back(void* memory) noexcept override;

   private:
    CudaQueue& queue_;
  };

  CudaQueue(CudaLibrary library, int index, const TriaxCudaGpu& gpu, void* stream);
  void* find(const char* entry);
  Result<const void*> stage_bytes(const void* data, int64_t bytes);
  Status status(int error, std::string_view doing) const { return library_.status(error, doing); }

  static constexpr size_t kArenas = 3;  // steps that may be under way

  CudaLibrary library_;
  int index_;
  TriaxCudaGpu gpu_;
  void* stream_;
  Memory memory_;
  std::array<std::unique_ptr<StagingArena>, kArenas> arenas_;
  size_t arena_ = 0;
  std::unique_ptr<StagingArena> capture_arena_;
  StagingArena* staging_ = nullptr;  // in use
  void* pinned_ = nullptr;           // what read() receives
  bool deferred_ = false;            // capture or replay: staged arrays are copied together
  std::unordered_map<const void*, void*> entries_;
};

/// No more memory on a GPU.
class CudaOutOfMemory final : public std::bad_alloc {
 public:
  explicit CudaOutOfMemory(std::string message) : message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

/// "cuda" or "cuda:N" to N; nothing for other names.
std::optional<int> parse_cuda_device(std::string_view name);

}  // namespace triax
