// The inner loops of MLA over vectors of any width, for the *_avx2.cc and *_avx512.cc beside it:
// all is local to the file that includes it. L has the vectors; see MlaAvx2 and MlaAvx512.
#pragma once

#include <cstdint>

#include "sequence/mla/mla_kernels.h"

namespace triax::sequence {
namespace {

constexpr int64_t kCacheLine = 16;  // floats

/// 2^x for x <= 0, about 1 ulp; below 2^-126 it is 0.
template <typename L>
inline typename L::Reg exp2_negative(typename L::Reg x) {
  const auto n = L::round(x);
  const auto r = L::sub(x, n);
  // Taylor terms ln(2)^k / k!; the remainder on [-1/2, 1/2] is below 6e-9.
  auto y = L::set(1.5252733804059841e-5f);
  y = L::fma(y, r, L::set(1.5403530393381610e-4f));
  y = L::fma(y, r, L::set(1.3333558146428443e-3f));
  y = L::fma(y, r, L::set(9.6181291076284772e-3f));
  y = L::fma(y, r, L::set(5.5504108664821580e-2f));
  y = L::fma(y, r, L::set(2.4022650695910072e-1f));
  y = L::fma(y, r, L::set(6.9314718055994531e-1f));
  y = L::fma(y, r, L::set(1.0f));
  return L::if_less(x, L::set(-126.0f), L::zero(), L::scale(y, n));
}

/// kRows rows of scores times kVecs vectors of lanes stay in registers over the whole depth.
template <typename L, int kVecs, int kRows>
struct ScoreBlock {
  typename L::Reg sum[kRows][kVecs];
  const float* row[kRows];

  void step(const float* a, int64_t k) {
    typename L::Reg x[kVecs];
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) {
      x[v] = L::load(a + v * L::kWidth);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const auto y = L::set(row[i][k]);
#pragma GCC unroll 16
      for (int v = 0; v < kVecs; ++v) {
        sum[i][v] = L::fma(x[v], y, sum[i][v]);
      }
    }
  }

  /// `next`: the rows that come after these, fetched meanwhile.
  void add(const float* a, int64_t width, const float* b, int64_t stride, int64_t depth,
           const float* next) {
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      row[i] = b + i * stride;
    }
    int64_t k = 0;
    for (; k + kCacheLine <= depth; k += kCacheLine) {
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        L::prefetch(next + i * stride + k);
      }
      for (int64_t i = k; i < k + kCacheLine; ++i) {
        step(a + i * width, i);
      }
    }
    for (; k < depth; ++k) {
      step(a + k * width, k);
    }
  }
};

template <typename L, int kVecs, int kRows>
void score_rows(const MlaScores& t, int64_t width, int64_t lane, int64_t j) {
  ScoreBlock<L, kVecs, kRows> block;
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) {
      block.sum[i][v] = L::zero();
    }
  }
  const float* row = t.b0 + j * t.stride0;
  const float* next = j + kRows < t.rows || t.next0 == nullptr ? row + kRows * t.stride0 : t.next0;
  block.add(t.a + lane, width, row, t.stride0, t.depth0, next);
  row = t.b1 + j * t.stride1;
  block.add(t.a + t.depth0 * width + lane, width, row, t.stride1, t.depth1, row);
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) {
      L::store(t.s + (j + i) * width + lane + v * L::kWidth, block.sum[i][v]);
    }
  }
}

template <typename L, int kVecs>
void score_lanes(const MlaScores& t, int64_t width, int64_t lane) {
  int64_t j = 0;
  for (; j + L::kScoreRows <= t.rows; j += L::kScoreRows) {
    score_rows<L, kVecs, L::kScoreRows>(t, width, lane, j);
  }
  for (; j + 2 <= t.rows; j += 2) {
    score_rows<L, kVecs, 2>(t, width, lane, j);
  }
  if (j < t.rows) {
    score_rows<L, kVecs, 1>(t, width, lane, j);
  }
}

template <typename L>
void scores_lanes(const MlaScores& t) {
  const int64_t width = t.groups * kMlaLanes;
  int64_t lane = 0;
  for (; lane + 2 * L::kWidth <= width; lane += 2 * L::kWidth) {
    score_lanes<L, 2>(t, width, lane);
  }
  if (lane < width) {
    score_lanes<L, 1>(t, width, lane);
  }
}

template <typename L, bool kMasked>
void softmax_vector(const MlaSoftmax& t, int64_t width, int64_t lane) {
  float* s = t.s + lane;
  const auto visible = kMasked ? L::load(t.visible + lane) : L::zero();
  const auto old = L::load(t.max + lane);
  auto max = old;
  for (int64_t j = 0; j < t.rows; ++j) {
    const auto higher = L::max(max, L::load(s + j * width));
    max = kMasked ? L::if_less(L::set(static_cast<float>(j)), visible, higher, max) : higher;
  }
  const auto alpha = exp2_negative<L>(L::sub(old, max));
  auto sum = L::mul(L::load(t.sum + lane), alpha);
  for (int64_t j = 0; j < t.rows; ++j) {
    auto p = exp2_negative<L>(L::sub(L::load(s + j * width), max));
    if constexpr (kMasked) {
      p = L::if_less(L::set(static_cast<float>(j)), visible, p, L::zero());
    }
    L::store(s + j * width, p);
    sum = L::add(sum, p);
  }
  L::store(t.max + lane, max);
  L::store(t.sum + lane, sum);
  L::store(t.alpha + lane, alpha);
}

template <typename L>
void softmax_lanes(const MlaSoftmax& t) {
  const int64_t width = t.groups * kMlaLanes;
  for (int64_t lane = 0; lane < width; lane += L::kWidth) {
    t.visible == nullptr ? softmax_vector<L, false>(t, width, lane)
                         : softmax_vector<L, true>(t, width, lane);
  }
}

/// kLanes lanes times kVecs vectors of columns; `count` columns of the last vector are in use.
template <typename L, int kLanes, int kVecs>
void sum_block(const MlaWeightedSum& t, int64_t width, int64_t lane, int64_t col, int count) {
  typename L::Reg acc[kLanes][kVecs];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    const float* from = t.acc + (lane + i) * t.acc_stride + col;
    const auto alpha = L::set(t.alpha[lane + i]);
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) {
      const auto x =
          v + 1 < kVecs ? L::load(from + v * L::kWidth) : L::load_some(from + v * L::kWidth, count);
      acc[i][v] = L::mul(alpha, x);
    }
  }
  for (int64_t j = 0; j < t.rows; ++j) {
    const float* row = t.v + j * t.v_stride + col;
    const float* p = t.p + j * width + lane;
    typename L::Reg x[kVecs];
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) {
      x[v] =
          v + 1 < kVecs ? L::load(row + v * L::kWidth) : L::load_some(row + v * L::kWidth, count);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      const auto weight = L::set(p[i]);
#pragma GCC unroll 16
      for (int v = 0; v < kVecs; ++v) {
        acc[i][v] = L::fma(weight, x[v], acc[i][v]);
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    float* to = t.acc + (lane + i) * t.acc_stride + col;
#pragma GCC unroll 16
    for (int v = 0; v + 1 < kVecs; ++v) {
      L::store(to + v * L::kWidth, acc[i][v]);
    }
    L::store_some(to + (kVecs - 1) * L::kWidth, acc[i][kVecs - 1], count);
  }
}

template <typename L, int kVecs>
void sum_strip(const MlaWeightedSum& t, int64_t width, int64_t col, int count) {
  int64_t lane = 0;
  for (; lane + 4 <= t.lanes; lane += 4) {
    sum_block<L, 4, kVecs>(t, width, lane, col, count);
  }
  for (; lane < t.lanes; ++lane) {
    sum_block<L, 1, kVecs>(t, width, lane, col, count);
  }
}

/// Strips of columns outside: a strip of v stays in the first cache for all lanes.
template <typename L>
void weighted_sum_lanes(const MlaWeightedSum& t) {
  const int64_t width = t.groups * kMlaLanes;
  int64_t col = 0;
  for (; col + L::kSumVecs * L::kWidth <= t.cols; col += L::kSumVecs * L::kWidth) {
    sum_strip<L, L::kSumVecs>(t, width, col, L::kWidth);
  }
  for (; col < t.cols; col += L::kWidth) {
    const int64_t left = t.cols - col;
    sum_strip<L, 1>(t, width, col, left < L::kWidth ? static_cast<int>(left) : L::kWidth);
  }
}

template <typename L>
void unpack_lanes(const MlaPackedRows& packed, int64_t stride, float* out) {
  for (int64_t i = 0; i < packed.rows; ++i) {
    const unsigned char* data = packed.data + i * packed.row_bytes;
    const unsigned char* scales = packed.scales + i * packed.scale_row_bytes;
    float* to = out + i * stride;
    switch (packed.format) {
      case MatrixFormat::kF32:
        L::unpack_f32(data, packed.cols, to);
        break;
      case MatrixFormat::kF16:
        L::unpack_f16(data, packed.cols, to);
        break;
      case MatrixFormat::kBf16:
        L::unpack_bf16(data, packed.cols, to);
        break;
      case MatrixFormat::kMxfp4:
        L::unpack_mxfp4(data, scales, packed.cols, to);
        break;
      case MatrixFormat::kInt8:
        L::unpack_int8(data, scales, packed.cols, to);
        break;
    }
  }
}

template <typename L, int kVecs>
void add_rows_block(const float* rows, int64_t stride, int64_t count, const float* factor,
                    float* out) {
  typename L::Reg sum[kVecs];
#pragma GCC unroll 16
  for (int v = 0; v < kVecs; ++v) {
    sum[v] = L::load(out + v * L::kWidth);
  }
  for (int64_t i = 0; i < count; ++i) {
    const auto f = L::set(factor[i]);
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) {
      sum[v] = L::fma(f, L::load(rows + i * stride + v * L::kWidth), sum[v]);
    }
  }
#pragma GCC unroll 16
  for (int v = 0; v < kVecs; ++v) {
    L::store(out + v * L::kWidth, sum[v]);
  }
}

template <typename L>
void add_rows_lanes(const float* rows, int64_t stride, int64_t count, const float* factor,
                    int64_t cols, float* out) {
  int64_t c = 0;
  for (; c + 8 * L::kWidth <= cols; c += 8 * L::kWidth) {
    add_rows_block<L, 8>(rows + c, stride, count, factor, out + c);
  }
  for (; c < cols; c += L::kWidth) {
    add_rows_block<L, 1>(rows + c, stride, count, factor, out + c);
  }
}

template <typename L, int kRows>
void dot_rows_block(const float* rows, int64_t stride, const float* x, int64_t cols, float* out) {
  typename L::Reg sum[kRows];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    sum[i] = L::zero();
  }
  for (int64_t c = 0; c < cols; c += L::kWidth) {
    const auto y = L::load(x + c);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      sum[i] = L::fma(L::load(rows + i * stride + c), y, sum[i]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    out[i] = L::sum(sum[i]);
  }
}

template <typename L>
void dot_rows_lanes(const float* rows, int64_t stride, int64_t count, const float* x, int64_t cols,
                    float* out) {
  int64_t i = 0;
  for (; i + kMlaRows <= count; i += kMlaRows) {
    dot_rows_block<L, kMlaRows>(rows + i * stride, stride, x, cols, out + i);
  }
  for (; i < count; ++i) {
    dot_rows_block<L, 1>(rows + i * stride, stride, x, cols, out + i);
  }
}

/// Columns that a fused kernel handles at a time, and rows whose scales it keeps.
constexpr int64_t kStripCols = 256;
constexpr int64_t kStripBlocks = kStripCols / kScaleBlock;
constexpr int64_t kStripRows = 16;

/// Bytes of `cols` packed columns.
template <MatrixFormat kFormat>
constexpr int64_t packed_bytes(int64_t cols) {
  switch (kFormat) {
    case MatrixFormat::kF32:
      return 4 * cols;
    case MatrixFormat::kF16:
    case MatrixFormat::kBf16:
      return 2 * cols;
    case MatrixFormat::kMxfp4:
      return cols / 2;
    case MatrixFormat::kInt8:
      return cols;
  }
  return 0;
}

template <MatrixFormat kFormat>
constexpr bool kHasScales = kFormat == MatrixFormat::kMxfp4 || kFormat == MatrixFormat::kInt8;

/// The scales of `rows` rows of a strip as floats, out [rows, kStripBlocks].
template <typename L, MatrixFormat kFormat>
inline void strip_scales(const MlaPackedRows& packed, int64_t row, int64_t rows, int64_t block,
                         int64_t blocks, float* out) {
  constexpr int64_t kBytes = kFormat == MatrixFormat::kInt8 ? 2 : 1;
  for (int64_t i = 0; i < rows; ++i) {
    L::template scales<kFormat>(packed.scales + (row + i) * packed.scale_row_bytes + block * kBytes,
                                blocks, out + i * kStripBlocks);
  }
}

/// kVecs vectors of columns from `col` on, of `rows` rows; `scales` begins at the same column.
template <typename L, MatrixFormat kFormat, int kVecs>
inline void add_packed_block(const MlaPackedRows& packed, int64_t row, int64_t rows, int64_t col,
                             const float* scales, const float* factor, float* out) {
  constexpr int kVecsOfBlock = static_cast<int>(kScaleBlock) / L::kWidth;
  typename L::Reg sum[kVecs];
#pragma GCC unroll 16
  for (int v = 0; v < kVecs; ++v) {
    sum[v] = L::load(out + col + v * L::kWidth);
  }
  const unsigned char* data = packed.data + row * packed.row_bytes + packed_bytes<kFormat>(col);
  for (int64_t i = 0; i < rows; ++i, data += packed.row_bytes) {
    constexpr int64_t kBytes = packed_bytes<kFormat>(kVecs * L::kWidth);
#pragma GCC unroll 16
    for (int64_t b = 0; b < kBytes; b += 64) {
      L::prefetch(data + kStripRows * packed.row_bytes + b);
    }
    const auto f = L::set(factor[i]);
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) {
      auto w = L::template weights<kFormat>(data + packed_bytes<kFormat>(v * L::kWidth));
      if constexpr (kHasScales<kFormat>) {
        w = L::mul(w, L::set(scales[i * kStripBlocks + v / kVecsOfBlock]));
      }
      sum[v] = L::fma(f, w, sum[v]);
    }
  }
#pragma GCC unroll 16
  for (int v = 0; v < kVecs; ++v) {
    L::store(out + col + v * L::kWidth, sum[v]);
  }
}

template <typename L, MatrixFormat kFormat>
void add_packed_of(const MlaPackedRows& packed, const float* factor, float* out) {
  constexpr int kVecs = 8;
  constexpr int kVecsLast = static_cast<int>(kScaleBlock) / L::kWidth;
  float scales[kStripRows * kStripBlocks];
  for (int64_t row = 0; row < packed.rows; row += kStripRows) {
    const int64_t rows = packed.rows - row < kStripRows ? packed.rows - row : kStripRows;
    for (int64_t strip = 0; strip < packed.cols; strip += kStripCols) {
      const int64_t left = packed.cols - strip;
      const int64_t end = strip + (left < kStripCols ? left : kStripCols);
      if constexpr (kHasScales<kFormat>) {
        strip_scales<L, kFormat>(packed, row, rows, strip / kScaleBlock,
                                 (end - strip) / kScaleBlock, scales);
      }
      int64_t c = strip;
      for (; c + kVecs * L::kWidth <= end; c += kVecs * L::kWidth) {
        add_packed_block<L, kFormat, kVecs>(packed, row, rows, c,
                                            scales + (c - strip) / kScaleBlock, factor + row, out);
      }
      for (; c < end; c += kScaleBlock) {
        add_packed_block<L, kFormat, kVecsLast>(
            packed, row, rows, c, scales + (c - strip) / kScaleBlock, factor + row, out);
      }
    }
  }
}

template <typename L, MatrixFormat kFormat, int kRows>
inline void dot_packed_block(const MlaPackedRows& packed, int64_t row, const float* x, float* out) {
  constexpr int kVecsOfBlock = static_cast<int>(kScaleBlock) / L::kWidth;
  constexpr int64_t kLineBlocks = 64 / packed_bytes<kFormat>(kScaleBlock);
  float scales[kRows * kStripBlocks];
  typename L::Reg sum[kRows];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    sum[i] = L::zero();
  }
  const unsigned char* data = packed.data + row * packed.row_bytes;
  for (int64_t strip = 0; strip < packed.cols; strip += kStripCols) {
    const int64_t left = packed.cols - strip;
    const int64_t blocks = left < kStripCols ? left / kScaleBlock : kStripBlocks;
    if constexpr (kHasScales<kFormat>) {
      strip_scales<L, kFormat>(packed, row, kRows, strip / kScaleBlock, blocks, scales);
    }
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t c = strip + block * kScaleBlock;
      const unsigned char* from = data + packed_bytes<kFormat>(c);
#pragma GCC unroll 16
      for (int v = 0; v < kVecsOfBlock; ++v) {
        const auto y = L::load(x + c + v * L::kWidth);
#pragma GCC unroll 16
        for (int i = 0; i < kRows; ++i) {
          auto w = L::template weights<kFormat>(from + i * packed.row_bytes +
                                                packed_bytes<kFormat>(v * L::kWidth));
          if constexpr (kHasScales<kFormat>) {
            w = L::mul(w, L::set(scales[i * kStripBlocks + block]));
          }
          sum[i] = L::fma(w, y, sum[i]);
        }
      }
      if (kLineBlocks < 2 || block % kLineBlocks == 0) {
#pragma GCC unroll 16
        for (int i = 0; i < kRows; ++i) {
          L::prefetch(from + (i + kRows) * packed.row_bytes);
        }
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    out[i] = L::sum(sum[i]);
  }
}

template <typename L, MatrixFormat kFormat>
void dot_packed_of(const MlaPackedRows& packed, const float* x, float* out) {
  int64_t i = 0;
  for (; i + kMlaRows <= packed.rows; i += kMlaRows) {
    dot_packed_block<L, kFormat, kMlaRows>(packed, i, x, out + i);
  }
  for (; i < packed.rows; ++i) {
    dot_packed_block<L, kFormat, 1>(packed, i, x, out + i);
  }
}

template <typename L>
void add_packed_lanes(const MlaPackedRows& packed, const float* factor, float* out) {
  switch (packed.format) {
    case MatrixFormat::kF32:
      return add_packed_of<L, MatrixFormat::kF32>(packed, factor, out);
    case MatrixFormat::kF16:
      return add_packed_of<L, MatrixFormat::kF16>(packed, factor, out);
    case MatrixFormat::kBf16:
      return add_packed_of<L, MatrixFormat::kBf16>(packed, factor, out);
    case MatrixFormat::kMxfp4:
      return add_packed_of<L, MatrixFormat::kMxfp4>(packed, factor, out);
    case MatrixFormat::kInt8:
      return add_packed_of<L, MatrixFormat::kInt8>(packed, factor, out);
  }
}

template <typename L>
void dot_packed_lanes(const MlaPackedRows& packed, const float* x, float* out) {
  switch (packed.format) {
    case MatrixFormat::kF32:
      return dot_packed_of<L, MatrixFormat::kF32>(packed, x, out);
    case MatrixFormat::kF16:
      return dot_packed_of<L, MatrixFormat::kF16>(packed, x, out);
    case MatrixFormat::kBf16:
      return dot_packed_of<L, MatrixFormat::kBf16>(packed, x, out);
    case MatrixFormat::kMxfp4:
      return dot_packed_of<L, MatrixFormat::kMxfp4>(packed, x, out);
    case MatrixFormat::kInt8:
      return dot_packed_of<L, MatrixFormat::kInt8>(packed, x, out);
  }
}

template <typename L>
void finish_lanes(float factor, const float* gate, int64_t cols, float* x) {
  for (int64_t c = 0; c < cols; c += L::kWidth) {
    const int count = cols - c < L::kWidth ? static_cast<int>(cols - c) : L::kWidth;
    auto y = L::mul(L::load_some(x + c, count), L::set(factor));
    if (gate != nullptr) {
      const auto g = L::load_some(gate + c, count);
      const auto e = exp2_negative<L>(L::mul(L::negative_abs(g), L::set(1.44269504088896340736f)));
      const auto one = L::set(1.0f);
      const auto top = L::if_less(g, L::zero(), e, one);
      y = L::mul(y, L::div(top, L::add(one, e)));
    }
    L::store_some(x + c, y, count);
  }
}

template <typename L>
constexpr MlaKernels kernels_of() {
  return {scores_lanes<L>,     softmax_lanes<L>,    weighted_sum_lanes<L>,
          unpack_lanes<L>,     add_rows_lanes<L>,   dot_rows_lanes<L>,
          add_packed_lanes<L>, dot_packed_lanes<L>, finish_lanes<L>};
}

}  // namespace
}  // namespace triax::sequence
