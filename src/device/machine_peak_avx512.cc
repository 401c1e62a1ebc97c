// The loops of machine_peak with AVX-512.
#include <immintrin.h>

#include "device/machine_peak_kernels.h"

namespace triax::machine_peak_internal {

uint64_t read_avx512(const void* p, int64_t bytes) {
  const auto* data = static_cast<const char*>(p);
  __m512i sums[8] = {};
  for (int64_t offset = 0; offset < bytes; offset += 512) {
    for (int i = 0; i < 8; ++i) {
      sums[i] = _mm512_xor_si512(sums[i], _mm512_loadu_si512(data + offset + 64 * i));
    }
  }
  for (int i = 1; i < 8; ++i) {
    sums[0] = _mm512_xor_si512(sums[0], sums[i]);
  }
  const __m256i half =
      _mm256_xor_si256(_mm512_castsi512_si256(sums[0]), _mm512_extracti64x4_epi64(sums[0], 1));
  return static_cast<uint64_t>(_mm256_extract_epi64(half, 0) ^ _mm256_extract_epi64(half, 3));
}

float multiply_add_avx512(int64_t rounds, float start) {
  const __m512 factor = _mm512_set1_ps(0.999f);
  const __m512 term = _mm512_set1_ps(0.5f);
  __m512 sums[16];
  for (int i = 0; i < 16; ++i) {
    sums[i] = _mm512_set1_ps(start + static_cast<float>(i));
  }
  for (int64_t round = 0; round < rounds; ++round) {
    for (int i = 0; i < 16; ++i) {
      sums[i] = _mm512_fmadd_ps(sums[i], factor, term);
    }
  }
  for (int i = 1; i < 16; ++i) {
    sums[0] = _mm512_add_ps(sums[0], sums[i]);
  }
  return _mm512_cvtss_f32(sums[0]);
}

}  // namespace triax::machine_peak_internal
