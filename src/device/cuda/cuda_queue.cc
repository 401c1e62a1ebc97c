#include "device/cuda/cuda_queue.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "device/cuda/staging.h"

namespace triax {
namespace {

constexpr int64_t kPinnedBytes = int64_t{1} << 23;

}  // namespace

CudaGraph::CudaGraph(const CudaLibrary& library, std::unique_ptr<StagingArena> arena)
    : library_(library), arena_(std::move(arena)) {}

CudaGraph::~CudaGraph() {
  if (exec_ != nullptr) {
    library_.runtime().graph_destroy(exec_);
  }
}

void* CudaQueue::Memory::take(int64_t bytes) {
  void* memory = nullptr;
  const int error = queue_.library_.runtime().allocate(&memory, bytes, queue_.stream_);
  if (Status s = queue_.status(error, fmt::format("allocating {} bytes", bytes)); !s.ok()) {
    throw CudaOutOfMemory(s.message());
  }
  return memory;
}

void CudaQueue::Memory::give_back(void* memory) noexcept {
  queue_.library_.runtime().release(memory, queue_.stream_);
}

Result<std::unique_ptr<CudaQueue>> CudaQueue::open(int index) {
  Result<CudaLibrary> library = CudaLibrary::open();
  if (!library.ok()) {
    return library.status();
  }
  const TriaxCudaRuntime& cuda = library->runtime();
  const auto unavailable = [&](int error, std::string_view doing) {
    return Status::unavailable(library->status(error, doing).message());
  };
  int count = 0;
  if (const int error = cuda.gpu_count(&count); error != 0) {
    int driver = 0;
    int runtime = 0;
    if (cuda.versions(&driver, &runtime) == 0 && driver == 0) {  // CUDA would call it too old
      return Status::unavailable("cuda: no NVIDIA driver on this machine; --device cpu needs none");
    }
    return unavailable(error, "looking for a GPU");
  }
  if (index < 0 || index >= count) {
    return Status::unavailable(
        fmt::format("cuda: there is no GPU {}: this machine shows {} of them", index, count));
  }
  TriaxCudaGpu gpu{};
  void* stream = nullptr;
  if (const int error = cuda.gpu(index, &gpu); error != 0) {
    return unavailable(error, fmt::format("asking for GPU {}", index));
  }
  if (const int error = cuda.open(index, &stream); error != 0) {
    return unavailable(error, fmt::format("opening GPU {}", index));
  }
  return std::unique_ptr<CudaQueue>(new CudaQueue(std::move(*library), index, gpu, stream));
}

CudaQueue::CudaQueue(CudaLibrary library, int index, const TriaxCudaGpu& gpu, void* stream)
    : library_(std::move(library)), index_(index), gpu_(gpu), stream_(stream), memory_(*this) {
  for (std::unique_ptr<StagingArena>& arena : arenas_) {
    arena = std::make_unique<StagingArena>(library_, stream_);
  }
  staging_ = arenas_[0].get();
}

CudaQueue::~CudaQueue() {
  library_.runtime().synchronize(stream_);
  capture_arena_.reset();
  for (std::unique_ptr<StagingArena>& arena : arenas_) {
    arena.reset();
  }
  if (pinned_ != nullptr) {
    library_.runtime().release_pinned(pinned_);
  }
  library_.runtime().close(stream_);
}

bool CudaQueue::has_matmul_bf16() const {
  const auto asked = reinterpret_cast<int (*)()>(library_.find("triax_cuda_has_matmul_bf16"));
  return asked != nullptr && asked() != 0;
}

void* CudaQueue::find(const char* entry) {
  void*& found = entries_[entry];
  if (found == nullptr) {
    found = library_.find(entry);
  }
  return found;
}

Status CudaQueue::launch(const char* entry, const void* args) {
  using Function = int (*)(const void* args, void* stream);
  const auto function = reinterpret_cast<Function>(find(entry));
  if (function == nullptr) {
    return Status::unavailable(
        fmt::format("cuda: {} has no '{}'; build both together", library_.path(), entry));
  }
  const int error = function(args, stream_);
  return error == 0 ? Status() : status(error, entry);
}

Result<bool> CudaQueue::try_launch(const char* entry, const void* args) {
  using Function = int (*)(const void* args, void* stream);
  const auto function = reinterpret_cast<Function>(find(entry));
  const int error = function == nullptr ? 0 : function(args, stream_);
  if (error == 0) {
    return function != nullptr;
  }
  constexpr int kCublasLtInvalid = kCublasLtErrors + 7;        // CUBLAS_STATUS_INVALID_VALUE
  constexpr int kCublasLtNotSupported = kCublasLtErrors + 15;  // CUBLAS_STATUS_NOT_SUPPORTED
  if (error == kCublasLtInvalid || error == kCublasLtNotSupported ||
      std::string_view(library_.runtime().error_name(error)) == "cudaErrorNotSupported") {
    return false;
  }
  return status(error, entry);
}

Status CudaQueue::begin_step() {
  if (Status s = status(library_.runtime().use(index_), "choosing the GPU"); !s.ok()) {
    return s;
  }
  arena_ = (arena_ + 1) % kArenas;
  staging_ = arenas_[arena_].get();
  deferred_ = false;
  return staging_->reset();
}

Result<const void*> CudaQueue::stage_bytes(const void* data, int64_t bytes) {
  return staging_->stage(data, bytes, !deferred_);
}

Status CudaQueue::copy_in(void* to, const void* from, int64_t bytes) {
  // From pageable memory CUDA returns once it has taken the bytes; from pinned memory it does not.
  if (Status s = copy(to, from, bytes); !s.ok()) {
    return s;
  }
  return bytes > 0 ? synchronize() : Status();
}

Status CudaQueue::read(void* to, const void* from, int64_t bytes) {
  if (pinned_ == nullptr) {
    if (Status s = status(library_.runtime().allocate_pinned(&pinned_, kPinnedBytes),
                          "allocating pinned memory");
        !s.ok()) {
      return s;
    }
  }
  for (int64_t done = 0; done < bytes; done += kPinnedBytes) {
    const int64_t part = std::min(kPinnedBytes, bytes - done);
    Status s = copy(pinned_, static_cast<const std::byte*>(from) + done, part);
    s = s.ok() ? synchronize() : s;
    if (!s.ok()) {
      return s;
    }
    std::memcpy(static_cast<std::byte*>(to) + done, pinned_, static_cast<size_t>(part));
  }
  return {};
}

Status CudaQueue::copy(void* to, const void* from, int64_t bytes) {
  if (bytes == 0) {
    return {};
  }
  const int error = library_.runtime().copy(to, from, bytes, stream_);
  return error == 0 ? Status() : status(error, fmt::format("copying {} bytes", bytes));
}

Status CudaQueue::fill(void* to, int byte, int64_t bytes) {
  if (bytes == 0) {
    return {};
  }
  const int error = library_.runtime().fill(to, byte, bytes, stream_);
  return error == 0 ? Status() : status(error, fmt::format("filling {} bytes", bytes));
}

Status CudaQueue::synchronize() {
  return status(library_.runtime().synchronize(stream_), "waiting for the GPU");
}

Result<double> CudaQueue::time(const std::function<Status()>& work) {
  const TriaxCudaRuntime& cuda = library_.runtime();
  void* begin = nullptr;
  void* end = nullptr;
  Status result = status(cuda.event_create(&begin), "creating an event");
  if (result.ok()) {
    result = status(cuda.event_create(&end), "creating an event");
  }
  if (result.ok()) {
    result = status(cuda.event_record(begin, stream_), "recording an event");
  }
  if (result.ok()) {
    result = work();
  }
  float milliseconds = 0.0f;
  if (result.ok()) {
    int error = cuda.event_record(end, stream_);
    error = error == 0 ? cuda.event_wait(end) : error;
    error = error == 0 ? cuda.event_milliseconds(begin, end, &milliseconds) : error;
    result = status(error, "timing");
  }
  cuda.event_destroy(begin);
  cuda.event_destroy(end);
  if (!result.ok()) {
    return result;
  }
  return static_cast<double>(milliseconds);
}

Status CudaQueue::begin_capture() {
  if (Status s = status(library_.runtime().use(index_), "choosing the GPU"); !s.ok()) {
    return s;
  }
  capture_arena_ = std::make_unique<StagingArena>(library_, stream_);
  staging_ = capture_arena_.get();
  deferred_ = true;
  constexpr int64_t kArenaBytes = int64_t{1} << 22;
  if (Status s = staging_->reserve(kArenaBytes); !s.ok()) {
    return s;
  }
  return status(library_.runtime().capture_begin(stream_), "beginning a capture");
}

Result<std::unique_ptr<CudaGraph>> CudaQueue::end_capture() {
  std::unique_ptr<CudaGraph> graph(new CudaGraph(library_, std::move(capture_arena_)));
  staging_ = arenas_[arena_].get();
  deferred_ = false;
  if (Status s = status(library_.runtime().capture_end(stream_, &graph->exec_), "capturing");
      !s.ok()) {
    return s;
  }
  return graph;
}

void CudaQueue::abandon_capture() {
  library_.runtime().capture_end(stream_, nullptr);
  capture_arena_.reset();
  staging_ = arenas_[arena_].get();
  deferred_ = false;
}

Status CudaQueue::begin_replay(CudaGraph& graph) {
  if (Status s = status(library_.runtime().use(index_), "choosing the GPU"); !s.ok()) {
    return s;
  }
  staging_ = graph.arena_.get();
  deferred_ = true;
  return staging_->reset();
}

Status CudaQueue::replay(CudaGraph& graph) {
  Status result = staging_->upload();
  staging_ = arenas_[arena_].get();
  deferred_ = false;
  if (!result.ok()) {
    return result;
  }
  return status(library_.runtime().graph_launch(graph.exec_, stream_), "replaying a step");
}

std::optional<int> parse_cuda_device(std::string_view name) {
  if (name == "cuda") {
    return 0;
  }
  if (!name.starts_with("cuda:")) {
    return std::nullopt;
  }
  const std::string_view number = name.substr(5);
  int index = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), index);
  if (error != std::errc() || end != number.data() + number.size() || index < 0) {
    return std::nullopt;
  }
  return index;
}

}  // namespace triax
