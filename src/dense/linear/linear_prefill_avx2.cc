// Prefill with float activations and AVX2: 16 weight rows are unpacked to a panel [columns, 16] of
// floats, which tiles of up to 6 tokens multiply.
#include <immintrin.h>

#include "dense/linear/linear_kernels.h"

namespace triax::dense::linear_internal {
namespace {

constexpr int64_t kLanes = 8;
constexpr int64_t kWidth = 16;    // weight rows of a panel
constexpr int64_t kDepth = 256;   // columns of a panel: 16 KiB of floats
constexpr int64_t kPanels = 8;    // panels that share the columns of many tokens
constexpr int64_t kTokens = 240;  // tokens whose sums are held between the depths
constexpr int64_t kPanelFloats = kWidth * kDepth;
constexpr int64_t kSumFloats = kWidth * kTokens;

int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// 8 rows; rows beyond the matrix repeat the last one and are not stored.
struct Rows8 {
  Rows8(const uint8_t* base, int64_t stride, int64_t row, int64_t rows) {
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
    alignas(16) uint8_t copy[16] = {};
    __builtin_memcpy(copy, p, static_cast<size_t>(bytes));
    return _mm_load_si128(reinterpret_cast<const __m128i*>(copy));
  }
};

// 16 bytes at `offset` of every row; out[d] holds dword d of all rows.
template <typename Load>
__attribute__((always_inline)) inline void transpose(const Rows8& rows, int64_t offset,
                                                     int64_t bytes, __m256i (&out)[4]) {
  __m256i z[4];
  for (int i = 0; i < 4; ++i) {
    z[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(Load::load(rows.p[i] + offset, bytes)),
                                   Load::load(rows.p[i + 4] + offset, bytes), 1);
  }
  const __m256i a = _mm256_unpacklo_epi32(z[0], z[1]);
  const __m256i b = _mm256_unpackhi_epi32(z[0], z[1]);
  const __m256i c = _mm256_unpacklo_epi32(z[2], z[3]);
  const __m256i d = _mm256_unpackhi_epi32(z[2], z[3]);
  out[0] = _mm256_unpacklo_epi64(a, c);
  out[1] = _mm256_unpackhi_epi64(a, c);
  out[2] = _mm256_unpacklo_epi64(b, d);
  out[3] = _mm256_unpackhi_epi64(b, d);
}

// Four bytes of every dword as floats times 2^24, in memory order.
void widen(__m256i v, __m256 (&out)[4]) {
  const __m256i top = _mm256_set1_epi32(static_cast<int>(0xff000000U));
  out[0] = _mm256_cvtepi32_ps(_mm256_slli_epi32(v, 24));
  out[1] = _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_slli_epi32(v, 16), top));
  out[2] = _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_slli_epi32(v, 8), top));
  out[3] = _mm256_cvtepi32_ps(_mm256_and_si256(v, top));
}

// Formats: `kColumns` in 16 bytes; unpack() writes those of 8 rows, one column every kWidth.
struct UnpackF32 {
  static constexpr int64_t kColumns = 4;
  static void unpack(const __m256i (&v)[4], __m256, float* out) {
    for (int d = 0; d < 4; ++d) {
      _mm256_storeu_ps(out + d * kWidth, _mm256_castsi256_ps(v[d]));
    }
  }
};

struct UnpackBf16 {
  static constexpr int64_t kColumns = 8;
  static void unpack(const __m256i (&v)[4], __m256, float* out) {
    const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000U));
    for (int d = 0; d < 4; ++d) {
      _mm256_storeu_ps(out + 2 * d * kWidth, _mm256_castsi256_ps(_mm256_slli_epi32(v[d], 16)));
      _mm256_storeu_ps(out + (2 * d + 1) * kWidth,
                       _mm256_castsi256_ps(_mm256_and_si256(v[d], upper)));
    }
  }
};

struct UnpackF16 {
  static constexpr int64_t kColumns = 8;
  static __m256 low_halves(__m256i v) {
    const __m256i order = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1));
    const __m256i halves = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(v, order), 0x08);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
  }
  static void unpack(const __m256i (&v)[4], __m256, float* out) {
    for (int d = 0; d < 4; ++d) {
      _mm256_storeu_ps(out + 2 * d * kWidth, low_halves(v[d]));
      _mm256_storeu_ps(out + (2 * d + 1) * kWidth, low_halves(_mm256_srli_epi32(v[d], 16)));
    }
  }
};

// The scale is given times 2^-24 (and 2^-25 for MXFP4, whose table holds twice the values).
struct UnpackMxfp4 {
  static constexpr int64_t kColumns = 32;
  static void unpack(const __m256i (&v)[4], __m256 scale, float* out) {
    const __m256i table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
    const __m256i nibble = _mm256_set1_epi8(15);
    for (int d = 0; d < 4; ++d) {
      __m256 even[4];
      __m256 odd[4];
      widen(_mm256_shuffle_epi8(table, _mm256_and_si256(v[d], nibble)), even);
      widen(_mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi32(v[d], 4), nibble)), odd);
      for (int j = 0; j < 4; ++j) {
        float* column = out + (8 * d + 2 * j) * kWidth;
        _mm256_storeu_ps(column, _mm256_mul_ps(even[j], scale));
        _mm256_storeu_ps(column + kWidth, _mm256_mul_ps(odd[j], scale));
      }
    }
  }
};

struct UnpackInt8 {
  static constexpr int64_t kColumns = 16;
  static void unpack(const __m256i (&v)[4], __m256 scale, float* out) {
    for (int d = 0; d < 4; ++d) {
      __m256 w[4];
      widen(v[d], w);
      for (int j = 0; j < 4; ++j) {
        _mm256_storeu_ps(out + (4 * d + j) * kWidth, _mm256_mul_ps(w[j], scale));
      }
    }
  }
};

// Scales of 8 rows, blocks [block, block + n), n <= 8, as Unpack* want them.
void unpack_scales(const Work& work, int64_t row, int64_t block, int64_t n, __m256 (&scales)[8]) {
  const Rows8 rows(work.scales, work.scale_row_bytes, row, work.rows);
  __m256i v[4];
  if (work.format == MatrixFormat::kMxfp4) {
    transpose<Part>(rows, block, n, v);
    for (int b = 0; b < 8; ++b) {
      const __m256i s = _mm256_and_si256(_mm256_srlv_epi32(v[b / 4], _mm256_set1_epi32(b % 4 * 8)),
                                         _mm256_set1_epi32(255));
      const __m256i nan = _mm256_srli_epi32(_mm256_cmpeq_epi32(s, _mm256_set1_epi32(255)), 31);
      const __m256i bits = _mm256_or_si256(_mm256_slli_epi32(s, 23), nan);
      scales[b] = _mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(0x1.0p-25f));
    }
  } else {
    transpose<Part>(rows, 2 * block, 2 * n, v);
    const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000U));
    const __m256 factor = _mm256_set1_ps(0x1.0p-24f);
    for (int d = 0; d < 4; ++d) {
      const __m256i low = _mm256_slli_epi32(v[d], 16);
      scales[2 * d] = _mm256_mul_ps(_mm256_castsi256_ps(low), factor);
      scales[2 * d + 1] = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_and_si256(v[d], upper)), factor);
    }
  }
}

// Columns [begin, end) of 8 rows.
template <typename Format>
void unpack8(const Work& work, int64_t row, int64_t begin, int64_t end, float* out) {
  const Rows8 rows(work.data, work.row_bytes, row, work.rows);
  __m256 scales[8] = {};
  constexpr bool kScaled = Format::kColumns >= 16;
  if constexpr (kScaled) {
    unpack_scales(work, row, begin / kScaleBlock, (end - begin) / kScaleBlock, scales);
  }
  constexpr int64_t kColumnsPer = Format::kColumns;
  int64_t offset = begin / kColumnsPer * 16;
  int64_t c = begin;
  __m256i v[4];
  for (; c + kColumnsPer <= end; c += kColumnsPer, offset += 16) {
    transpose<Whole>(rows, offset, 16, v);
    Format::unpack(v, kScaled ? scales[(c - begin) / kScaleBlock] : _mm256_setzero_ps(),
                   out + (c - begin) * kWidth);
  }
  if (c < end) {
    transpose<Part>(rows, offset, (end - c) * 16 / kColumnsPer, v);
    Format::unpack(v, _mm256_setzero_ps(), out + (c - begin) * kWidth);
  }
}

template <typename Format>
void unpack16(const Work& work, int64_t row, int64_t begin, int64_t end, float* out) {
  unpack8<Format>(work, row, begin, end, out);
  unpack8<Format>(work, row + kLanes, begin, end, out + kLanes);
}

void unpack_panel(const Work& work, int64_t row, int64_t begin, int64_t end, float* out) {
  switch (work.format) {
    case MatrixFormat::kF32:
      return unpack16<UnpackF32>(work, row, begin, end, out);
    case MatrixFormat::kF16:
      return unpack16<UnpackF16>(work, row, begin, end, out);
    case MatrixFormat::kBf16:
      return unpack16<UnpackBf16>(work, row, begin, end, out);
    case MatrixFormat::kMxfp4:
      return unpack16<UnpackMxfp4>(work, row, begin, end, out);
    case MatrixFormat::kInt8:
      return unpack16<UnpackInt8>(work, row, begin, end, out);
  }
}

// Where the sums of a tile [M, 16] go.
struct Output {
  float* sums;     // held between the depths
  float* out;      // written at the last depth
  int64_t stride;  // of out
  __m256i low;     // columns of out that exist
  __m256i high;
  bool first, last;     // depth
  const uint8_t* next;  // weights to ask for early, `step` bytes a column
  int64_t step;
};

__m256i low_mask(int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n < 0 ? 0 : smaller(n, kLanes))),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

// sums (+)= x w over `depth` columns; one accumulator an element, columns in ascending order.
template <int M>
void multiply_tile(const float* x, const float* w, int64_t depth, const Output& output) {
  __m256 sums[M][2];
#pragma GCC unroll 16
  for (int i = 0; i < M; ++i) {
    const float* held = output.sums + i * kWidth;
    sums[i][0] = output.first ? _mm256_setzero_ps() : _mm256_load_ps(held);
    sums[i][1] = output.first ? _mm256_setzero_ps() : _mm256_load_ps(held + kLanes);
  }
  const uint8_t* next = output.next;
  for (int64_t c = 0; c < depth; ++c) {
    _mm_prefetch(reinterpret_cast<const char*>(next), _MM_HINT_T1);
    next += output.step;
    const __m256 w0 = _mm256_load_ps(w + c * kWidth);
    const __m256 w1 = _mm256_load_ps(w + c * kWidth + kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i) {
      const __m256 a = _mm256_broadcast_ss(x + c * M + i);
      sums[i][0] = _mm256_fmadd_ps(a, w0, sums[i][0]);
      sums[i][1] = _mm256_fmadd_ps(a, w1, sums[i][1]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < M; ++i) {
    if (output.last) {
      float* out = output.out + i * output.stride;
      _mm256_maskstore_ps(out, output.low, sums[i][0]);
      _mm256_maskstore_ps(out + kLanes, output.high, sums[i][1]);
    } else {
      float* held = output.sums + i * kWidth;
      _mm256_store_ps(held, sums[i][0]);
      _mm256_store_ps(held + kLanes, sums[i][1]);
    }
  }
}

using TileFunction = void (*)(const float*, const float*, int64_t, const Output&);
constexpr TileFunction kTileFunctions[kTileRowsAvx2 + 1] = {
    nullptr,          multiply_tile<1>, multiply_tile<2>, multiply_tile<3>,
    multiply_tile<4>, multiply_tile<5>, multiply_tile<6>};

// The tile that begins at token t.
struct Tiles {
  explicit Tiles(int64_t tokens) {
    const int64_t count = (tokens + kTileRowsAvx2 - 1) / kTileRowsAvx2;
    small = tokens / count;
    small_begin = tokens % count * (small + 1);
  }
  int64_t rows(int64_t t) const { return t < small_begin ? small + 1 : small; }
  int64_t small;
  int64_t small_begin;
};

// The range's tokens by one panel: columns [begin, begin + depth) of the range's rows. The panel
// `ahead` rows on is asked for meanwhile.
void multiply_panel(const Work& work, const Range& range, int64_t begin, int64_t depth,
                    int64_t ahead, const float* panel, float* sums) {
  const Tiles tiles(work.tokens);
  const int64_t width = range.row_end - range.row_begin;
  Output output = {sums,
                   nullptr,
                   work.out_stride,
                   low_mask(width),
                   low_mask(width - kLanes),
                   begin == 0,
                   begin + depth == work.cols,
                   work.data + (range.row_begin + ahead) * work.row_bytes +
                       begin * work.row_bytes / work.cols * kWidth,
                   work.row_bytes * kWidth / work.cols};
  for (int64_t t = range.token_begin; t < range.token_end;) {
    const int64_t rows = tiles.rows(t);
    output.out = work.out + t * work.out_stride + range.row_begin;
    kTileFunctions[rows](work.x + t * work.cols + begin * rows, panel, depth, output);
    output.sums += rows * kWidth;
    output.step = 0;  // once is enough
    t += rows;
  }
}

// At most kTokens tokens.
void multiply(const Work& work, const Range& range, std::byte* scratch) {
  auto* panel = reinterpret_cast<float*>(scratch);
  float* sums = panel + kPanelFloats;
  // With many tokens, their columns stay in the second-level cache while several panels pass.
  const bool few = range.token_end - range.token_begin <= 4 * kTileRowsAvx2;
  const int64_t group = few ? kWidth : kWidth * kPanels;
  for (int64_t first = range.row_begin; first < range.row_end; first += group) {
    const int64_t last = smaller(range.row_end, first + group);
    for (int64_t c = 0; c < work.cols; c += kDepth) {
      const int64_t depth = smaller(kDepth, work.cols - c);
      for (int64_t row = first; row < last; row += kWidth) {
        unpack_panel(work, row, c, c + depth, panel);
        multiply_panel(work, {row, smaller(last, row + kWidth), range.token_begin, range.token_end},
                       c, depth, group, panel, sums + (row - first) / kWidth * kSumFloats);
      }
    }
  }
}

}  // namespace

void prefill_avx2(const Work& work, const Range& range, std::byte* scratch) {
  const Tiles tiles(work.tokens);
  for (int64_t begin = range.token_begin; begin < range.token_end;) {
    int64_t end = begin;
    while (end < range.token_end && end + tiles.rows(end) - begin <= kTokens) {
      end += tiles.rows(end);
    }
    multiply(work, {range.row_begin, range.row_end, begin, end}, scratch);
    begin = end;
  }
}

int64_t scratch_bytes_avx2(int64_t cols) {
  const int64_t float_bytes = (kPanelFloats + kPanels * kSumFloats) * 4;
  const int64_t int8_bytes = (cols + kColumnPad) * kLanes * 5 / 4;
  return float_bytes > int8_bytes ? float_bytes : int8_bytes;
}

}  // namespace triax::dense::linear_internal
