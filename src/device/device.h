// Where an operation runs, and what it may use there. No operation knows more about the machine.
#pragma once

#include <string_view>

#include "base/cpu.h"
#include "base/thread_pool.h"
#include "device/workspace.h"

namespace triax {

class CudaQueue;

/// kReference: plain loops in double, the truth. kCpu: fast code for `isa`. kCuda: kernels on the
/// queue `cuda`; every array of an operation lies in that GPU's memory then, while spans of
/// metadata (tokens, lengths, slots, page tables) and views themselves stay with the host.
enum class Backend { kReference, kCpu, kCuda };

std::string_view backend_name(Backend backend);

/// A handle passed to every operation.
/// Ownership  threads, workspaces and queue belong to the caller and outlive the call
/// Threads    one operation at a time uses a Device; results do not depend on the thread count
struct Device {
  Backend backend = Backend::kCpu;
  Isa isa = Isa::kPortable;
  ThreadPool* threads = nullptr;
  Workspace* workspace = nullptr;       // memory of the device
  CudaQueue* cuda = nullptr;            // kCuda only
  Workspace* host_workspace = nullptr;  // kCuda only: memory of this process

  /// Scratch that the host reads and writes, on any backend.
  Workspace& host_scratch() const {
    return host_workspace != nullptr ? *host_workspace : *workspace;
  }
};

/// A Device together with what it points to, but for the queue.
class OwnedDevice {
 public:
  OwnedDevice(Backend backend, Isa isa, int threads)
      : pool_(threads), device_{backend, isa, &pool_, &workspace_} {
    check(backend != Backend::kCuda, "device: a CUDA device needs a queue");
  }
  /// kCuda; `device_memory` is the queue's.
  OwnedDevice(CudaQueue& queue, MemorySource& device_memory, Isa isa, int threads)
      : pool_(threads), workspace_(device_memory), device_{Backend::kCuda, isa,
                                                           &pool_,         &workspace_,
                                                           &queue,         &host_workspace_} {}
  OwnedDevice(const OwnedDevice&) = delete;
  OwnedDevice& operator=(const OwnedDevice&) = delete;

  const Device& get() const { return device_; }
  operator const Device&() const { return device_; }  // NOLINT: it is one

 private:
  ThreadPool pool_;
  Workspace workspace_;
  Workspace host_workspace_;
  Device device_;
};

}  // namespace triax
