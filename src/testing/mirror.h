// Calls of operations on a device with memory of its own, from tests whose arrays lie here.
#pragma once

#include <functional>
#include <vector>

#include "device/device.h"
#include "tensor/matrix.h"
#include "tensor/tensor.h"

namespace triax::testing {

/// Copies the arrays of one call to the device and what it wrote back. On the CPU it does nothing.
///   testing::Mirror mirror(device);
///   mirror.in(&args.in).in(&args.weight).out(&args.out);
///   return mirror.run([&] { return rms_norm(device, args); });
/// Arrays that overlap here overlap there. Every copy keeps its distance from a 256-byte boundary,
/// lies between guards, and holds what the array holds (poison, gaps between rows).
class Mirror {
 public:
  explicit Mirror(const Device& device) : device_(device) {}
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;

  /// The view is redirected by run(); views without data stay as they are.
  Mirror& in(ConstTensorView* view);
  Mirror& in(MatrixView* matrix);
  Mirror& out(TensorView* view);

  /// Runs `operation` on the copies, waits, copies what out() named back.
  /// Errors     the operation's; kInternal when it wrote outside of an array
  Status run(const std::function<Status()>& operation);

 private:
  /// A piece of this process's memory, and where it lies on the device.
  struct Range {
    const std::byte* begin;
    const std::byte* end;
    bool written;
    std::byte* device = nullptr;  // of begin
    std::byte* memory = nullptr;  // of the allocation
    int64_t memory_bytes = 0;
  };
  bool active() const { return device_.backend == Backend::kCuda; }
  void add(const void* begin, int64_t bytes, bool written);
  void merge();
  Status copy_in();
  Status copy_out();
  const std::byte* redirected(const void* p) const;

  const Device& device_;
  std::vector<Range> ranges_;
  std::vector<std::function<void()>> redirections_;
};

}  // namespace triax::testing
