#include "model/sequence_state.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "device/cuda/cuda_queue.h"
#include "sequence/mla/mla.h"

namespace triax::model {
namespace {

using checkpoint::LayerKind;

constexpr int64_t kPage = sequence::kLatentPage;
constexpr int kNanByte = 0xFF;  // four of them are a NaN, so are two as bf16

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
  std::swap(lent_, other.lent_);
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

StateMark& StateMark::operator=(StateMark&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(slot_, other.slot_);
  std::swap(length_, other.length_);
  return *this;
}

StateMark::~StateMark() {
  if (pool_ != nullptr) {
    pool_->release_slot(slot_);
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

Status StatePool::fill_entry(TensorView view, int64_t i, int byte) {
  if (view.empty()) {
    return {};
  }
  size_t bytes = 0;
  std::byte* data = entry(view, i, &bytes);
  if (cuda_ != nullptr) {
    return cuda_->fill(data, byte, static_cast<int64_t>(bytes));
  }
  std::memset(data, byte, bytes);
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
    : cuda_(cuda), poison_(size.poison) {
  const int64_t slots = size.lent_slots + size.sequences;
  const int64_t pages = size.lent_pages + pages_for(size.tokens) + size.sequences;
  const auto& kda = config.kda;
  states_ = array(DType::kF32,
                  {config.count(LayerKind::kKda), slots, kda.heads, kda.head_dim, kda.head_dim});
  windows_ = array(DType::kF32, {config.count(LayerKind::kKda), slots, 3, 3 * kda.width()});
  latents_ =
      array(size.latents, {config.count(LayerKind::kMla), pages, kPage, config.mla.latent_dim()});
  slot_bytes_ = (states_.bytes() + windows_.bytes()) / std::max<int64_t>(1, slots);
  page_bytes_ = latents_.bytes() / std::max<int64_t>(1, pages);
  owners_.assign(index(pages), 0);
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
  for (int64_t i = slots - 1; i >= size.lent_slots; --i) {
    free_slots_.push_back(static_cast<int32_t>(i));
  }
  for (int64_t i = pages - 1; i >= size.lent_pages; --i) {
    free_pages_.push_back(static_cast<int32_t>(i));
  }
}

Result<int32_t> StatePool::take_slot() {
  if (free_slots_.empty()) {
    return Status::resource_exhausted(
        "state pool: every sequence slot is in use; end a sequence or make the pool larger");
  }
  const int32_t slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

void StatePool::release_slot(int32_t slot) {
  const Status poisoned = poison_slot(slot);
  check(poisoned.ok(), poisoned.message());
  free_slots_.push_back(slot);
}

/// There is one.
int32_t StatePool::take_page() {
  const int32_t page = free_pages_.back();
  free_pages_.pop_back();
  owners_[index(page)] = 1;
  return page;
}

void StatePool::release_page(int32_t page) {
  check(owners_[index(page)] > 0, "state pool: a free page was released");
  if (--owners_[index(page)] > 0) {
    return;
  }
  const Status poisoned = poison_page(page);
  check(poisoned.ok(), poisoned.message());
  free_pages_.push_back(page);
}

Result<SequenceState> StatePool::create() {
  const Result<int32_t> slot = take_slot();
  if (!slot.ok()) {
    return slot.status();
  }
  SequenceState state;
  state.pool_ = this;
  state.slot_ = *slot;
  if (Status s = clear_slot(*slot); !s.ok()) {
    return s;
  }
  return state;
}

SequenceState StatePool::lend(int32_t slot, std::vector<int32_t> tokens) {
  SequenceState state;
  state.pool_ = this;
  state.lent_ = true;
  state.slot_ = slot;
  state.tokens_ = std::move(tokens);
  return state;
}

void StatePool::set_pages(SequenceState& state, std::vector<int32_t> pages) {
  check(state.lent_, "state pool: pages of a sequence that has its own");
  state.pages_ = std::move(pages);
}

Status StatePool::clear_slot(int32_t slot) {
  Status status;
  for (size_t i = 0; i < layers_.size() && status.ok(); ++i) {
    status = fill_entry(layers_[i].states, slot, 0);
    status = status.ok() ? fill_entry(layers_[i].windows, slot, 0) : status;
  }
  return status;
}

Status StatePool::poison_slot(int32_t slot) {
  Status status;
  for (size_t i = 0; i < layers_.size() && poison_ && status.ok(); ++i) {
    status = fill_entry(layers_[i].states, slot, kNanByte);
    status = status.ok() ? fill_entry(layers_[i].windows, slot, kNanByte) : status;
  }
  return status;
}

Status StatePool::poison_page(int32_t page) {
  Status status;
  for (size_t i = 0; i < layers_.size() && poison_ && status.ok(); ++i) {
    status = fill_entry(layers_[i].latents, page, kNanByte);
  }
  return status;
}

Status StatePool::copy_slot(int32_t from, int32_t to) {
  Status copied;
  for (size_t i = 0; i < layers_.size() && copied.ok(); ++i) {
    copied = copy_entry(layers_[i].states, from, to);
    copied = copied.ok() ? copy_entry(layers_[i].windows, from, to) : copied;
  }
  return copied;
}

Status StatePool::copy_page(int32_t from, int32_t to) {
  Status copied;
  for (size_t i = 0; i < layers_.size() && copied.ok(); ++i) {
    copied = copy_entry(layers_[i].latents, from, to);
  }
  return copied;
}

Result<SequenceState> StatePool::fork(const SequenceState& from) {
  const auto full = static_cast<size_t>(from.length() / kPage);
  const bool partial = from.length() % kPage != 0;
  if (partial && free_pages_.empty()) {
    return Status::resource_exhausted("state pool: no page is free; make the pool larger");
  }
  const Result<int32_t> slot = take_slot();
  if (!slot.ok()) {
    return slot.status();
  }
  SequenceState state;
  state.pool_ = this;
  state.slot_ = *slot;
  Status copied = copy_slot(from.slot_, *slot);
  for (size_t i = 0; i < full; ++i) {
    ++owners_[index(from.pages_[i])];
    state.pages_.push_back(from.pages_[i]);
  }
  if (partial) {
    state.pages_.push_back(take_page());
    copied = copied.ok() ? copy_page(from.pages_[full], state.pages_.back()) : copied;
  }
  if (!copied.ok()) {
    return copied;
  }
  state.tokens_ = from.tokens_;
  return state;
}

int64_t StatePool::pages_missing(const SequenceState& state, int64_t tokens) const {
  return std::max<int64_t>(
      0, pages_for(state.length() + tokens) - static_cast<int64_t>(state.pages_.size()));
}

Status StatePool::reserve(SequenceState& state, int64_t tokens) {
  const int64_t missing = pages_missing(state, tokens);
  if (missing > (state.lent_ ? 0 : pages_free())) {
    return Status::resource_exhausted(fmt::format(
        "state pool: {} more tokens need {} pages of {} tokens, {} are free; make the pool larger",
        tokens, missing, kPage, free_pages_.size()));
  }
  for (int64_t i = 0; i < missing; ++i) {
    state.pages_.push_back(take_page());
  }
  return {};
}

void StatePool::commit(SequenceState& state, std::span<const int32_t> tokens) {
  state.tokens_.insert(state.tokens_.end(), tokens.begin(), tokens.end());
  check(pages_for(state.length()) <= static_cast<int64_t>(state.pages_.size()),
        "state pool: commit without reserve");
}

Result<StateMark> StatePool::mark(const SequenceState& state) {
  const Result<int32_t> slot = take_slot();
  if (!slot.ok()) {
    return slot.status();
  }
  StateMark mark;
  mark.pool_ = this;
  mark.slot_ = *slot;
  mark.length_ = state.length();
  if (Status s = copy_slot(state.slot_, *slot); !s.ok()) {
    return s;
  }
  return mark;
}

Status StatePool::rewind(SequenceState& state, const StateMark& mark) {
  check(mark.length_ <= state.length(), "state pool: rewound to tokens that were never seen");
  if (Status s = copy_slot(mark.slot_, state.slot_); !s.ok()) {
    return s;
  }
  state.tokens_.resize(index(mark.length_));
  return {};
}

void StatePool::release(SequenceState& state) {
  if (state.lent_) {
    state.pool_ = nullptr;
    return;
  }
  release_slot(state.slot_);
  for (const int32_t page : state.pages_) {
    release_page(page);
  }
  state.pool_ = nullptr;
}

Status StatePool::move_entry(TensorView view, int64_t i, std::byte** own, Transfer transfer) {
  if (view.empty()) {
    return {};
  }
  size_t bytes = 0;
  std::byte* place = entry(view, i, &bytes);
  std::byte* here = *own;
  *own += bytes;
  const bool from = transfer == Transfer::kOut;
  if (cuda_ == nullptr) {
    std::memcpy(from ? here : place, from ? place : here, bytes);
    return {};
  }
  return from ? cuda_->read(here, place, static_cast<int64_t>(bytes))
              : cuda_->copy_in(place, here, static_cast<int64_t>(bytes));
}

Status StatePool::move_slot(int32_t slot, std::byte* own, Transfer transfer) {
  Status status;
  for (size_t i = 0; i < layers_.size() && status.ok(); ++i) {
    status = move_entry(layers_[i].states, slot, &own, transfer);
    status = status.ok() ? move_entry(layers_[i].windows, slot, &own, transfer) : status;
  }
  return status;
}

Status StatePool::move_page(int32_t page, std::byte* own, Transfer transfer) {
  Status status;
  for (size_t i = 0; i < layers_.size() && status.ok(); ++i) {
    status = move_entry(layers_[i].latents, page, &own, transfer);
  }
  return status;
}

Status StatePool::read_slot(int32_t slot, std::span<std::byte> to) {
  check(static_cast<int64_t>(to.size()) == slot_bytes_, "state pool: size of a slot");
  return move_slot(slot, to.data(), Transfer::kOut);
}

Status StatePool::write_slot(int32_t slot, std::span<const std::byte> from) {
  check(static_cast<int64_t>(from.size()) == slot_bytes_, "state pool: size of a slot");
  return move_slot(slot, const_cast<std::byte*>(from.data()), Transfer::kIn);  // only read
}

Status StatePool::read_page(int32_t page, std::span<std::byte> to) {
  check(static_cast<int64_t>(to.size()) == page_bytes_, "state pool: size of a page");
  return move_page(page, to.data(), Transfer::kOut);
}

Status StatePool::write_page(int32_t page, std::span<const std::byte> from) {
  check(static_cast<int64_t>(from.size()) == page_bytes_, "state pool: size of a page");
  return move_page(page, const_cast<std::byte*>(from.data()), Transfer::kIn);  // only read
}

}  // namespace triax::model
