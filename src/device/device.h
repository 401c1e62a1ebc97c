// Where an operation runs, and what it may use there. No operation knows more about the machine.
#pragma once

#include <string_view>

#include "base/cpu.h"
#include "base/thread_pool.h"
#include "device/workspace.h"

namespace triax {

/// kReference: plain loops in double, the truth. kCpu: fast code for `isa`.
enum class Backend { kReference, kCpu };

std::string_view backend_name(Backend backend);

/// A handle passed to every operation.
/// Ownership  threads and workspace belong to the caller and outlive the call
/// Threads    one operation at a time uses a Device; results do not depend on the thread count
struct Device {
  Backend backend = Backend::kCpu;
  Isa isa = Isa::kPortable;
  ThreadPool* threads = nullptr;
  Workspace* workspace = nullptr;
};

/// A Device together with what it points to.
class OwnedDevice {
 public:
  OwnedDevice(Backend backend, Isa isa, int threads)
      : pool_(threads), device_{backend, isa, &pool_, &workspace_} {}
  OwnedDevice(const OwnedDevice&) = delete;
  OwnedDevice& operator=(const OwnedDevice&) = delete;

  const Device& get() const { return device_; }
  operator const Device&() const { return device_; }  // NOLINT: it is one

 private:
  ThreadPool pool_;
  Workspace workspace_;
  Device device_;
};

}  // namespace triax
