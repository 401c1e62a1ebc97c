// Prefill with int8 activations and AVX-512 VNNI: 16 weight rows become a panel whose lanes are
// rows, every dword four columns; one vpdpbusd is 64 multiply-adds.
#include <immintrin.h>

#include "dense/linear/linear_kernels.h"
#include "dense/linear/linear_rows_avx512.h"

namespace triax::dense::linear_internal {
namespace {

constexpr int64_t kBlockBytes = kLanes * kScaleBlock;
constexpr int64_t kChunkBlocks = 8;  // blocks whose scales are read together

// A block of 32 columns of 16 rows as unsigned bytes: 8 vectors in the order of the activations.
struct Int8Block {
  static constexpr int64_t kBytes = 32;
  static void unpack(const Rows16& rows, int64_t offset, __m512i (&w)[8]) {
    __m512i low[4];
    __m512i high[4];
    transpose<Whole>(rows, offset, 16, low);
    transpose<Whole>(rows, offset + 16, 16, high);
    for (int d = 0; d < 4; ++d) {
      w[d] = _mm512_xor_si512(low[d], _mm512_set1_epi8(-128));
      w[d + 4] = _mm512_xor_si512(high[d], _mm512_set1_epi8(-128));
    }
  }
};

struct Mxfp4Block {
  static constexpr int64_t kBytes = 16;
  static void unpack(const Rows16& rows, int64_t offset, __m512i (&w)[8]) {
    const __m512i table = _mm512_broadcast_i32x4(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const __m512i nibble = _mm512_set1_epi8(15);
    __m512i v[4];
    transpose<Whole>(rows, offset, 16, v);
    for (int d = 0; d < 4; ++d) {
      w[d] = _mm512_shuffle_epi8(table, _mm512_and_si512(v[d], nibble));
      w[d + 4] = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi32(v[d], 4), nibble));
    }
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
  const int64_t blocks = work.cols / kScaleBlock;
  for (int64_t first = 0; first < blocks; first += kChunkBlocks) {
    const int64_t n = smaller(kChunkBlocks, blocks - first);
    __m512 scales[kChunkBlocks];
    unpack_scales(work, row, first, n, scales);
    for (int64_t b = 0; b < n; ++b) {
      const int64_t block = first + b;
      __m512i w[8];
      Format::unpack(rows, block * Format::kBytes, w);
      for (int i = 0; i < 8; ++i) {
        _mm512_store_si512(panel.bytes + block * kBlockBytes + 64 * i, w[i]);
      }
      _mm512_store_ps(panel.scales + block * kLanes, scales[b]);
    }
  }
}

__m512i broadcast(const uint8_t* p) {
  int32_t bits;
  __builtin_memcpy(&bits, p, 4);
  return _mm512_set1_epi32(bits);
}

// What a tile reads, and where its sums go.
struct Tile {
  const uint8_t* records;  // written by quantize_tile_avx512
  Panel panel;
  int64_t blocks;
  const uint8_t* next;  // asked for early: `step` bytes further on with each of 8 steps a block
  int64_t step;
  float* out;
  int64_t out_stride;
  __mmask16 mask;
};

// M tokens by one panel. Integer sums of a block are exact; blocks are added in ascending order.
template <int M>
void multiply_tile(const Tile& tile) {
  __m512 sums[M] = {};
  const uint8_t* record = tile.records;
  const uint8_t* next = tile.next;
  for (int64_t block = 0; block < tile.blocks; ++block, record += kRecordBytes * M) {
    __m512i products[M];
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i) {
      products[i] = broadcast(record + 36 * M + 4 * i);
    }
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) {
      const __m512i w = _mm512_load_si512(tile.panel.bytes + block * kBlockBytes + 64 * k);
      _mm_prefetch(reinterpret_cast<const char*>(next), _MM_HINT_T1);
      next += tile.step;
#pragma GCC unroll 16
      for (int i = 0; i < M; ++i) {
        products[i] = _mm512_dpbusd_epi32(products[i], w, broadcast(record + 4 * (k * M + i)));
      }
    }
    const __m512 scale = _mm512_load_ps(tile.panel.scales + block * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i) {
      const __m512 both =
          _mm512_mul_ps(scale, _mm512_castsi512_ps(broadcast(record + 32 * M + 4 * i)));
      sums[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(products[i]), both, sums[i]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < M; ++i) {
    _mm512_mask_storeu_ps(tile.out + i * tile.out_stride, tile.mask, sums[i]);
  }
}

using TileFunction = void (*)(const Tile&);
constexpr TileFunction kTileFunctions[kTileRowsAvx512 + 1] = {
    nullptr,           multiply_tile<1>,  multiply_tile<2>, multiply_tile<3>, multiply_tile<4>,
    multiply_tile<5>,  multiply_tile<6>,  multiply_tile<7>, multiply_tile<8>, multiply_tile<9>,
    multiply_tile<10>, multiply_tile<11>, multiply_tile<12>};

}  // namespace

void prefill_int8_avx512(const Work& work, const Range& range, std::byte* scratch) {
  const Panel panel = {reinterpret_cast<uint8_t*>(scratch),
                       reinterpret_cast<float*>(scratch + work.cols * kLanes)};
  const Tiles tiles(work.tokens);
  const int64_t blocks = work.cols / kScaleBlock;
  for (int64_t row = range.row_begin; row < range.row_end; row += kLanes) {
    work.format == MatrixFormat::kMxfp4 ? unpack_panel<Mxfp4Block>(work, row, panel)
                                        : unpack_panel<Int8Block>(work, row, panel);
    // The first tile asks for the next 16 rows.
    const uint8_t* next = work.data + (row + kLanes) * work.row_bytes;
    int64_t step = work.row_bytes * kLanes / (blocks * 8);
    for (int64_t t = range.token_begin; t < range.token_end; t += tiles.rows(t), step = 0) {
      kTileFunctions[tiles.rows(t)]({work.records + t * blocks * kRecordBytes, panel, blocks, next,
                                     step, work.out + t * work.out_stride + row, work.out_stride,
                                     low_mask16(work.rows - row)});
    }
  }
}

}  // namespace triax::dense::linear_internal
