// Prefill with float activations and AVX-512: 32 weight rows are unpacked to a panel [columns, 32]
// of floats, which tiles of up to 12 tokens multiply.
#include <immintrin.h>

#include "dense/linear/linear_kernels.h"
#include "dense/linear/linear_rows_avx512.h"

namespace triax::dense::linear_internal {
namespace {

constexpr int64_t kWidth = 32;    // weight rows of a panel
constexpr int64_t kDepth = 256;   // columns of a panel: 32 KiB of floats
constexpr int64_t kPanels = 4;    // panels that share the columns of many tokens
constexpr int64_t kTokens = 480;  // tokens whose sums are held between the depths
constexpr int64_t kPanelFloats = kWidth * kDepth;
constexpr int64_t kSumFloats = kWidth * kTokens;

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

// A byte moved to the top of its dword is the weight times 2^24: one shuffle instead of two shifts.
struct UnpackInt8 {
  static constexpr int64_t kColumns = 16;
  static void unpack(const __m512i (&v)[4], __m512 scale, float* out) {
    const __m512i lanes = _mm512_broadcast_i32x4(_mm_setr_epi32(0, 4, 8, 12));
    const __m512 factor = _mm512_mul_ps(scale, _mm512_set1_ps(0x1.0p-24f));
    for (int j = 0; j < 4; ++j) {
      const __m512i order =
          _mm512_or_si512(_mm512_slli_epi32(_mm512_add_epi32(lanes, _mm512_set1_epi32(j)), 24),
                          _mm512_set1_epi32(0x00808080));
      for (int d = 0; d < 4; ++d) {
        const __m512i w = _mm512_shuffle_epi8(v[d], order);
        _mm512_storeu_ps(out + (4 * d + j) * kWidth, _mm512_mul_ps(_mm512_cvtepi32_ps(w), factor));
      }
    }
  }
};

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

// Columns [begin, end) of up to 32 rows.
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

// Where the sums of a tile [M, 32] go.
struct Output {
  float* sums;     // held between the depths
  float* out;      // written at the last depth
  int64_t stride;  // of out
  __mmask16 low;   // columns of out that exist
  __mmask16 high;
  bool first, last;     // depth
  const uint8_t* next;  // weights to ask for early, `step` bytes a column
  int64_t step;
};

// sums (+)= x w over `depth` columns; one accumulator an element, columns in ascending order.
template <int M>
void multiply_tile(const float* x, const float* w, int64_t depth, const Output& output) {
  __m512 sums[M][2];
#pragma GCC unroll 16
  for (int i = 0; i < M; ++i) {
    const float* held = output.sums + i * kWidth;
    sums[i][0] = output.first ? _mm512_setzero_ps() : _mm512_load_ps(held);
    sums[i][1] = output.first ? _mm512_setzero_ps() : _mm512_load_ps(held + kLanes);
  }
  const uint8_t* next = output.next;
  for (int64_t c = 0; c < depth; ++c) {
    _mm_prefetch(reinterpret_cast<const char*>(next), _MM_HINT_T1);
    next += output.step;
    const __m512 w0 = _mm512_load_ps(w + c * kWidth);
    const __m512 w1 = _mm512_load_ps(w + c * kWidth + kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i) {
      const __m512 a = _mm512_set1_ps(x[c * M + i]);
      sums[i][0] = _mm512_fmadd_ps(a, w0, sums[i][0]);
      sums[i][1] = _mm512_fmadd_ps(a, w1, sums[i][1]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < M; ++i) {
    if (output.last) {
      float* out = output.out + i * output.stride;
      _mm512_mask_storeu_ps(out, output.low, sums[i][0]);
      _mm512_mask_storeu_ps(out + kLanes, output.high, sums[i][1]);
    } else {
      float* held = output.sums + i * kWidth;
      _mm512_store_ps(held, sums[i][0]);
      _mm512_store_ps(held + kLanes, sums[i][1]);
    }
  }
}

using TileFunction = void (*)(const float*, const float*, int64_t, const Output&);
constexpr TileFunction kTileFunctions[kTileRowsAvx512 + 1] = {
    nullptr,           multiply_tile<1>,  multiply_tile<2>, multiply_tile<3>, multiply_tile<4>,
    multiply_tile<5>,  multiply_tile<6>,  multiply_tile<7>, multiply_tile<8>, multiply_tile<9>,
    multiply_tile<10>, multiply_tile<11>, multiply_tile<12>};

// The range's tokens by one panel: columns [begin, begin + depth) of the range's rows. The panel
// `ahead` rows on is asked for meanwhile.
void multiply_panel(const Work& work, const Range& range, int64_t begin, int64_t depth,
                    int64_t ahead, const float* panel, float* sums) {
  const Tiles tiles(work.tokens);
  const int64_t width = range.row_end - range.row_begin;
  Output output = {sums,
                   nullptr,
                   work.out_stride,
                   low_mask16(width),
                   low_mask16(width - kLanes),
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
  const bool few = range.token_end - range.token_begin <= 4 * kTileRowsAvx512;
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

void prefill_avx512(const Work& work, const Range& range, std::byte* scratch) {
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

int64_t scratch_bytes_avx512(int64_t cols) {
  const int64_t float_bytes = (kPanelFloats + kPanels * kSumFloats) * 4;
  const int64_t int8_bytes = (cols + kColumnPad) * kLanes * 5 / 4;
  return float_bytes > int8_bytes ? float_bytes : int8_bytes;
}

}  // namespace triax::dense::linear_internal
