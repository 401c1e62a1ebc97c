// The inner loops of the state codec, once for each instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace triax::store::internal {

struct StateCodecKernels {
  void (*to_bf16)(const float* in, int64_t count, std::byte* out);
  void (*from_bf16)(const std::byte* in, int64_t count, float* out);
  /// One matrix [v, k]; scales k floats. False when an element cannot be encoded.
  bool (*to_int8)(const float* in, int64_t v, int64_t k, std::byte* scales, std::byte* out);
  void (*from_int8)(const std::byte* in, const std::byte* scales, int64_t v, int64_t k, float* out);
};

const StateCodecKernels& state_codec_portable();
const StateCodecKernels& state_codec_avx2();
const StateCodecKernels& state_codec_avx512();

}  // namespace triax::store::internal
