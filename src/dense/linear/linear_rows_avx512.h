// Reading 16 weight rows at a time with AVX-512. Everything is local to the including file, so that
// no other file can be linked to code of this instruction set.
#pragma once

#include <immintrin.h>

#include "dense/linear/linear_kernels.h"

namespace triax::dense::linear_internal {
namespace {

constexpr int64_t kLanes = 16;

[[maybe_unused]] int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// 16 rows; rows beyond the matrix repeat the last one and are not stored.
struct Rows16 {
  Rows16(const uint8_t* base, int64_t stride, int64_t row, int64_t rows) {
    for (int64_t i = 0; i < kLanes; ++i) {
      p[i] = base + smaller(row + i, rows - 1) * stride;
    }
  }
  const uint8_t* p[kLanes];
};

struct Whole {
  static __m128i load(const uint8_t* p, int64_t) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  }
};
struct Part {
  static __m128i load(const uint8_t* p, int64_t bytes) {
    return _mm_maskz_loadu_epi8(static_cast<__mmask16>((1U << bytes) - 1U), p);
  }
};

// 16 bytes at `offset` of every row; out[d] holds dword d of all rows.
template <typename Load>
__attribute__((always_inline)) inline void transpose(const Rows16& rows, int64_t offset,
                                                     int64_t bytes, __m512i (&out)[4]) {
  __m512i z[4];
  for (int i = 0; i < 4; ++i) {
    __m512i v = _mm512_castsi128_si512(Load::load(rows.p[i] + offset, bytes));
    v = _mm512_inserti32x4(v, Load::load(rows.p[i + 4] + offset, bytes), 1);
    v = _mm512_inserti32x4(v, Load::load(rows.p[i + 8] + offset, bytes), 2);
    z[i] = _mm512_inserti32x4(v, Load::load(rows.p[i + 12] + offset, bytes), 3);
  }
  const __m512i a = _mm512_unpacklo_epi32(z[0], z[1]);
  const __m512i b = _mm512_unpackhi_epi32(z[0], z[1]);
  const __m512i c = _mm512_unpacklo_epi32(z[2], z[3]);
  const __m512i d = _mm512_unpackhi_epi32(z[2], z[3]);
  out[0] = _mm512_unpacklo_epi64(a, c);
  out[1] = _mm512_unpackhi_epi64(a, c);
  out[2] = _mm512_unpacklo_epi64(b, d);
  out[3] = _mm512_unpackhi_epi64(b, d);
}

// Scales of 16 rows, blocks [block, block + n), n <= 8, as floats.
[[maybe_unused]] void unpack_scales(const Work& work, int64_t row, int64_t block, int64_t n,
                                    __m512 (&scales)[8]) {
  const Rows16 rows(work.scales, work.scale_row_bytes, row, work.rows);
  __m512i v[4];
  if (work.format == MatrixFormat::kMxfp4) {
    transpose<Part>(rows, block, n, v);
    for (int b = 0; b < 8; ++b) {
      const __m512i s = _mm512_and_si512(_mm512_srlv_epi32(v[b / 4], _mm512_set1_epi32(b % 4 * 8)),
                                         _mm512_set1_epi32(255));
      const __mmask16 nan = _mm512_cmpeq_epi32_mask(s, _mm512_set1_epi32(255));
      const __m512i bits = _mm512_slli_epi32(s, 23);
      scales[b] = _mm512_castsi512_ps(_mm512_mask_or_epi32(bits, nan, bits, _mm512_set1_epi32(1)));
    }
  } else {
    transpose<Part>(rows, 2 * block, 2 * n, v);
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000U));
    for (int d = 0; d < 4; ++d) {
      scales[2 * d] = _mm512_castsi512_ps(_mm512_slli_epi32(v[d], 16));
      scales[2 * d + 1] = _mm512_castsi512_ps(_mm512_and_si512(v[d], upper));
    }
  }
}

// The lowest n bits.
[[maybe_unused]] __mmask16 low_mask16(int64_t n) {
  return n >= 16  ? __mmask16{0xffff}
         : n <= 0 ? __mmask16{0}
                  : static_cast<__mmask16>((1U << n) - 1U);
}

// The tile that begins at token t.
struct Tiles {
  explicit Tiles(int64_t tokens) {
    const int64_t count = (tokens + kTileRowsAvx512 - 1) / kTileRowsAvx512;
    small = tokens / count;
    small_begin = tokens % count * (small + 1);
  }
  int64_t rows(int64_t t) const { return t < small_begin ? small + 1 : small; }
  int64_t small;
  int64_t small_begin;
};

}  // namespace
}  // namespace triax::dense::linear_internal
