#include "store/arena.h"

#include <fmt/core.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace triax::store {

Result<std::shared_ptr<Arena>> Arena::create(int64_t bytes) {
  if (bytes < 0) {
    return Status::invalid_argument(fmt::format("ram store: a budget of {} bytes", bytes));
  }
  const int64_t size = bytes / kGrain * kGrain;  // never more than the budget
  std::byte* base = nullptr;
  if (size > 0) {
    void* memory = ::mmap(nullptr, static_cast<size_t>(size), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
      return Status::resource_exhausted(
          fmt::format("ram store: cannot reserve {} bytes: {}", size, std::strerror(errno)));
    }
    base = static_cast<std::byte*>(memory);
  }
  return std::shared_ptr<Arena>(new Arena(base, size));
}

Arena::Arena(std::byte* base, int64_t bytes) : base_(base), bytes_(bytes) {
  if (bytes > 0) {
    add_hole(0, bytes);
  }
}

Arena::~Arena() {
  if (base_ != nullptr) {
    ::munmap(base_, static_cast<size_t>(bytes_));
  }
}

int64_t Arena::bytes_used() const {
  const std::lock_guard lock(mutex_);
  return used_;
}

void Arena::add_hole(int64_t offset, int64_t bytes) {
  holes_.emplace(offset, bytes);
  by_size_.emplace(bytes, offset);
}

void Arena::remove_hole(std::map<int64_t, int64_t>::iterator hole) {
  by_size_.erase({hole->second, hole->first});
  holes_.erase(hole);
}

std::span<std::byte> Arena::cut(int64_t hole_offset, int64_t bytes, int64_t payload) {
  const auto hole = holes_.find(hole_offset);
  const int64_t rest = hole->second - bytes;
  remove_hole(hole);
  if (rest > 0) {
    add_hole(hole_offset + bytes, rest);
  }
  used_ += bytes;
  return {base_ + hole_offset, static_cast<size_t>(payload)};
}

std::shared_ptr<Arena::Allocation> Arena::allocate(int64_t bytes) {
  Pieces pieces;
  {
    const std::lock_guard lock(mutex_);
    if (bytes < 0 || bytes > bytes_ || rounded(bytes) > bytes_ - used_) {
      return nullptr;
    }
    int64_t left = bytes;
    while (left > 0) {
      auto fits = by_size_.lower_bound({rounded(left), 0});
      if (fits == by_size_.end()) {
        --fits;  // no hole holds all of it: the largest, whole
      }
      const int64_t take = std::min(left, fits->first);
      pieces.push_back(cut(fits->second, rounded(take), take));
      left -= take;
    }
  }
  return std::make_shared<Allocation>(shared_from_this(), std::move(pieces));
}

void Arena::release(const Pieces& pieces) {
  const std::lock_guard lock(mutex_);
  for (const std::span<std::byte> piece : pieces) {
    int64_t offset = piece.data() - base_;
    int64_t bytes = rounded(static_cast<int64_t>(piece.size()));
    used_ -= bytes;
    auto after = holes_.lower_bound(offset);
    if (after != holes_.end() && after->first == offset + bytes) {
      bytes += after->second;
      const auto gone = after++;
      remove_hole(gone);
    }
    if (after != holes_.begin()) {
      const auto before = std::prev(after);
      if (before->first + before->second == offset) {
        offset = before->first;
        bytes += before->second;
        remove_hole(before);
      }
    }
    add_hole(offset, bytes);
  }
}

}  // namespace triax::store
