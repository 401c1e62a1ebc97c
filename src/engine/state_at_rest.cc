#include "engine/state_at_rest.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace triax::engine {
namespace {

size_t size(int64_t bytes) { return static_cast<size_t>(bytes); }

}  // namespace

StateAtRest::StateAtRest(const checkpoint::ModelConfig& config, int64_t slot_bytes,
                         store::StateEncoding encoding)
    : encoding_(encoding),
      shape_{config.kda.heads, config.kda.head_dim, config.kda.head_dim},
      layers_(config.count(checkpoint::LayerKind::kKda)) {
  const int64_t exact = shape_.elements() * int64_t{sizeof(float)};
  window_bytes_ = layers_ == 0 ? 0 : slot_bytes / layers_ - exact;
  encoded_bytes_ = store::encoded_state_bytes(encoding, shape_);
  bytes_ = encoding == store::StateEncoding::kF32 ? slot_bytes
                                                  : layers_ * (encoded_bytes_ + window_bytes_);
  check(layers_ * (exact + window_bytes_) == slot_bytes, "state at rest: the layout of a slot");
}

Status StateAtRest::encode(std::span<const std::byte> slot, std::span<std::byte> stored) const {
  if (encoding_ == store::StateEncoding::kF32) {
    std::ranges::copy(slot, stored.begin());
    return {};
  }
  const int64_t exact = shape_.elements() * int64_t{sizeof(float)};
  for (int64_t layer = 0; layer < layers_; ++layer) {
    const auto from = slot.subspan(size(layer * (exact + window_bytes_)));
    const auto to = stored.subspan(size(layer * (encoded_bytes_ + window_bytes_)));
    const std::span state(reinterpret_cast<const float*>(from.data()), size(shape_.elements()));
    if (Status s = store::encode_state(state, shape_, encoding_, best_isa(),
                                       to.first(size(encoded_bytes_)));
        !s.ok()) {
      return s;
    }
    std::memcpy(to.data() + encoded_bytes_, from.data() + exact, size(window_bytes_));
  }
  return {};
}

Status StateAtRest::decode(std::span<const std::byte> stored, std::span<std::byte> slot) const {
  if (encoding_ == store::StateEncoding::kF32) {
    std::ranges::copy(stored, slot.begin());
    return {};
  }
  const int64_t exact = shape_.elements() * int64_t{sizeof(float)};
  for (int64_t layer = 0; layer < layers_; ++layer) {
    const auto from = stored.subspan(size(layer * (encoded_bytes_ + window_bytes_)));
    const auto to = slot.subspan(size(layer * (exact + window_bytes_)));
    const std::span state(reinterpret_cast<float*>(to.data()), size(shape_.elements()));
    if (Status s = store::decode_state(from.first(size(encoded_bytes_)), shape_, best_isa(), state);
        !s.ok()) {
      return s;
    }
    std::memcpy(to.data() + exact, from.data() + encoded_bytes_, size(window_bytes_));
  }
  return {};
}

}  // namespace triax::engine
