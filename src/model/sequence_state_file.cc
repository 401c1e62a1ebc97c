// A sequence's state as a safetensors file: written whole or not at all, restored exactly.
// Format: docs/formats/state.md
#define XXH_INLINE_ALL
#include <fmt/core.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "checkpoint/safetensors.h"
#include "checkpoint/writer.h"
#include "device/cuda/cuda_queue.h"
#include "model/sequence_state.h"

namespace triax::model {
namespace {

constexpr const char* kFormat = "triax-state-1";
constexpr int64_t kPage = 64;

/// One array of a state: where it lies in the pool.
struct StateArray {
  std::string name;
  std::vector<int64_t> shape;      // in the file
  TensorView pool;                 // all slots or all pages
  int64_t slot = 0;                // of the sequence, without pages
  std::span<const int32_t> pages;  // of the sequence; empty: not paged
};

enum class Direction { kFromPool, kToPool };

/// `elements` floats here, at `place` in the pool: in this process or on a GPU, perhaps as bf16.
Status move(CudaQueue* cuda, void* place, DType type, float* own, int64_t elements,
            Direction direction) {
  const int64_t bytes = elements * dtype_bytes(type);
  if (cuda == nullptr) {
    const bool from = direction == Direction::kFromPool;
    std::memcpy(from ? own : place, from ? place : own, static_cast<size_t>(bytes));
    return {};
  }
  if (type == DType::kF32) {
    return direction == Direction::kFromPool ? cuda->read(own, place, bytes)
                                             : cuda->copy_in(place, own, bytes);
  }
  std::vector<Bf16> packed(static_cast<size_t>(elements));
  if (direction == Direction::kToPool) {
    std::transform(own, own + elements, packed.begin(), to_bf16);
    return cuda->copy_in(place, packed.data(), bytes);
  }
  const Status status = cuda->read(packed.data(), place, bytes);
  std::transform(packed.begin(), packed.end(), own, [](Bf16 x) { return to_float(x); });
  return status;
}

/// Copies between the pool and `flat`, whose shape is the array's.
Status copy(CudaQueue* cuda, const StateArray& array, float* flat, Direction direction) {
  const DType type = array.pool.dtype();
  const auto place = [&](int64_t entry) {
    return static_cast<std::byte*>(array.pool.raw()) +
           entry * array.pool.stride(0) * dtype_bytes(type);
  };
  if (array.pages.empty()) {
    return move(cuda, place(array.slot), type, flat, array.pool.stride(0), direction);
  }
  const int64_t width = array.shape[1];
  Status status;
  for (int64_t begin = 0; begin < array.shape[0] && status.ok(); begin += kPage) {
    status = move(cuda, place(array.pages[static_cast<size_t>(begin / kPage)]), type,
                  flat + begin * width, std::min(kPage, array.shape[0] - begin) * width, direction);
  }
  return status;
}

/// All arrays of a sequence of `length` tokens, layer by layer.
std::vector<StateArray> state_arrays(StatePool& pool, int64_t layers, const SequenceState& state,
                                     int64_t length) {
  std::vector<StateArray> arrays;
  const auto add = [&](std::string name, TensorView memory) {
    const auto shape = memory.shape().subspan(1);
    arrays.push_back({std::move(name), {shape.begin(), shape.end()}, memory, state.slot(), {}});
  };
  for (int64_t layer = 0; layer < layers; ++layer) {
    if (const TensorView latents = pool.latents(layer); latents.empty()) {
      add(fmt::format("layers.{}.kda_state", layer), pool.kda_states(layer));
      add(fmt::format("layers.{}.conv_window", layer), pool.conv_windows(layer));
    } else if (length > 0) {
      add(fmt::format("layers.{}.latents", layer), latents);
      arrays.back().shape = {length, latents.size(2)};
      arrays.back().pages = state.pages();
    }
  }
  return arrays;
}

uint64_t checksum(std::span<const checkpoint::NamedTensor> tensors) {
  uint64_t hash = 0;
  for (const checkpoint::NamedTensor& tensor : tensors) {
    const auto bytes =
        static_cast<size_t>(tensor.view.elements() * dtype_bytes(tensor.view.dtype()));
    hash = XXH3_64bits_withSeed(tensor.view.raw(), bytes, hash);
  }
  return hash;
}

Status damaged(const std::string& path, std::string_view what) {
  return Status::data_loss(
      fmt::format("{}: {}; the file is damaged and cannot be used", path, what));
}

/// A metadata value of the file, or empty.
std::string metadata_value(const checkpoint::SafetensorsFile& file, std::string_view key) {
  for (const auto& [name, value] : file.metadata()) {
    if (name == key) {
      return value;
    }
  }
  return {};
}

Status check_identity(const checkpoint::SafetensorsFile& file, uint64_t fingerprint,
                      const std::string& path) {
  if (metadata_value(file, "format") != kFormat) {
    return damaged(path, fmt::format("it is not of format {}", kFormat));
  }
  const std::string expected = fmt::format("{:016x}", fingerprint);
  const std::string found = metadata_value(file, "model");
  if (found != expected) {
    return Status::invalid_argument(fmt::format(
        "{}: this state belongs to another model; expected {}, found {}", path, expected, found));
  }
  return {};
}

}  // namespace

Status StatePool::save(const SequenceState& state, uint64_t fingerprint,
                       const std::string& path) const {
  auto& self = const_cast<StatePool&>(*this);  // views are writable; nothing is written here
  const auto layers = static_cast<int64_t>(layers_.size());
  std::vector<Tensor> copies;
  std::vector<checkpoint::NamedTensor> tensors = {
      {"tokens", ConstTensorView(state.tokens().data(), {state.length()})}};
  for (const StateArray& array : state_arrays(self, layers, state, state.length())) {
    copies.emplace_back(DType::kF32, array.shape);
    if (Status s = copy(cuda_, array, copies.back().data<float>(), Direction::kFromPool); !s.ok()) {
      return s;
    }
    tensors.push_back({array.name, copies.back().view()});
  }
  const checkpoint::Metadata metadata = {{"format", kFormat},
                                         {"model", fmt::format("{:016x}", fingerprint)},
                                         {"checksum", fmt::format("{:016x}", checksum(tensors))}};
  return checkpoint::write_safetensors(path, tensors, metadata);
}

Result<SequenceState> StatePool::restore(uint64_t fingerprint, const std::string& path) {
  Result<checkpoint::SafetensorsFile> file = checkpoint::SafetensorsFile::open(path);
  if (!file.ok()) {
    return file.status();
  }
  if (Status s = check_identity(*file, fingerprint, path); !s.ok()) {
    return s;
  }
  const Result<ConstTensorView> ids = file->view("tokens");
  if (!ids.ok() || ids->dtype() != DType::kI32 || ids->rank() != 1) {
    return damaged(path, "the tokens are not there");
  }
  Result<SequenceState> state = create();
  if (!state.ok()) {
    return state;
  }
  if (Status s = reserve(*state, ids->size(0)); !s.ok()) {
    return s;
  }
  std::vector<checkpoint::NamedTensor> tensors = {{"tokens", *ids}};
  const auto layers = static_cast<int64_t>(layers_.size());
  for (const StateArray& array : state_arrays(*this, layers, *state, ids->size(0))) {
    const Result<ConstTensorView> view = file->view(array.name);
    if (!view.ok() || view->dtype() != DType::kF32 ||
        !std::ranges::equal(view->shape(), array.shape)) {
      return damaged(path, fmt::format("'{}' is missing or misshapen", array.name));
    }
    tensors.push_back({array.name, *view});
    if (Status s = copy(cuda_, array, const_cast<float*>(view->data<float>()), Direction::kToPool);
        !s.ok()) {
      return s;
    }
  }
  if (metadata_value(*file, "checksum") != fmt::format("{:016x}", checksum(tensors))) {
    return damaged(path, "its checksum differs");
  }
  state->tokens_.assign(ids->data<int32_t>(), ids->data<int32_t>() + ids->size(0));
  return state;
}

}  // namespace triax::model
