#include "model/sequence_state.h"

#include <fmt/core.h>

#include <cstring>
#include <utility>

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

void copy_entry(TensorView view, int64_t from, int64_t to) {
  if (!view.empty()) {
    size_t bytes = 0;
    const std::byte* source = entry(view, from, &bytes);
    std::memcpy(entry(view, to, &bytes), source, bytes);
  }
}

void zero_entry(TensorView view, int64_t i) {
  if (!view.empty()) {
    size_t bytes = 0;
    std::byte* data = entry(view, i, &bytes);
    std::memset(data, 0, bytes);
  }
}

}  // namespace

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

StatePool::StatePool(const checkpoint::ModelConfig& config, StatePoolSize size) {
  const int64_t pages = pages_for(size.tokens) + size.sequences;
  const auto& kda = config.kda;
  states_ = Tensor::f32(
      {config.count(LayerKind::kKda), size.sequences, kda.heads, kda.head_dim, kda.head_dim});
  windows_ = Tensor::f32({config.count(LayerKind::kKda), size.sequences, 3, 3 * kda.width()});
  latents_ = Tensor::f32({config.count(LayerKind::kMla), pages, kPage, config.mla.latent_dim()});
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
  if (state.ok()) {
    for (LayerMemory& layer : layers_) {
      zero_entry(layer.states, state->slot_);
      zero_entry(layer.windows, state->slot_);
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
    copy_entry(layer.states, from.slot_, state->slot_);
    copy_entry(layer.windows, from.slot_, state->slot_);
    for (size_t i = 0; i < state->pages_.size(); ++i) {
      copy_entry(layer.latents, from.pages_[i], state->pages_[i]);
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
