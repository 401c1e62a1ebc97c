// rms_norm of one row with AVX-512.
#include <immintrin.h>

#include "dense/norm/norm_kernels.h"

namespace triax::dense::internal {
namespace {

double sum_of_squares(const float* in, int64_t size) {
  __m512d acc[4] = {_mm512_setzero_pd(), _mm512_setzero_pd(), _mm512_setzero_pd(),
                    _mm512_setzero_pd()};
  int64_t d = 0;
  for (; d + 32 <= size; d += 32) {
    for (int i = 0; i < 4; ++i) {
      const __m512d x = _mm512_cvtps_pd(_mm256_loadu_ps(in + d + 8 * i));
      acc[i] = _mm512_fmadd_pd(x, x, acc[i]);
    }
  }
  for (; d < size; d += 8) {
    const int64_t rest = size - d < 8 ? size - d : 8;
    const auto mask = static_cast<__mmask8>((1U << rest) - 1U);
    const __m512d x = _mm512_cvtps_pd(_mm256_maskz_loadu_ps(mask, in + d));
    acc[0] = _mm512_fmadd_pd(x, x, acc[0]);
  }
  return _mm512_reduce_add_pd(
      _mm512_add_pd(_mm512_add_pd(acc[0], acc[1]), _mm512_add_pd(acc[2], acc[3])));
}

}  // namespace

void rms_norm_row_avx512(const float* in, const float* weight, float eps, int64_t size,
                         float* out) {
  const double mean = sum_of_squares(in, size) / static_cast<double>(size);
  const auto scale = static_cast<float>(1.0 / __builtin_sqrt(mean + static_cast<double>(eps)));
  const __m512 scales = _mm512_set1_ps(scale);
  for (int64_t d = 0; d < size; d += 16) {
    const int64_t rest = size - d < 16 ? size - d : 16;
    const auto mask = static_cast<__mmask16>((1U << rest) - 1U);
    const __m512 x = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, in + d), scales);
    _mm512_mask_storeu_ps(out + d, mask, _mm512_mul_ps(x, _mm512_maskz_loadu_ps(mask, weight + d)));
  }
}

}  // namespace triax::dense::internal
