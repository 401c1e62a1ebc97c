// Logits of a panel of experts with AVX-512: tiles of 4 tokens by 6 experts in registers.
#include <immintrin.h>

#include "width/router/router_kernels.h"

namespace triax::width::internal {
namespace {

constexpr int64_t kTokens = 4;
constexpr int64_t kExperts = 6;

// One accumulator of 16 lanes for each pair, whatever the tile: the order of additions is fixed.
template <int T, int E>
struct Tile {
  __m512 acc[T][E];

  void add(const float* in, int64_t in_stride, const float* rows, int64_t size, __mmask16 mask) {
    __m512 w[E];
    for (int e = 0; e < E; ++e) {
      w[e] = _mm512_maskz_loadu_ps(mask, rows + e * size);
    }
    for (int t = 0; t < T; ++t) {
      const __m512 x = _mm512_maskz_loadu_ps(mask, in + t * in_stride);
      for (int e = 0; e < E; ++e) {
        acc[t][e] = _mm512_fmadd_ps(x, w[e], acc[t][e]);
      }
    }
  }
};

template <int T, int E>
void multiply(const float* in, int64_t in_stride, const float* rows, int64_t size, float* logits,
              int64_t logits_stride) {
  Tile<T, E> tile;
  for (int t = 0; t < T; ++t) {
    for (int e = 0; e < E; ++e) {
      tile.acc[t][e] = _mm512_setzero_ps();
    }
  }
  int64_t d = 0;
  for (; d + 16 <= size; d += 16) {
    tile.add(in + d, in_stride, rows + d, size, 0xffff);
  }
  if (d < size) {
    tile.add(in + d, in_stride, rows + d, size, static_cast<__mmask16>((1U << (size - d)) - 1U));
  }
  for (int t = 0; t < T; ++t) {
    for (int e = 0; e < E; ++e) {
      logits[t * logits_stride + e] = _mm512_reduce_add_ps(tile.acc[t][e]);
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

void router_logits_avx512(const LogitsTile& tile) {
  int64_t e = 0;
  for (; e + kExperts <= tile.experts; e += kExperts) {
    multiply_tokens<kExperts>(tile, e);
  }
  for (; e < tile.experts; ++e) {
    multiply_tokens<1>(tile, e);
  }
}

void unpack_rows_avx512(const MatrixView& matrix, int64_t first, int64_t count, float* out) {
  const MatrixView rows = matrix.row_range(first, first + count);
  const auto* from = static_cast<const uint16_t*>(rows.data);
  const int64_t size = count * rows.cols;
  const bool bf16 = matrix.format == MatrixFormat::kBf16;
  for (int64_t i = 0; i < size; i += 16) {
    const int64_t rest = size - i < 16 ? size - i : 16;
    const auto mask = static_cast<__mmask16>((1U << rest) - 1U);
    const __m256i half = _mm256_maskz_loadu_epi16(mask, from + i);
    const __m512 x = bf16 ? _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))
                          : _mm512_cvtph_ps(half);
    _mm512_mask_storeu_ps(out + i, mask, x);
  }
}

}  // namespace triax::width::internal
