// The loops of machine_peak with AVX2 and FMA.
#include <immintrin.h>

#include "device/machine_peak_kernels.h"

namespace triax::machine_peak_internal {

uint64_t read_avx2(const void* p, int64_t bytes) {
  const auto* data = static_cast<const char*>(p);
  __m256i sums[8] = {};
  for (int64_t offset = 0; offset < bytes; offset += 256) {
    for (int i = 0; i < 8; ++i) {
      const auto* word = reinterpret_cast<const __m256i*>(data + offset + 32 * i);
      sums[i] = _mm256_xor_si256(sums[i], _mm256_loadu_si256(word));
    }
  }
  for (int i = 1; i < 8; ++i) {
    sums[0] = _mm256_xor_si256(sums[0], sums[i]);
  }
  return static_cast<uint64_t>(_mm256_extract_epi64(sums[0], 0) ^ _mm256_extract_epi64(sums[0], 3));
}

float multiply_add_avx2(int64_t rounds, float start) {
  const __m256 factor = _mm256_set1_ps(0.999f);
  const __m256 term = _mm256_set1_ps(0.5f);
  __m256 sums[12];
  for (int i = 0; i < 12; ++i) {
    sums[i] = _mm256_set1_ps(start + static_cast<float>(i));
  }
  for (int64_t round = 0; round < rounds; ++round) {
    for (int i = 0; i < 12; ++i) {
      sums[i] = _mm256_fmadd_ps(sums[i], factor, term);
    }
  }
  for (int i = 1; i < 12; ++i) {
    sums[0] = _mm256_add_ps(sums[0], sums[i]);
  }
  return _mm256_cvtss_f32(sums[0]);
}

}  // namespace triax::machine_peak_internal
