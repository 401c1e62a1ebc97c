#include "device/cuda/staging.h"

#include <algorithm>
#include <cstring>

namespace triax {
namespace {

constexpr int64_t kAlignment = 256;
constexpr int64_t kChunkBytes = int64_t{1} << 20;

}  // namespace

StagingArena::~StagingArena() {
  const TriaxCudaRuntime& cuda = library_.runtime();
  if (pending_) {
    cuda.event_wait(read_);
  }
  for (const Chunk& chunk : chunks_) {
    cuda.release_pinned(chunk.pinned);
    cuda.release(chunk.device, stream_);
  }
  if (read_ != nullptr) {
    cuda.event_destroy(read_);
  }
}

Status StagingArena::reset() {
  if (pending_) {
    if (Status s = library_.status(library_.runtime().event_wait(read_), "waiting for a copy");
        !s.ok()) {
      return s;
    }
    pending_ = false;
  }
  for (Chunk& chunk : chunks_) {
    chunk.used = 0;
  }
  chunk_ = 0;
  entries_.clear();
  return {};
}

Status StagingArena::grow(int64_t bytes) {
  if (fixed_) {
    return Status::resource_exhausted("cuda: the metadata of a captured step does not fit");
  }
  const TriaxCudaRuntime& cuda = library_.runtime();
  Chunk chunk;
  chunk.bytes = std::max(kChunkBytes, bytes);
  void* memory = nullptr;
  Status status =
      library_.status(cuda.allocate_pinned(&memory, chunk.bytes), "allocating pinned memory");
  if (!status.ok()) {
    return status;
  }
  chunk.pinned = static_cast<std::byte*>(memory);
  status = library_.status(cuda.allocate(&memory, chunk.bytes, stream_), "allocating memory");
  if (!status.ok()) {
    cuda.release_pinned(chunk.pinned);
    return status;
  }
  chunk.device = static_cast<std::byte*>(memory);
  chunks_.push_back(chunk);
  return {};
}

Status StagingArena::enqueue(const Chunk& chunk, int64_t begin, int64_t bytes) {
  const TriaxCudaRuntime& cuda = library_.runtime();
  int error = cuda.copy(chunk.device + begin, chunk.pinned + begin, bytes, stream_);
  if (error == 0 && read_ == nullptr) {
    error = cuda.event_create(&read_);
  }
  if (error == 0) {
    error = cuda.event_record(read_, stream_);
    pending_ = error == 0;
  }
  return library_.status(error, "copying metadata to the GPU");
}

Result<const void*> StagingArena::stage(const void* data, int64_t bytes, bool now) {
  if (const auto known = entries_.find(data); known != entries_.end()) {
    const Entry& entry = known->second;
    if (entry.bytes == bytes && std::memcmp(entry.pinned, data, static_cast<size_t>(bytes)) == 0) {
      return static_cast<const void*>(entry.device);
    }
  }
  const int64_t room = std::max((bytes + kAlignment - 1) / kAlignment, int64_t{1}) * kAlignment;
  while (chunk_ < chunks_.size() && chunks_[chunk_].used + room > chunks_[chunk_].bytes) {
    ++chunk_;
  }
  if (chunk_ == chunks_.size()) {
    if (Status s = grow(room); !s.ok()) {
      return s;
    }
  }
  Chunk& chunk = chunks_[chunk_];
  const int64_t begin = chunk.used;
  chunk.used += room;
  chunk.used_max = std::max(chunk.used_max, chunk.used);
  if (bytes > 0) {
    std::memcpy(chunk.pinned + begin, data, static_cast<size_t>(bytes));
  }
  entries_[data] = {bytes, chunk.pinned + begin, chunk.device + begin};
  if (now && bytes > 0) {
    if (Status s = enqueue(chunk, begin, bytes); !s.ok()) {
      return s;
    }
  }
  return static_cast<const void*>(chunk.device + begin);
}

Status StagingArena::upload() {
  for (const Chunk& chunk : chunks_) {
    if (chunk.used_max > 0) {
      if (Status s = enqueue(chunk, 0, chunk.used_max); !s.ok()) {
        return s;
      }
    }
  }
  return {};
}

}  // namespace triax
