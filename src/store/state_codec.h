// Recurrent states at rest: float32, bfloat16, or 8 bits with a scale for each key channel.
// For what is stored only: states are computed on in float32, and are never kept in one of these
// from step to step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/cpu.h"
#include "base/status.h"

namespace triax::store {

/// The numbers are those of the format at rest.
enum class StateEncoding : uint32_t { kF32 = 0, kBf16 = 1, kInt8 = 2 };

/// "f32", "bf16", "int8".
std::string_view encoding_name(StateEncoding encoding);
Result<StateEncoding> parse_encoding(std::string_view name);

/// `matrices` times [V, K]: the heads of a KDA layer, or of several layers.
struct StateShape {
  int64_t matrices = 0;
  int64_t v = 0;
  int64_t k = 0;
  int64_t elements() const { return matrices * v * k; }
};

inline constexpr int64_t kStateHeaderBytes = 32;

/// Bytes of an encoded state: a header, the elements, and for kInt8 matrices * K scales.
int64_t encoded_state_bytes(StateEncoding encoding, const StateShape& shape);

/// Shapes     state [matrices, V, K]; out of encoded_state_bytes
/// Precision  kF32 exact. kBf16: |error| <= 2^-8 |x|, for |x| >= 2^-126. kInt8: |error| <=
///            a / 254 (1 + 2^-14) + 2^-99, a the largest |x| of the same matrix and column k. Each
///            is idempotent: encoding what was decoded gives the same bytes, so that nothing drifts
///            however often an untouched state goes through it
/// Aliasing   none
/// Errors     kInvalidArgument: sizes; kInt8: an element is not finite, or 2^126 and larger
/// Source     docs/formats/store.md; why by column: README.md
Status encode_state(std::span<const float> state, const StateShape& shape, StateEncoding encoding,
                    Isa isa, std::span<std::byte> out);

/// The encoding is that of the header.
/// Errors     kDataLoss: no encoded state, or of another shape; `state` holds anything then
Status decode_state(std::span<const std::byte> in, const StateShape& shape, Isa isa,
                    std::span<float> state);

/// Errors     kDataLoss: no encoded state
Result<StateEncoding> encoding_of(std::span<const std::byte> in);

}  // namespace triax::store
