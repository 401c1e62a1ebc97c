#include "tensor/tensor.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace triax {
namespace {

constexpr size_t kHugePageBytesMin = size_t{1} << 22;
constexpr int64_t kElementsMax = int64_t{1} << 46;

}  // namespace

std::string shape_string(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

Tensor::Memory::Memory(size_t bytes, MemorySource* source) : bytes_(bytes), source_(source) {
  if (source_ != nullptr) {
    data_ = source_->take(static_cast<int64_t>(bytes));
    return;
  }
  data_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data_ == MAP_FAILED) {
    data_ = nullptr;
    throw std::bad_alloc();
  }
  if (bytes >= kHugePageBytesMin) {
    ::madvise(data_, bytes, MADV_HUGEPAGE);
  }
}

Tensor::Memory::~Memory() {
  if (data_ != nullptr && source_ != nullptr) {
    source_->give_back(data_);
  } else if (data_ != nullptr) {
    ::munmap(data_, bytes_);
  }
}

Tensor::Tensor(DType dtype, std::span<const int64_t> shape, MemorySource* source) {
  int64_t room = kElementsMax;
  for (int64_t size : shape) {
    check(size >= 0 && size <= room, "tensor: size out of range");
    room /= std::max<int64_t>(size, 1);
  }
  view_ = TensorView(nullptr, dtype, shape);
  memory_ = Memory(static_cast<size_t>(std::max<int64_t>(bytes(), 1)), source);
  view_ = TensorView(memory_.data(), dtype, shape);
}

}  // namespace triax
