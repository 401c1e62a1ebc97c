// What a model remembers of a sequence: recurrent states, convolution windows, latent pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/config.h"
#include "tensor/tensor.h"

namespace triax {
class CudaQueue;
}

namespace triax::model {

class StatePool;

/// One sequence's place in a StatePool, and the exact tokens that its state has seen.
/// Ownership  the slot is its own; full pages may be shared with others. All go back to the pool
///            when this ends, but for lent ones; the pool outlives it
class SequenceState {
 public:
  SequenceState() = default;
  SequenceState(SequenceState&& other) noexcept;
  SequenceState& operator=(SequenceState&& other) noexcept;
  ~SequenceState();

  /// Tokens seen so far, in order.
  const std::vector<int32_t>& tokens() const { return tokens_; }
  int64_t length() const { return static_cast<int64_t>(tokens_.size()); }
  int32_t slot() const { return slot_; }
  /// Page of token i is pages()[i / 64].
  std::span<const int32_t> pages() const { return pages_; }
  bool valid() const { return pool_ != nullptr; }

 private:
  friend class StatePool;
  StatePool* pool_ = nullptr;
  bool lent_ = false;
  int32_t slot_ = -1;
  std::vector<int32_t> pages_;
  std::vector<int32_t> tokens_;
};

/// A sequence's state before tokens that may have to be taken back.
/// Ownership  a slot; it goes back to the pool when this ends
class StateMark {
 public:
  StateMark() = default;
  StateMark(StateMark&& other) noexcept { *this = std::move(other); }
  StateMark& operator=(StateMark&& other) noexcept;
  ~StateMark();
  bool valid() const { return pool_ != nullptr; }

 private:
  friend class StatePool;
  StatePool* pool_ = nullptr;
  int32_t slot_ = -1;
  int64_t length_ = 0;
};

struct StatePoolSize {
  int64_t sequences = 1;  // slots
  int64_t tokens = 4096;  // of latents, over all sequences; rounded up to whole pages per sequence
  DType latents = DType::kF32;  // kBf16: where takes_bf16_latents
  /// Further slots and pages, the first by number, that the pool never hands out itself: a cache
  /// says what lies where (StatePool::lend).
  int64_t lent_slots = 0;
  int64_t lent_pages = 0;
  /// Overwrites what is freed with NaN, so that nothing can read it unnoticed.
  bool poison = false;
};

/// Whether that GPU has attention over bf16 latents of this model's sizes.
bool takes_bf16_latents(const checkpoint::ModelConfig& config, const CudaQueue& queue);

/// All memory that sequences of one model need, reserved at once; on the CPU taken from the system
/// on first touch. Layout: per KDA layer states [S, H, V, K] and windows [S, 3, 3 H K] (q, k, v
/// channels), per MLA layer latents [P, 64, R + E], all float32 but for bf16 latents.
/// Pages count their owners: sequences that were forked share what is full, and nobody writes to a
/// full page. Slots have one owner.
class StatePool {
 public:
  /// With a queue, which outlives this, all arrays lie in its GPU's memory.
  /// Errors     throws std::bad_alloc when there is no room
  StatePool(const checkpoint::ModelConfig& config, StatePoolSize size, CudaQueue* cuda = nullptr);
  StatePool(const StatePool&) = delete;
  StatePool& operator=(const StatePool&) = delete;

  /// A new, empty sequence, its states zero.
  /// Errors     kResourceExhausted when no slot is free
  Result<SequenceState> create();

  /// An independent sequence that goes on from the same bits: full pages are shared, the last one
  /// and the slot are copied.
  /// Errors     kResourceExhausted
  Result<SequenceState> fork(const SequenceState& state);

  /// Makes room for `tokens` more tokens.
  /// Errors     kResourceExhausted; the state is as before then
  Status reserve(SequenceState& state, int64_t tokens);
  /// Pages that reserve would take.
  int64_t pages_missing(const SequenceState& state, int64_t tokens) const;

  /// Records tokens that a forward pass has put into the state.
  void commit(SequenceState& state, std::span<const int32_t> tokens);

  /// Remembers the state as it is.
  /// Errors     kResourceExhausted when no slot is free
  Result<StateMark> mark(const SequenceState& state);
  /// Takes back all tokens since the mark: recurrent states and windows are those of then, bit for
  /// bit. Latents behind the length are not read and will be written over. Room stays reserved. The
  /// state was not forked in between.
  Status rewind(SequenceState& state, const StateMark& mark);

  /// A sequence on a lent slot, whose state has seen `tokens`. Neither slot nor pages are released
  /// when it ends; reserve takes no pages: set_pages comes first.
  SequenceState lend(int32_t slot, std::vector<int32_t> tokens);
  void set_pages(SequenceState& state, std::vector<int32_t> pages);

  /// For who lends: slot and page numbers, in the order of the device's queue.
  Status clear_slot(int32_t slot);
  Status copy_slot(int32_t from, int32_t to);
  Status copy_page(int32_t from, int32_t to);
  /// Nothing without StatePoolSize::poison.
  Status poison_slot(int32_t slot);
  Status poison_page(int32_t page);

  /// One slot as bytes of this process: by KDA layer the state [H, V, K], then the window [3, 3 H
  /// K]. One page: by MLA layer its latents [64, R + E], in the pool's type.
  /// Errors     those of the GPU; sizes must match
  int64_t slot_bytes() const { return slot_bytes_; }
  int64_t page_bytes() const { return page_bytes_; }
  Status read_slot(int32_t slot, std::span<std::byte> to);
  Status write_slot(int32_t slot, std::span<const std::byte> from);
  Status read_page(int32_t page, std::span<std::byte> to);
  Status write_page(int32_t page, std::span<const std::byte> from);

  /// Writes the state to a safetensors file (docs/formats/state.md), atomically.
  /// `fingerprint` names the model: restore refuses another one's.
  Status save(const SequenceState& state, uint64_t fingerprint, const std::string& path) const;

  /// Errors     kInvalidArgument for another model's state, kDataLoss for a damaged file,
  ///            kResourceExhausted when the pool is full
  Result<SequenceState> restore(uint64_t fingerprint, const std::string& path);

  /// Views by layer (index over all layers of the model); empty for the other kind of layer.
  TensorView kda_states(int64_t layer) { return layers_[index(layer)].states; }
  TensorView conv_windows(int64_t layer) { return layers_[index(layer)].windows; }
  TensorView latents(int64_t layer) { return layers_[index(layer)].latents; }

  DType latent_type() const { return latents_.view().dtype(); }

  /// Sequences that hold the page; 0: free, or lent.
  int32_t owners(int32_t page) const { return owners_[index(page)]; }
  int64_t pages_free() const { return static_cast<int64_t>(free_pages_.size()); }
  int64_t slots_free() const { return static_cast<int64_t>(free_slots_.size()); }

 private:
  friend class SequenceState;
  friend class StateMark;
  struct LayerMemory {
    TensorView states, windows, latents;  // parts of the arrays below
  };
  enum class Transfer { kOut, kIn };
  static size_t index(int64_t i) { return static_cast<size_t>(i); }
  void release(SequenceState& state);
  Result<int32_t> take_slot();
  void release_slot(int32_t slot);
  int32_t take_page();
  void release_page(int32_t page);
  Status copy_entry(TensorView view, int64_t from, int64_t to);
  Status fill_entry(TensorView view, int64_t i, int byte);
  Status move_slot(int32_t slot, std::byte* own, Transfer transfer);
  Status move_page(int32_t page, std::byte* own, Transfer transfer);
  Status move_entry(TensorView view, int64_t i, std::byte** own, Transfer transfer);
  Tensor array(DType dtype, std::initializer_list<int64_t> shape);

  CudaQueue* cuda_ = nullptr;
  bool poison_ = false;
  int64_t slot_bytes_ = 0;
  int64_t page_bytes_ = 0;
  Tensor states_, windows_, latents_;  // of all layers, so that large pages back them
  std::vector<LayerMemory> layers_;
  std::vector<int32_t> free_slots_;
  std::vector<int32_t> free_pages_;
  std::vector<int32_t> owners_;  // by page
};

}  // namespace triax::model
