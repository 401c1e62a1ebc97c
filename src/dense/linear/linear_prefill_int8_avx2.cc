// Prefill with int8 activations and AVX2: 8 weight rows become a panel whose lanes are rows, every
// dword four columns.
#include <immintrin.h>

#include "dense/linear/linear_kernels.h"

namespace triax::dense::linear_internal {
namespace {

constexpr int64_t kLanes = 8;
constexpr int64_t kTileRows = 4;
constexpr int64_t kBlockBytes = kLanes * kScaleBlock;

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

// 16 bytes at `offset` of every row; out[d] holds dword d of all rows.
void transpose(const Rows8& rows, int64_t offset, __m256i* out) {
  __m256i z[4];
  for (int i = 0; i < 4; ++i) {
    const auto load = [&](int row) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows.p[row] + offset));
    };
    z[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(load(i)), load(i + 4), 1);
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

__m256i add_pairs(__m256i v) { return _mm256_madd_epi16(v, _mm256_set1_epi16(1)); }

__m256i broadcast4(const int8_t* p) {
  int32_t bits;
  __builtin_memcpy(&bits, p, 4);
  return _mm256_set1_epi32(bits);
}

// Weights stay signed: |w| times the activation with w's sign; 2 * 128 * 127 fits into int16.
struct Int8Block {
  static constexpr int64_t kBytes = 32;
  static void unpack(const Rows8& rows, int64_t offset, __m256i (&w)[8]) {
    transpose(rows, offset, w);
    transpose(rows, offset + 16, w + 4);
  }
  static float scale(const uint8_t* row, int64_t block) {
    uint16_t bits;
    __builtin_memcpy(&bits, row + 2 * block, 2);
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(bits << 16)));
  }
  template <int M>
  static void multiply(const uint8_t* panel, const int8_t* q, int64_t stride,
                       __m256i (&products)[M]) {
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) {
      const __m256i w = _mm256_load_si256(reinterpret_cast<const __m256i*>(panel + 32 * k));
      const __m256i magnitudes = _mm256_abs_epi8(w);
#pragma GCC unroll 16
      for (int i = 0; i < M; ++i) {
        const __m256i a = _mm256_sign_epi8(broadcast4(q + i * stride + 4 * k), w);
        products[i] = _mm256_add_epi32(products[i], add_pairs(_mm256_maddubs_epi16(magnitudes, a)));
      }
    }
  }
};

// Weights are twice their value plus 12, unsigned: 4 sums of 2 * 24 * 127 fit into int16.
struct Mxfp4Block {
  static constexpr int64_t kBytes = 16;
  static void unpack(const Rows8& rows, int64_t offset, __m256i (&w)[8]) {
    const __m256i table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const __m256i nibble = _mm256_set1_epi8(15);
    __m256i v[4];
    transpose(rows, offset, v);
    for (int d = 0; d < 4; ++d) {
      w[d] = _mm256_shuffle_epi8(table, _mm256_and_si256(v[d], nibble));
      w[d + 4] = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi32(v[d], 4), nibble));
    }
  }
  static float scale(const uint8_t* row, int64_t block) {
    const uint32_t s = row[block];
    const uint32_t bits = s << 23 | (s == 255 ? 1U : 0U);
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(static_cast<int>(bits))));
  }
  template <int M>
  static void multiply(const uint8_t* panel, const int8_t* q, int64_t stride,
                       __m256i (&products)[M]) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      __m256i pairs[M];
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const int k = 4 * half + j;
        const __m256i w = _mm256_load_si256(reinterpret_cast<const __m256i*>(panel + 32 * k));
#pragma GCC unroll 16
        for (int i = 0; i < M; ++i) {
          const __m256i p = _mm256_maddubs_epi16(w, broadcast4(q + i * stride + 4 * k));
          pairs[i] = j == 0 ? p : _mm256_add_epi16(pairs[i], p);
        }
      }
#pragma GCC unroll 16
      for (int i = 0; i < M; ++i) {
        products[i] = _mm256_add_epi32(products[i], add_pairs(pairs[i]));
      }
    }
  }
};

// 8 rows, all columns: bytes [blocks, 8, 8, 4] and scales [blocks, 8].
struct Panel {
  uint8_t* bytes;
  float* scales;
};

template <typename Format>
void unpack_panel(const Work& work, int64_t row, const Panel& panel) {
  const Rows8 rows(work.data, work.row_bytes, row, work.rows);
  const Rows8 scale_rows(work.scales, work.scale_row_bytes, row, work.rows);
  for (int64_t block = 0; block < work.cols / kScaleBlock; ++block) {
    __m256i w[8];
    Format::unpack(rows, block * Format::kBytes, w);
    for (int i = 0; i < 8; ++i) {
      _mm256_store_si256(reinterpret_cast<__m256i*>(panel.bytes + block * kBlockBytes + 32 * i),
                         w[i]);
    }
    for (int64_t i = 0; i < kLanes; ++i) {
      panel.scales[block * kLanes + i] = Format::scale(scale_rows.p[i], block);
    }
  }
}

// M tokens from `token` by one panel. Integer sums of a block are exact, blocks are added in
// ascending order.
template <typename Format, int M>
void multiply_tile(const Work& work, int64_t token, int64_t row, const Panel& panel) {
  __m256 sums[M] = {};
  const int8_t* q = work.q + token * work.q_stride;
  const float* q_scales = work.q_scales + token * work.q_block_stride;
  const int32_t* q_sums = work.q_sums + token * work.q_block_stride;
  for (int64_t block = 0; block < work.cols / kScaleBlock; ++block) {
    __m256i products[M];
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i) {
      products[i] = _mm256_set1_epi32(q_sums[i * work.q_block_stride + block]);
    }
    Format::multiply(panel.bytes + block * kBlockBytes, q + block * kScaleBlock, work.q_stride,
                     products);
    const __m256 scale = _mm256_load_ps(panel.scales + block * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i) {
      const __m256 both =
          _mm256_mul_ps(scale, _mm256_broadcast_ss(q_scales + i * work.q_block_stride + block));
      sums[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(products[i]), both, sums[i]);
    }
  }
  const int64_t n = smaller(work.rows - row, kLanes);
  const __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)),
                                          _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
#pragma GCC unroll 16
  for (int i = 0; i < M; ++i) {
    _mm256_maskstore_ps(work.out + (token + i) * work.out_stride + row, mask, sums[i]);
  }
}

template <typename Format>
void multiply_tokens(const Work& work, const Range& range, int64_t row, const Panel& panel) {
  unpack_panel<Format>(work, row, panel);
  using TileFunction = void (*)(const Work&, int64_t, int64_t, const Panel&);
  constexpr TileFunction kTileFunctions[kTileRows + 1] = {
      nullptr, multiply_tile<Format, 1>, multiply_tile<Format, 2>, multiply_tile<Format, 3>,
      multiply_tile<Format, 4>};
  const int64_t tokens = range.token_end - range.token_begin;
  const int64_t tiles = (tokens + kTileRows - 1) / kTileRows;
  for (int64_t i = 0; i < tiles; ++i) {
    const int64_t begin = range.token_begin + tokens * i / tiles;
    const int64_t end = range.token_begin + tokens * (i + 1) / tiles;
    kTileFunctions[end - begin](work, begin, row, panel);
  }
}

}  // namespace

void prefill_int8_avx2(const Work& work, const Range& range, std::byte* scratch) {
  const Panel panel = {reinterpret_cast<uint8_t*>(scratch),
                       reinterpret_cast<float*>(scratch + work.cols * kLanes)};
  for (int64_t row = range.row_begin; row < range.row_end; row += kLanes) {
    work.format == MatrixFormat::kMxfp4 ? multiply_tokens<Mxfp4Block>(work, range, row, panel)
                                        : multiply_tokens<Int8Block>(work, range, row, panel);
  }
}

}  // namespace triax::dense::linear_internal
