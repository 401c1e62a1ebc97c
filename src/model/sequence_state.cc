#include "model/sequence_state.h"

#include <fmt/core.h>

#include <cstring>
#include <utility>

#include "device/cuda/cuda_queue.h"
#include "sequence/mla/mla.h"

namespace triax::model {
namespace {

using checkpoint::LayerKind;

constexpr int64_t kPage = 64;

int64_t pages_for(int64_t tokens) { return (tokens + kPage - 1) / kPage; }

/// Bytes of entry `i` of the first dimension.
std::byte* entry(TensorView view, int64_t i, size_t* bytes) {
  *bytes = static_cast<size_t>(view.stride(0) * dtype_bytes(view.dtype()));
  return static_cast<std::byte*>(view.raw()) + static_cast<size_t>(i) * *bytes;
}

/// Entry `i` of the first dimension, as an array.
TensorView entry_view(TensorView view, int64_t i) {
  size_t bytes = 0;
  return TensorView(entry(view, i, &bytes), view.dtype(), view.shape().subspan(1));
}

}  // namespace

bool takes_bf16_latents(const checkpoint::ModelConfig& config, const CudaQueue& queue) {
  const auto& mla = config.mla;
  return sequence::mla_bf16_supports(queue, mla.heads, mla.nope_dim, mla.shared_dim, mla.kv_lora,
                                     mla.value_dim);
}

SequenceState::SequenceState(SequenceState&& other) noexcept { *this = std::move(other); }

SequenceState& SequenceState::operator=(SequenceState&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(slot_, other.slot_);
  std::swap(pages_, other.pages_);
  std::swap(tokens_, other.tokens_);
  return *this;
}

SequenceState::~SequenceState() {
  if (pool_ != nullptr) {
    pool_->release(*this);
  }
}

Status StatePool::copy_entry(TensorView view, int64_t from, int64_t to) {
  if (view.empty()) {
    return {};
  }
  size_t bytes = 0;
  const std::byte* source = entry(view, from, &bytes);
  std::byte* target = entry(view, to, &bytes);
  if (cuda_ != nullptr) {
    return cuda_->copy(target, source, static_cast<int64_t>(bytes));
  }
  std::memcpy(target, source, bytes);
  return {};
}

Status StatePool::zero_entry(TensorView view, int64_t i) {
  if (view.empty()) {
    return {};
  }
  size_t bytes = 0;
  std::byte* data = entry(view, i, &bytes);
  if (cuda_ != nullptr) {
    return cuda_->fill(data, 0, static_cast<int64_t>(bytes));
  }
  std::memset(data, 0, bytes);
  return {};
}

/// Zeroed: what no token wrote is never read, but a kernel may multiply it by zero.
Tensor StatePool::array(DType dtype, std::initializer_list<int64_t> shape) {
  Tensor made(dtype, std::span(shape.begin(), shape.size()),
              cuda_ == nullptr ? nullptr : &cuda_->memory());
  if (cuda_ != nullptr) {
    const Status zeroed = cuda_->fill(made.view().raw(), 0, made.bytes());
    check(zeroed.ok(), zeroed.message());
  }
  return made;
}

StatePool::StatePool(const checkpoint::ModelConfig& config, StatePoolSize size, CudaQueue* cuda)
    : cuda_(cuda) {
  const int64_t pages = pages_for(size.tokens) + size.sequences;
  const auto& kda = config.kda;
  states_ = array(DType::kF32, {config.count(LayerKind::kKda), size.sequences, kda.heads,
                                kda.head_dim, kda.head_dim});
  windows_ =
      array(DType::kF32, {config.count(LayerKind::kKda), size.sequences, 3, 3 * kda.width()});
  latents_ =
      array(size.latents, {config.count(LayerKind::kMla), pages, kPage, config.mla.latent_dim()});
  int64_t kda_layer = 0;
  int64_t mla_layer = 0;
  for (LayerKind kind : config.layers) {
    if (kind == LayerKind::kKda) {
      layers_.push_back({entry_view(states_, kda_layer), entry_view(windows_, kda_layer), {}});
      ++kda_layer;
    } else {
      layers_.push_back({{}, {}, entry_view(latents_, mla_layer++)});
    }
  }
  for (int64_t i = size.sequences - 1; i >= 0; --i) {
    free_slots_.push_back(static_cast<int32_t>(i));
  }
  for (int64_t i = pages - 1; i >= 0; --i) {
    free_pages_.push_back(static_cast<int32_t>(i));
  }
}

Result<SequenceState> StatePool::take_slot() {
  if (free_slots_.empty()) {
    return Status::resource_exhausted(
        "state pool: every sequence slot is in use; end a sequence or make the pool larger");
  }
  SequenceState state;
  state.pool_ = this;
  state.slot_ = free_slots_.back();
  free_slots_.pop_back();
  return state;
}

Result<SequenceState> StatePool::create() {
  Result<SequenceState> state = take_slot();
  for (size_t i = 0; i < layers_.size() && state.ok(); ++i) {
    Status zeroed = zero_entry(layers_[i].states, state->slot_);
    zeroed = zeroed.ok() ? zero_entry(layers_[i].windows, state->slot_) : zeroed;
    if (!zeroed.ok()) {
      return zeroed;
    }
  }
  return state;
}

Result<SequenceState> StatePool::fork(const SequenceState& from) {
  Result<SequenceState> state = take_slot();
  if (!state.ok()) {
    return state;
  }
  if (Status s = reserve(*state, from.length()); !s.ok()) {
    return s;
  }
  for (LayerMemory& layer : layers_) {
    Status copied = copy_entry(layer.states, from.slot_, state->slot_);
    copied = copied.ok() ? copy_entry(layer.windows, from.slot_, state->slot_) : copied;
    for (size_t i = 0; i < state->pages_.size() && copied.ok(); ++i) {
      copied = copy_entry(layer.latents, from.pages_[i], state->pages_[i]);
    }
    if (!copied.ok()) {
      return copied;
    }
  }
  state->tokens_ = from.tokens_;
  return state;
}

Status StatePool::reserve(SequenceState& state, int64_t tokens) {
  const size_t needed = static_cast<size_t>(pages_for(state.length() + tokens));
  const size_t missing = needed > state.pages_.size() ? needed - state.pages_.size() : 0;
  if (missing > free_pages_.size()) {
    return Status::resource_exhausted(fmt::format(
        "state pool: {} more tokens need {} pages of {} tokens, {} are free; make the pool larger",
        tokens, missing, kPage, free_pages_.size()));
  }
  for (size_t i = 0; i < missing; ++i) {
    state.pages_.push_back(free_pages_.back());
    free_pages_.pop_back();
  }
  return {};
}

void StatePool::commit(SequenceState& state, std::span<const int32_t> tokens) {
  state.tokens_.insert(state.tokens_.end(), tokens.begin(), tokens.end());
  check(pages_for(state.length()) <= static_cast<int64_t>(state.pages_.size()),
        "state pool: commit without reserve");
}

void StatePool::release(SequenceState& state) {
  free_slots_.push_back(state.slot_);
  free_pages_.insert(free_pages_.end(), state.pages_.begin(), state.pages_.end());
  state.pool_ = nullptr;
}

}  // namespace triax::model
