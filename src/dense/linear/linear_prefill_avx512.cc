// Prefill with float activations and AVX-512: 32 weight rows are unpacked to a panel [columns, 32]
// of floats, which tiles of up to 12 tokens multiply.
#include <immintrin.h>

#include "dense/linear/linear_kernels.h"

namespace triax::dense::linear_internal {
namespace {

constexpr int64_t kLanes = 16;
constexpr int64_t kWidth = 32;   // weight rows of a panel
constexpr int64_t kDepth = 256;  // columns of a panel: 32 KiB of floats
constexpr int64_t kPanels = 4;   // panels unpacked before tokens pass over them
constexpr int64_t kPanelFloats = kWidth * kDepth;

int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

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
void transpose(const Rows16& rows, int64_t offset, int64_t bytes, __m512i (&out)[4]) {
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

// Formats: `kColumns` in 16 bytes; unpack() writes those of 16 rows, one column every kWidth.
struct UnpackF32 {
  static constexpr int64_t kColumns = 4;
  static void unpack(const __m512i (&v)[4], __m512, float* out) {
    for (int d = 0; d < 4; ++d) {
      _mm512_storeu_ps(out + d * kWidth, _mm512_castsi512_ps(v[d]));
    }
  }
};

struct UnpackBf16 {
  static constexpr int64_t kColumns = 8;
  static void unpack(const __m512i (&v)[4], __m512, float* out) {
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000U));
    for (int d = 0; d < 4; ++d) {
      _mm512_storeu_ps(out + 2 * d * kWidth, _mm512_castsi512_ps(_mm512_slli_epi32(v[d], 16)));
      _mm512_storeu_ps(out + (2 * d + 1) * kWidth,
                       _mm512_castsi512_ps(_mm512_and_si512(v[d], upper)));
    }
  }
};

struct UnpackF16 {
  static constexpr int64_t kColumns = 8;
  static void unpack(const __m512i (&v)[4], __m512, float* out) {
    for (int d = 0; d < 4; ++d) {
      const __m256i even = _mm512_cvtepi32_epi16(v[d]);
      const __m256i odd = _mm512_cvtepi32_epi16(_mm512_srli_epi32(v[d], 16));
      _mm512_storeu_ps(out + 2 * d * kWidth, _mm512_cvtph_ps(even));
      _mm512_storeu_ps(out + (2 * d + 1) * kWidth, _mm512_cvtph_ps(odd));
    }
  }
};

struct UnpackMxfp4 {
  static constexpr int64_t kColumns = 32;
  static void unpack(const __m512i (&v)[4], __m512 scale, float* out) {
    const __m512 table =
        _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
    for (int d = 0; d < 4; ++d) {
      __m512i w = v[d];
      for (int j = 0; j < 8; ++j) {
        _mm512_storeu_ps(out + (8 * d + j) * kWidth,
                         _mm512_mul_ps(_mm512_permutexvar_ps(w, table), scale));
        w = _mm512_srli_epi32(w, 4);
      }
    }
  }
};

struct UnpackInt8 {
  static constexpr int64_t kColumns = 16;
  static void unpack(const __m512i (&v)[4], __m512 scale, float* out) {
    for (int d = 0; d < 4; ++d) {
      const __m512i w[4] = {_mm512_srai_epi32(_mm512_slli_epi32(v[d], 24), 24),
                            _mm512_srai_epi32(_mm512_slli_epi32(v[d], 16), 24),
                            _mm512_srai_epi32(_mm512_slli_epi32(v[d], 8), 24),
                            _mm512_srai_epi32(v[d], 24)};
      for (int j = 0; j < 4; ++j) {
        _mm512_storeu_ps(out + (4 * d + j) * kWidth,
                         _mm512_mul_ps(_mm512_cvtepi32_ps(w[j]), scale));
      }
    }
  }
};

// Scales of 16 rows, blocks [block, block + n), n <= 8, as floats.
void unpack_scales(const Work& work, int64_t row, int64_t block, int64_t n, __m512 (&scales)[8]) {
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

// Columns [begin, end) of 16 rows.
template <typename Format>
void unpack16(const Work& work, int64_t row, int64_t begin, int64_t end, float* out) {
  const Rows16 rows(work.data, work.row_bytes, row, work.rows);
  __m512 scales[8] = {};
  constexpr bool kScaled = Format::kColumns >= 16;
  if constexpr (kScaled) {
    unpack_scales(work, row, begin / kScaleBlock, (end - begin) / kScaleBlock, scales);
  }
  constexpr int64_t kColumnsPer = Format::kColumns;
  int64_t offset = begin / kColumnsPer * 16;
  int64_t c = begin;
  __m512i v[4];
  for (; c + kColumnsPer <= end; c += kColumnsPer, offset += 16) {
    transpose<Whole>(rows, offset, 16, v);
    Format::unpack(v, kScaled ? scales[(c - begin) / kScaleBlock] : _mm512_setzero_ps(),
                   out + (c - begin) * kWidth);
  }
  if (c < end) {
    transpose<Part>(rows, offset, (end - c) * 16 / kColumnsPer, v);
    Format::unpack(v, _mm512_setzero_ps(), out + (c - begin) * kWidth);
  }
}

template <typename Format>
void unpack32(const Work& work, int64_t row, int64_t begin, int64_t end, float* out) {
  unpack16<Format>(work, row, begin, end, out);
  unpack16<Format>(work, row + kLanes, begin, end, out + kLanes);
}

void unpack_panel(const Work& work, int64_t row, int64_t begin, int64_t end, float* out) {
  switch (work.format) {
    case MatrixFormat::kF32:
      return unpack32<UnpackF32>(work, row, begin, end, out);
    case MatrixFormat::kF16:
      return unpack32<UnpackF16>(work, row, begin, end, out);
    case MatrixFormat::kBf16:
      return unpack32<UnpackBf16>(work, row, begin, end, out);
    case MatrixFormat::kMxfp4:
      return unpack32<UnpackMxfp4>(work, row, begin, end, out);
    case MatrixFormat::kInt8:
      return unpack32<UnpackInt8>(work, row, begin, end, out);
  }
}

// One tile's output: [M, 32] at `out`, columns beyond the matrix masked off.
struct Output {
  float* out;
  int64_t stride;
  __mmask16 low;
  __mmask16 high;
};

// out (+)= x w over `depth` columns; one accumulator an element, columns in ascending order.
template <int M>
void multiply_tile(const float* x, const float* w, int64_t depth, const Output& output,
                   bool first) {
  __m512 sums[M][2];
  for (int i = 0; i < M; ++i) {
    const float* out = output.out + i * output.stride;
    sums[i][0] = first ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(output.low, out);
    sums[i][1] = first ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(output.high, out + kLanes);
  }
  for (int64_t c = 0; c < depth; ++c) {
    const __m512 w0 = _mm512_load_ps(w + c * kWidth);
    const __m512 w1 = _mm512_load_ps(w + c * kWidth + kLanes);
    for (int i = 0; i < M; ++i) {
      const __m512 a = _mm512_set1_ps(x[c * M + i]);
      sums[i][0] = _mm512_fmadd_ps(a, w0, sums[i][0]);
      sums[i][1] = _mm512_fmadd_ps(a, w1, sums[i][1]);
    }
  }
  for (int i = 0; i < M; ++i) {
    float* out = output.out + i * output.stride;
    _mm512_mask_storeu_ps(out, output.low, sums[i][0]);
    _mm512_mask_storeu_ps(out + kLanes, output.high, sums[i][1]);
  }
}

using TileFunction = void (*)(const float*, const float*, int64_t, const Output&, bool);
constexpr TileFunction kTileFunctions[kTileRowsAvx512 + 1] = {
    nullptr,           multiply_tile<1>,  multiply_tile<2>, multiply_tile<3>, multiply_tile<4>,
    multiply_tile<5>,  multiply_tile<6>,  multiply_tile<7>, multiply_tile<8>, multiply_tile<9>,
    multiply_tile<10>, multiply_tile<11>, multiply_tile<12>};

__mmask16 low_mask16(int64_t n) {
  return n >= 16  ? __mmask16{0xffff}
         : n <= 0 ? __mmask16{0}
                  : static_cast<__mmask16>((1U << n) - 1U);
}

// Tokens [token_begin, token_end) by the panels of rows [row, row_end), columns from `begin`.
void multiply_panels(const Work& work, const Range& range, int64_t begin, int64_t depth,
                     const float* panels) {
  const int64_t tiles = (work.tokens + kTileRowsAvx512 - 1) / kTileRowsAvx512;
  const int64_t small = work.tokens / tiles;
  const int64_t first_small = work.tokens % tiles * (small + 1);
  for (int64_t t = range.token_begin; t < range.token_end;) {
    const int64_t rows = t < first_small ? small + 1 : small;
    const float* x = work.x + t * work.cols + begin * rows;
    const float* w = panels;
    for (int64_t row = range.row_begin; row < range.row_end; row += kWidth, w += kPanelFloats) {
      const Output output = {work.out + t * work.out_stride + row, work.out_stride,
                             low_mask16(range.row_end - row),
                             low_mask16(range.row_end - row - kLanes)};
      kTileFunctions[rows](x, w, depth, output, begin == 0);
    }
    t += rows;
  }
}

}  // namespace

void prefill_avx512(const Work& work, const Range& range, std::byte* scratch) {
  auto* panels = reinterpret_cast<float*>(scratch);
  // With one tile of tokens a panel is best used while it is in the first-level cache.
  const bool few = range.token_end - range.token_begin <= kTileRowsAvx512;
  const int64_t group = few ? kWidth : kWidth * kPanels;
  for (int64_t row = range.row_begin; row < range.row_end; row += group) {
    const int64_t row_end = smaller(range.row_end, row + group);
    for (int64_t c = 0; c < work.cols; c += kDepth) {
      const int64_t depth = smaller(kDepth, work.cols - c);
      for (int64_t i = 0; row + i * kWidth < row_end; ++i) {
        unpack_panel(work, row + i * kWidth, c, c + depth, panels + i * kPanelFloats);
      }
      multiply_panels(work, {row, row_end, range.token_begin, range.token_end}, c, depth, panels);
    }
  }
}

int64_t scratch_bytes_avx512(int64_t cols) {
  const int64_t float_bytes = kPanels * kPanelFloats * 4;
  const int64_t int8_bytes = (cols + kColumnPad) * kLanes * 5 / 4;
  return float_bytes > int8_bytes ? float_bytes : int8_bytes;
}

}  // namespace triax::dense::linear_internal
