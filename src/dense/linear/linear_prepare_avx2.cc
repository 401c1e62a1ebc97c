// Activations as the AVX2 kernels read them.
#include <immintrin.h>

#include "dense/linear/linear_kernels.h"

namespace triax::dense::linear_internal {
namespace {

int64_t round_up(int64_t a, int64_t b) { return (a + b - 1) / b * b; }

// As integers NaN > infinity > numbers.
int32_t largest_magnitude(const __m256 (&v)[4]) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i m = _mm256_setzero_si256();
  for (__m256 x : v) {
    m = _mm256_max_epi32(m, _mm256_and_si256(_mm256_castps_si256(x), magnitude));
  }
  __m128i n = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
  n = _mm_max_epi32(n, _mm_shuffle_epi32(n, 0x4e));
  n = _mm_max_epi32(n, _mm_shuffle_epi32(n, 0xb1));
  return _mm_cvtsi128_si32(n);
}

// 32 integers of -127..127 as bytes in order.
__m256i narrow(const __m256i (&v)[4]) {
  const __m256i a = _mm256_packs_epi32(v[0], v[1]);
  const __m256i b = _mm256_packs_epi32(v[2], v[3]);
  return _mm256_permutevar8x32_epi32(_mm256_packs_epi16(a, b),
                                     _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

// Even columns first, then the odd ones: where the low and the high nibbles are multiplied.
__m256i evens_then_odds(__m256i q) {
  const __m256i order = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
  return _mm256_permute4x64_epi64(_mm256_shuffle_epi8(q, order), 0xd8);
}

int32_t sum_bytes(__m256i q) {
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), q);
  const __m256i v = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  __m128i n = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  n = _mm_add_epi32(n, _mm_shuffle_epi32(n, 0x4e));
  n = _mm_add_epi32(n, _mm_shuffle_epi32(n, 0xb1));
  return _mm_cvtsi128_si32(n);
}

}  // namespace

void quantize_avx2(const float* x, int64_t cols, MatrixFormat format, const QuantizedRow& row) {
  const bool mxfp4 = format == MatrixFormat::kMxfp4;
  const int64_t blocks = cols / kScaleBlock;
  for (int64_t block = 0; block < blocks; ++block) {
    __m256 v[4];
    for (int i = 0; i < 4; ++i) {
      v[i] = _mm256_loadu_ps(x + block * kScaleBlock + 8 * i);
    }
    const int32_t bits = largest_magnitude(v);
    const bool finite = bits < 0x7f800000;
    const float amax = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(bits)));
    const bool zero = !finite || amax < 0x1.0p-100f;
    const __m256 inverse = _mm256_set1_ps(zero ? 0.0f : 127.0f / amax);
    const __m256i keep = _mm256_set1_epi32(finite ? -1 : 0);
    __m256i integers[4];
    for (int i = 0; i < 4; ++i) {
      integers[i] = _mm256_and_si256(_mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse)), keep);
    }
    __m256i q = narrow(integers);
    row.sums[block] = mxfp4 ? -12 * sum_bytes(q) : 0;
    q = mxfp4 ? evens_then_odds(q) : q;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(row.values + block * kScaleBlock), q);
    const float scale = zero ? 0.0f : amax / 127.0f * (mxfp4 ? 0.5f : 1.0f);
    row.scales[block] = finite ? scale : __builtin_nanf("");
  }
  for (int64_t c = cols; c < round_up(cols, kColumnPad); c += kScaleBlock) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(row.values + c), _mm256_setzero_si256());
  }
  for (int64_t block = blocks; block < round_up(blocks, 16); ++block) {
    row.scales[block] = 0.0f;
    row.sums[block] = 0;
  }
}

// In a block of 32 the 16 even columns, then the 16 odd ones.
void pack_decode_avx2(const float* x, int64_t cols, float* packed) {
  for (int64_t c = 0; c < cols; c += 16) {
    const __m256 a = _mm256_loadu_ps(x + c);
    const __m256 b = _mm256_loadu_ps(x + c + 8);
    const __m256d even = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88));
    const __m256d odd = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0xdd));
    float* out = packed + c / kScaleBlock * kScaleBlock + c % kScaleBlock / 2;
    _mm256_storeu_ps(out, _mm256_castpd_ps(_mm256_permute4x64_pd(even, 0xd8)));
    _mm256_storeu_ps(out + 16, _mm256_castpd_ps(_mm256_permute4x64_pd(odd, 0xd8)));
  }
}

void pack_tile_avx2(const float* x, int64_t stride, int64_t rows, int64_t cols, float* packed) {
  for (int64_t i = 0; i < rows; ++i) {
    const float* in = x + i * stride;
    for (int64_t c = 0; c < cols; ++c) {
      packed[c * rows + i] = in[c];
    }
  }
}

}  // namespace triax::dense::linear_internal
