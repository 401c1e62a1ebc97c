// Prefill with int8 activations and AVX-512 VNNI: 16 weight rows become a panel whose lanes are
// rows, every dword four columns; one vpdpbusd is 64 multiply-adds.
#include <immintrin.h>

#include "dense/linear/linear_kernels.h"

namespace triax::dense::linear_internal {
namespace {

constexpr int64_t kLanes = 16;
constexpr int64_t kTileRows = 12;
constexpr int64_t kBlockBytes = kLanes * kScaleBlock;

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

// 16 bytes at `offset` of every row; out[d] holds dword d of all rows.
void transpose(const Rows16& rows, int64_t offset, __m512i* out) {
  __m512i z[4];
  for (int i = 0; i < 4; ++i) {
    const auto load = [&](int row) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows.p[row] + offset));
    };
    __m512i v = _mm512_castsi128_si512(load(i));
    v = _mm512_inserti32x4(v, load(i + 4), 1);
    v = _mm512_inserti32x4(v, load(i + 8), 2);
    z[i] = _mm512_inserti32x4(v, load(i + 12), 3);
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

// A block of 32 columns of 16 rows as unsigned bytes: 8 vectors in the order of the activations.
struct Int8Block {
  static constexpr int64_t kBytes = 32;
  static void unpack(const Rows16& rows, int64_t offset, __m512i (&w)[8]) {
    transpose(rows, offset, w);
    transpose(rows, offset + 16, w + 4);
    for (__m512i& v : w) {
      v = _mm512_xor_si512(v, _mm512_set1_epi8(-128));
    }
  }
  static __m512 scales(const Rows16& rows, int64_t block) {
    alignas(64) uint32_t bits[kLanes];
    for (int64_t i = 0; i < kLanes; ++i) {
      uint16_t scale;
      __builtin_memcpy(&scale, rows.p[i] + 2 * block, 2);
      bits[i] = static_cast<uint32_t>(scale) << 16;
    }
    return _mm512_load_ps(bits);
  }
};

struct Mxfp4Block {
  static constexpr int64_t kBytes = 16;
  static void unpack(const Rows16& rows, int64_t offset, __m512i (&w)[8]) {
    const __m512i table = _mm512_broadcast_i32x4(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const __m512i nibble = _mm512_set1_epi8(15);
    __m512i v[4];
    transpose(rows, offset, v);
    for (int d = 0; d < 4; ++d) {
      w[d] = _mm512_shuffle_epi8(table, _mm512_and_si512(v[d], nibble));
      w[d + 4] = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi32(v[d], 4), nibble));
    }
  }
  static __m512 scales(const Rows16& rows, int64_t block) {
    alignas(64) uint32_t bits[kLanes];
    for (int64_t i = 0; i < kLanes; ++i) {
      const uint32_t scale = rows.p[i][block];
      bits[i] = scale << 23 | (scale == 255 ? 1U : 0U);
    }
    return _mm512_load_ps(bits);
  }
};

// 16 rows, all columns: bytes [blocks, 8, 16, 4] and scales [blocks, 16].
struct Panel {
  uint8_t* bytes;
  float* scales;
};

template <typename Format>
void unpack_panel(const Work& work, int64_t row, const Panel& panel) {
  const Rows16 rows(work.data, work.row_bytes, row, work.rows);
  const Rows16 scale_rows(work.scales, work.scale_row_bytes, row, work.rows);
  for (int64_t block = 0; block < work.cols / kScaleBlock; ++block) {
    __m512i w[8];
    Format::unpack(rows, block * Format::kBytes, w);
    for (int i = 0; i < 8; ++i) {
      _mm512_store_si512(panel.bytes + block * kBlockBytes + 64 * i, w[i]);
    }
    _mm512_store_ps(panel.scales + block * kLanes, Format::scales(scale_rows, block));
  }
}

__m512i broadcast4(const int8_t* p) {
  int32_t bits;
  __builtin_memcpy(&bits, p, 4);
  return _mm512_set1_epi32(bits);
}

// M tokens from `token` by one panel. Integer sums of a block are exact, blocks are added in
// ascending order.
template <int M>
void multiply_tile(const Work& work, int64_t token, int64_t row, const Panel& panel) {
  __m512 sums[M] = {};
  const int8_t* q = work.q + token * work.q_stride;
  const float* q_scales = work.q_scales + token * work.q_block_stride;
  const int32_t* q_sums = work.q_sums + token * work.q_block_stride;
  for (int64_t block = 0; block < work.cols / kScaleBlock; ++block) {
    __m512i w[8];
    for (int k = 0; k < 8; ++k) {
      w[k] = _mm512_load_si512(panel.bytes + block * kBlockBytes + 64 * k);
    }
    const __m512 scale = _mm512_load_ps(panel.scales + block * kLanes);
    for (int i = 0; i < M; ++i) {
      const int8_t* a = q + i * work.q_stride + block * kScaleBlock;
      __m512i products = _mm512_set1_epi32(q_sums[i * work.q_block_stride + block]);
      for (int k = 0; k < 8; ++k) {
        products = _mm512_dpbusd_epi32(products, w[k], broadcast4(a + 4 * k));
      }
      const __m512 both =
          _mm512_mul_ps(scale, _mm512_set1_ps(q_scales[i * work.q_block_stride + block]));
      sums[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(products), both, sums[i]);
    }
  }
  const int64_t n = work.rows - row;
  const __mmask16 mask = n >= kLanes ? __mmask16{0xffff} : static_cast<__mmask16>((1U << n) - 1U);
  for (int i = 0; i < M; ++i) {
    _mm512_mask_storeu_ps(work.out + (token + i) * work.out_stride + row, mask, sums[i]);
  }
}

using TileFunction = void (*)(const Work&, int64_t, int64_t, const Panel&);
constexpr TileFunction kTileFunctions[kTileRows + 1] = {
    nullptr,           multiply_tile<1>,  multiply_tile<2>, multiply_tile<3>, multiply_tile<4>,
    multiply_tile<5>,  multiply_tile<6>,  multiply_tile<7>, multiply_tile<8>, multiply_tile<9>,
    multiply_tile<10>, multiply_tile<11>, multiply_tile<12>};

}  // namespace

void prefill_int8_avx512(const Work& work, const Range& range, std::byte* scratch) {
  const Panel panel = {reinterpret_cast<uint8_t*>(scratch),
                       reinterpret_cast<float*>(scratch + work.cols * kLanes)};
  const int64_t tokens = range.token_end - range.token_begin;
  const int64_t tiles = (tokens + kTileRows - 1) / kTileRows;
  for (int64_t row = range.row_begin; row < range.row_end; row += kLanes) {
    work.format == MatrixFormat::kMxfp4 ? unpack_panel<Mxfp4Block>(work, row, panel)
                                        : unpack_panel<Int8Block>(work, row, panel);
    for (int64_t i = 0; i < tiles; ++i) {
      const int64_t begin = range.token_begin + tokens * i / tiles;
      const int64_t end = range.token_begin + tokens * (i + 1) / tiles;
      kTileFunctions[end - begin](work, begin, row, panel);
    }
  }
}

}  // namespace triax::dense::linear_internal
