// rms_norm of one row with AVX2.
#include <immintrin.h>

#include "dense/norm/norm_kernels.h"

namespace triax::dense::internal {
namespace {

double sum_of_lanes(__m256d x) {
  const __m128d pair = _mm_add_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd(x, 1));
  return _mm_cvtsd_f64(_mm_add_sd(pair, _mm_unpackhi_pd(pair, pair)));
}

double sum_of_squares(const float* in, int64_t size) {
  __m256d acc[4] = {_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(),
                    _mm256_setzero_pd()};
  int64_t d = 0;
  for (; d + 16 <= size; d += 16) {
    for (int i = 0; i < 4; ++i) {
      const __m256d x = _mm256_cvtps_pd(_mm_loadu_ps(in + d + 4 * i));
      acc[i] = _mm256_fmadd_pd(x, x, acc[i]);
    }
  }
  double tail = 0.0;
  for (; d < size; ++d) {
    tail += static_cast<double>(in[d]) * static_cast<double>(in[d]);
  }
  const __m256d sum = _mm256_add_pd(_mm256_add_pd(acc[0], acc[1]), _mm256_add_pd(acc[2], acc[3]));
  return sum_of_lanes(sum) + tail;
}

}  // namespace

void rms_norm_row_avx2(const float* in, const float* weight, float eps, int64_t size, float* out) {
  const double mean = sum_of_squares(in, size) / static_cast<double>(size);
  const auto scale = static_cast<float>(1.0 / __builtin_sqrt(mean + static_cast<double>(eps)));
  const __m256 scales = _mm256_set1_ps(scale);
  int64_t d = 0;
  for (; d + 8 <= size; d += 8) {
    const __m256 x = _mm256_mul_ps(_mm256_loadu_ps(in + d), scales);
    _mm256_storeu_ps(out + d, _mm256_mul_ps(x, _mm256_loadu_ps(weight + d)));
  }
  for (; d < size; ++d) {
    out[d] = in[d] * scale * weight[d];
  }
}

}  // namespace triax::dense::internal
