// Memory for pages and states outside the device: taken often, in few sizes, so it is used again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

namespace triax::engine {

/// A piece of host memory; copies share it, and its bytes go back to be used again with the last.
class Block {
 public:
  Block() = default;
  Block(std::shared_ptr<std::byte[]> data, size_t bytes) : data_(std::move(data)), bytes_(bytes) {}
  std::span<std::byte> span() const { return {data_.get(), bytes_}; }
  bool empty() const { return bytes_ == 0; }

 private:
  std::shared_ptr<std::byte[]> data_;
  size_t bytes_ = 0;
};

/// Gives out blocks and keeps up to `spare_bytes` of those that came back, since new memory costs a
/// page fault every 4 KiB, as much as the copy itself. Contents are whatever was there. One thread
/// at a time, for blocks too.
class HostBlocks {
 public:
  explicit HostBlocks(int64_t spare_bytes) : spares_(std::make_shared<Spares>()) {
    spares_->room = static_cast<size_t>(spare_bytes);
  }

  Block take(int64_t bytes) {
    const auto size = static_cast<size_t>(bytes);
    std::vector<std::unique_ptr<std::byte[]>>& spare = spares_->by_size[size];
    std::unique_ptr<std::byte[]> data;
    if (spare.empty()) {
      data = std::make_unique_for_overwrite<std::byte[]>(size);
    } else {
      data = std::move(spare.back());
      spare.pop_back();
      spares_->room += size;
    }
    return {std::shared_ptr<std::byte[]>(data.release(),
                                         [spares = spares_, size](std::byte* p) {
                                           give(*spares, std::unique_ptr<std::byte[]>(p), size);
                                         }),
            size};
  }

 private:
  struct Spares {
    std::unordered_map<size_t, std::vector<std::unique_ptr<std::byte[]>>> by_size;
    size_t room = 0;
  };

  static void give(Spares& spares, std::unique_ptr<std::byte[]> data, size_t size) {
    if (size <= spares.room) {
      spares.room -= size;
      spares.by_size[size].push_back(std::move(data));
    }
  }

  std::shared_ptr<Spares> spares_;
};

}  // namespace triax::engine
