#include "testing/mirror.h"

#include <algorithm>
#include <cstring>

#include "device/cuda/cuda_queue.h"

namespace triax::testing {
namespace {

constexpr int64_t kGuard = 1024;
constexpr int64_t kAlignment = 256;
constexpr int kGuardByte = 0xA5;

/// Bytes from the first element to the end of the last one.
int64_t extent_bytes(const ConstTensorView& view) {
  int64_t last = 0;
  for (int dim = 0; dim < view.rank(); ++dim) {
    if (view.size(dim) == 0) {
      return 0;
    }
    last += (view.size(dim) - 1) * view.stride(dim);
  }
  return (last + 1) * dtype_bytes(view.dtype());
}

/// The same view of other memory.
template <typename View, typename Pointer>
View moved(const View& view, Pointer data) {
  View copy(data, view.dtype(), view.shape());
  for (int dim = 0; dim < view.rank(); ++dim) {
    copy = copy.with_stride(dim, view.stride(dim));
  }
  return copy;
}

}  // namespace

Mirror& Mirror::in(ConstTensorView* view) {
  if (active() && !view->empty()) {
    add(view->raw(), extent_bytes(*view), false);
    redirections_.emplace_back(
        [this, view] { *view = moved(*view, static_cast<const void*>(redirected(view->raw()))); });
  }
  return *this;
}

Mirror& Mirror::out(TensorView* view) {
  if (active() && !view->empty()) {
    add(view->raw(), extent_bytes(*view), true);
    redirections_.emplace_back([this, view] {
      *view = moved(*view, static_cast<void*>(const_cast<std::byte*>(redirected(view->raw()))));
    });
  }
  return *this;
}

Mirror& Mirror::in(MatrixView* matrix) {
  if (!active() || matrix->empty()) {
    return *this;
  }
  add(matrix->data, matrix->rows * matrix->row_bytes(), false);
  if (matrix->scales != nullptr) {
    add(matrix->scales, matrix->rows * matrix->scale_row_bytes(), false);
  }
  redirections_.emplace_back([this, matrix] {
    matrix->data = redirected(matrix->data);
    matrix->scales = matrix->scales == nullptr ? nullptr : redirected(matrix->scales);
  });
  return *this;
}

void Mirror::add(const void* begin, int64_t bytes, bool written) {
  const auto* first = static_cast<const std::byte*>(begin);
  ranges_.push_back({first, first + std::max<int64_t>(bytes, 1), written && bytes > 0});
}

void Mirror::merge() {
  std::ranges::sort(ranges_, [](const Range& a, const Range& b) { return a.begin < b.begin; });
  std::vector<Range> merged;
  for (const Range& range : ranges_) {
    if (!merged.empty() && range.begin < merged.back().end) {
      merged.back().end = std::max(merged.back().end, range.end);
      merged.back().written = merged.back().written || range.written;
    } else {
      merged.push_back(range);
    }
  }
  ranges_ = std::move(merged);
}

Status Mirror::copy_in() {
  for (Range& range : ranges_) {
    const int64_t bytes = range.end - range.begin;
    const auto offset = static_cast<int64_t>(reinterpret_cast<uintptr_t>(range.begin) % kAlignment);
    range.memory_bytes = 2 * kGuard + kAlignment + bytes;
    range.memory = static_cast<std::byte*>(device_.cuda->memory().take(range.memory_bytes));
    range.device = range.memory + kGuard + offset;
    if (Status s = device_.cuda->fill(range.memory, kGuardByte, range.memory_bytes); !s.ok()) {
      return s;
    }
    if (Status s = device_.cuda->copy_in(range.device, range.begin, bytes); !s.ok()) {
      return s;
    }
  }
  return {};
}

Status Mirror::copy_out() {
  bool intact = true;
  for (Range& range : ranges_) {
    std::vector<std::byte> all(static_cast<size_t>(range.memory_bytes));
    const Status s = device_.cuda->read(all.data(), range.memory, range.memory_bytes);
    device_.cuda->memory().give_back(range.memory);
    if (!s.ok()) {
      return s;
    }
    const auto* array = all.data() + (range.device - range.memory);
    const int64_t bytes = range.end - range.begin;
    const auto is_guard = [](std::byte b) { return b == std::byte{kGuardByte}; };
    intact = intact && std::all_of(static_cast<const std::byte*>(all.data()), array, is_guard) &&
             std::all_of(array + bytes, static_cast<const std::byte*>(all.data()) + all.size(),
                         is_guard);
    if (range.written) {
      std::memcpy(const_cast<std::byte*>(range.begin), array, static_cast<size_t>(bytes));
    } else if (std::memcmp(range.begin, array, static_cast<size_t>(bytes)) != 0) {
      intact = false;
    }
  }
  return intact ? Status() : Status::internal("mirror: the operation wrote outside of its outputs");
}

const std::byte* Mirror::redirected(const void* p) const {
  const auto* address = static_cast<const std::byte*>(p);
  for (const Range& range : ranges_) {
    if (address >= range.begin && address < range.end) {
      return range.device + (address - range.begin);
    }
  }
  return nullptr;
}

Status Mirror::run(const std::function<Status()>& operation) {
  if (!active()) {
    return operation();
  }
  merge();
  Status status = device_.cuda->begin_step();
  status = status.ok() ? copy_in() : status;
  if (!status.ok()) {
    return status;
  }
  for (const std::function<void()>& redirect : redirections_) {
    redirect();
  }
  status = operation();
  const Status copied = copy_out();
  return status.ok() ? copied : status;
}

}  // namespace triax::testing
