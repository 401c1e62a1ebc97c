#include "device/workspace.h"

#include <algorithm>
#include <new>

namespace triax {
namespace {

constexpr int64_t kAlignment = 256;
constexpr int64_t kBlockBytesMin = int64_t{1} << 20;

class HostMemory final : public MemorySource {
 public:
  void* take(int64_t bytes) override {
    return ::operator new (static_cast<size_t>(bytes), std::align_val_t{kAlignment});
  }
  void give_back(void* memory) noexcept override {
    ::operator delete (memory, std::align_val_t{kAlignment});
  }
};

}  // namespace

MemorySource& host_memory() {
  static HostMemory memory;  // it has no state
  return memory;
}

void* Workspace::take_bytes(int64_t bytes) {
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  while (block_ < blocks_.size() && used_ + bytes > blocks_[block_].bytes) {
    ++block_;
    used_ = 0;
  }
  if (block_ == blocks_.size()) {
    const int64_t last = blocks_.empty() ? 0 : blocks_.back().bytes;
    const int64_t size = std::max({bytes, kBlockBytesMin, 2 * last});
    auto* data = static_cast<std::byte*>(source_->take(size));
    blocks_.push_back({std::unique_ptr<std::byte, FreeBlock>(data, FreeBlock{source_}), size});
    used_ = 0;
  }
  void* p = blocks_[block_].data.get() + used_;
  used_ += bytes;
  return p;
}

int64_t Workspace::bytes_held() const {
  int64_t total = 0;
  for (const Block& block : blocks_) {
    total += block.bytes;
  }
  return total;
}

}  // namespace triax
