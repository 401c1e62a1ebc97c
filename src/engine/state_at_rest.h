// A sequence's recurrent states as they lie in tiers below the device: exact, or in fewer bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/cpu.h"
#include "base/status.h"
#include "checkpoint/config.h"
#include "store/state_codec.h"

namespace triax::engine {

/// Between one slot of a model::StatePool, as bytes, and what is stored of it: by KDA layer the
/// state encoded (store/state_codec.h), then the convolution window in float32. With kF32 the bytes
/// are those of the slot. What was decoded and is encoded again gives the same bytes, so a state
/// that only moves between tiers never drifts.
class StateAtRest {
 public:
  StateAtRest(const checkpoint::ModelConfig& config, int64_t slot_bytes,
              store::StateEncoding encoding);

  int64_t bytes() const { return bytes_; }
  /// Whether what is stored is the slot itself.
  bool exact() const { return encoding_ == store::StateEncoding::kF32; }

  /// Shapes     slot of slot_bytes, stored of bytes()
  /// Errors     kInvalidArgument: int8 of an element that is not finite
  Status encode(std::span<const std::byte> slot, std::span<std::byte> stored) const;
  /// Errors     kDataLoss: nothing that encode wrote
  Status decode(std::span<const std::byte> stored, std::span<std::byte> slot) const;

 private:
  store::StateEncoding encoding_;
  store::StateShape shape_;  // of one layer
  int64_t layers_ = 0;
  int64_t window_bytes_ = 0;   // of one layer
  int64_t encoded_bytes_ = 0;  // of one layer's state
  int64_t bytes_ = 0;
};

}  // namespace triax::engine
