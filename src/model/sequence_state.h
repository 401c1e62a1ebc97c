// What a model remembers of a sequence: recurrent states, convolution windows, latent pages.
#pragma once

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
/// Ownership  the slot and the pages go back to the pool when this ends; the pool outlives it
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
  int32_t slot_ = -1;
  std::vector<int32_t> pages_;
  std::vector<int32_t> tokens_;
};

struct StatePoolSize {
  int64_t sequences = 1;  // slots
  int64_t tokens = 4096;  // of latents, over all sequences; rounded up to whole pages per sequence
  DType latents = DType::kF32;  // kBf16: where takes_bf16_latents
};

/// Whether that GPU has attention over bf16 latents of this model's sizes.
bool takes_bf16_latents(const checkpoint::ModelConfig& config, const CudaQueue& queue);

/// All memory that sequences of one model need, reserved at once; on the CPU taken from the system
/// on first touch. Layout: per KDA layer states [S, H, V, K] and windows [S, 3, 3 H K] (q, k, v
/// channels), per MLA layer latents [P, 64, R + E], all float32 but for bf16 latents.
class StatePool {
 public:
  /// With a queue, which outlives this, all arrays lie in its GPU's memory.
  /// Errors     throws std::bad_alloc when there is no room
  StatePool(const checkpoint::ModelConfig& config, StatePoolSize size, CudaQueue* cuda = nullptr);
  StatePool(const StatePool&) = delete;
  StatePool& operator=(const StatePool&) = delete;

  /// A new, empty sequence.
  /// Errors     kResourceExhausted when no slot is free
  Result<SequenceState> create();

  /// An independent copy, bit for bit.
  /// Errors     kResourceExhausted
  Result<SequenceState> fork(const SequenceState& state);

  /// Makes room for `tokens` more tokens.
  /// Errors     kResourceExhausted; the state is as before then
  Status reserve(SequenceState& state, int64_t tokens);

  /// Records tokens that a forward pass has put into the state.
  void commit(SequenceState& state, std::span<const int32_t> tokens);

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

  int64_t pages_free() const { return static_cast<int64_t>(free_pages_.size()); }
  int64_t slots_free() const { return static_cast<int64_t>(free_slots_.size()); }

 private:
  friend class SequenceState;
  struct LayerMemory {
    TensorView states, windows, latents;  // parts of the arrays below
  };
  static size_t index(int64_t i) { return static_cast<size_t>(i); }
  void release(SequenceState& state);
  Result<SequenceState> take_slot();
  Status copy_entry(TensorView view, int64_t from, int64_t to);
  Status zero_entry(TensorView view, int64_t i);
  Tensor array(DType dtype, std::initializer_list<int64_t> shape);

  CudaQueue* cuda_ = nullptr;
  Tensor states_, windows_, latents_;  // of all layers, so that large pages back them
  std::vector<LayerMemory> layers_;
  std::vector<int32_t> free_slots_;
  std::vector<int32_t> free_pages_;
};

}  // namespace triax::model
