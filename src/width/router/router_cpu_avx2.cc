// Logits of a panel of experts with AVX2: tiles of 2 tokens by 4 experts in registers.
#include <immintrin.h>

#include "width/router/router_kernels.h"

namespace triax::width::internal {
namespace {

constexpr int64_t kTokens = 2;
constexpr int64_t kExperts = 4;

__m256i lanes_below(int64_t count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

float sum_of_lanes(__m256 x) {
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

// One accumulator of 8 lanes for each pair, whatever the tile: the order of additions is fixed.
template <int T, int E>
void multiply(const float* in, int64_t in_stride, const float* rows, int64_t size, float* logits,
              int64_t logits_stride) {
  __m256 acc[T][E];
  for (int t = 0; t < T; ++t) {
    for (int e = 0; e < E; ++e) {
      acc[t][e] = _mm256_setzero_ps();
    }
  }
  int64_t d = 0;
  for (; d + 8 <= size; d += 8) {
    __m256 x[T];
    for (int t = 0; t < T; ++t) {
      x[t] = _mm256_loadu_ps(in + t * in_stride + d);
    }
    for (int e = 0; e < E; ++e) {
      const __m256 w = _mm256_loadu_ps(rows + e * size + d);
      for (int t = 0; t < T; ++t) {
        acc[t][e] = _mm256_fmadd_ps(x[t], w, acc[t][e]);
      }
    }
  }
  const __m256i mask = lanes_below(size - d);
  for (int t = 0; t < T; ++t) {
    const __m256 x = _mm256_maskload_ps(in + t * in_stride + d, mask);
    for (int e = 0; e < E; ++e) {
      const __m256 w = _mm256_maskload_ps(rows + e * size + d, mask);
      logits[t * logits_stride + e] = sum_of_lanes(_mm256_fmadd_ps(x, w, acc[t][e]));
    }
  }
}

template <int E>
void multiply_tokens(const LogitsTile& tile, int64_t expert) {
  const float* rows = tile.rows + expert * tile.size;
  int64_t t = 0;
  for (; t + kTokens <= tile.tokens; t += kTokens) {
    multiply<kTokens, E>(tile.in + t * tile.in_stride, tile.in_stride, rows, tile.size,
                         tile.logits + t * tile.logits_stride + expert, tile.logits_stride);
  }
  for (; t < tile.tokens; ++t) {
    multiply<1, E>(tile.in + t * tile.in_stride, tile.in_stride, rows, tile.size,
                   tile.logits + t * tile.logits_stride + expert, tile.logits_stride);
  }
}

}  // namespace

void router_logits_avx2(const LogitsTile& tile) {
  int64_t e = 0;
  for (; e + kExperts <= tile.experts; e += kExperts) {
    multiply_tokens<kExperts>(tile, e);
  }
  for (; e < tile.experts; ++e) {
    multiply_tokens<1>(tile, e);
  }
}

void unpack_rows_avx2(const MatrixView& matrix, int64_t first, int64_t count, float* out) {
  const MatrixView rows = matrix.row_range(first, first + count);
  const auto* from = static_cast<const uint16_t*>(rows.data);
  const int64_t size = count * rows.cols;
  const bool bf16 = matrix.format == MatrixFormat::kBf16;
  for (int64_t i = 0; i < size; i += 8) {
    // The tail goes through a buffer: AVX2 has no masked loads of 16 bits.
    uint16_t padded[8] = {};
    const uint16_t* source = from + i;
    if (size - i < 8) {
      for (int64_t lane = 0; lane < size - i; ++lane) {
        padded[lane] = source[lane];
      }
      source = padded;
    }
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source));
    const __m256 x = bf16 ? _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16))
                          : _mm256_cvtph_ps(half);
    _mm256_maskstore_ps(out + i, lanes_below(size - i < 8 ? size - i : 8), x);
  }
}

}  // namespace triax::width::internal
