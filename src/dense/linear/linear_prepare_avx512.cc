// Activations as the AVX-512 kernels read them.
#include <immintrin.h>

#include "dense/linear/linear_kernels.h"
#include "dense/linear/linear_rows_avx512.h"

namespace triax::dense::linear_internal {
namespace {

int64_t round_up(int64_t a, int64_t b) { return (a + b - 1) / b * b; }

// Even columns first, then the odd ones: where the low and the high nibbles are multiplied.
__m256i evens_then_odds(__m128i low, __m128i high) {
  const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
  const __m128i a = _mm_shuffle_epi8(low, order);
  const __m128i b = _mm_shuffle_epi8(high, order);
  return _mm256_set_m128i(_mm_unpackhi_epi64(a, b), _mm_unpacklo_epi64(a, b));
}

struct QuantizedBlock {
  __m256i values;
  float scale;
  int32_t sum;
};

QuantizedBlock quantize_block(const float* x, bool mxfp4) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const __m512 low = _mm512_loadu_ps(x);
  const __m512 high = _mm512_loadu_ps(x + 16);
  // As integers NaN > infinity > numbers.
  const int32_t bits = _mm512_reduce_max_epi32(
      _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(low), magnitude),
                       _mm512_and_si512(_mm512_castps_si512(high), magnitude)));
  const bool finite = bits < 0x7f800000;
  const float amax = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(bits)));
  const bool zero = !finite || amax < 0x1.0p-100f;
  const __m512 inverse = _mm512_set1_ps(zero ? 0.0f : 127.0f / amax);
  const __mmask16 keep = finite ? __mmask16{0xffff} : __mmask16{0};
  const __m512i a = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(low, inverse));
  const __m512i b = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(high, inverse));
  const __m128i qa = _mm512_cvtepi32_epi8(a);
  const __m128i qb = _mm512_cvtepi32_epi8(b);
  const float scale = zero ? 0.0f : amax / 127.0f * (mxfp4 ? 0.5f : 1.0f);
  // What the kernels add to make their weights unsigned is taken off again by the sum.
  return {mxfp4 ? evens_then_odds(qa, qb) : _mm256_set_m128i(qb, qa),
          finite ? scale : __builtin_nanf(""),
          (mxfp4 ? -12 : -128) * _mm512_reduce_add_epi32(_mm512_add_epi32(a, b))};
}

}  // namespace

void quantize_tile_avx512(const float* x, int64_t stride, int64_t rows, int64_t cols,
                          MatrixFormat format, uint8_t* records) {
  for (int64_t c = 0; c < cols; c += kScaleBlock, records += kRecordBytes * rows) {
    for (int64_t i = 0; i < rows; ++i) {
      const QuantizedBlock q = quantize_block(x + i * stride + c, format == MatrixFormat::kMxfp4);
      alignas(32) uint8_t bytes[kScaleBlock];
      _mm256_store_si256(reinterpret_cast<__m256i*>(bytes), q.values);
      for (int64_t k = 0; k < 8; ++k) {
        __builtin_memcpy(records + 4 * (k * rows + i), bytes + 4 * k, 4);
      }
      __builtin_memcpy(records + 32 * rows + 4 * i, &q.scale, 4);
      __builtin_memcpy(records + 36 * rows + 4 * i, &q.sum, 4);
    }
  }
}

void quantize_avx512(const float* x, int64_t cols, MatrixFormat format, const QuantizedRow& row) {
  const int64_t blocks = cols / kScaleBlock;
  for (int64_t block = 0; block < blocks; ++block) {
    const QuantizedBlock q =
        quantize_block(x + block * kScaleBlock, format == MatrixFormat::kMxfp4);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(row.values + block * kScaleBlock), q.values);
    row.scales[block] = q.scale;
    row.sums[block] = q.sum;
  }
  for (int64_t c = cols; c < round_up(cols, kColumnPad); c += kScaleBlock) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(row.values + c), _mm256_setzero_si256());
  }
  for (int64_t block = blocks; block < round_up(blocks, 16); ++block) {
    row.scales[block] = 0.0f;
    row.sums[block] = 0;
  }
}

// 128 columns become 8 vectors: vector j, lane i is column 8 i + j.
void pack_decode_avx512(const float* x, int64_t cols, float* packed) {
  const __m512i index =
      _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                         _mm512_set1_epi32(8));
  for (int64_t c = 0; c < cols; c += kColumnPad) {
    const int64_t lanes = (cols - c) / 8;
    const __mmask16 mask =
        lanes >= 16 ? __mmask16{0xffff} : static_cast<__mmask16>((1U << lanes) - 1U);
    for (int64_t j = 0; j < 8; ++j) {
      const __m512 v =
          _mm512_mask_i32gather_ps(_mm512_setzero_ps(), mask, index, x + c + j, sizeof(float));
      _mm512_storeu_ps(packed + c + 16 * j, v);
    }
  }
}

void pack_tile_avx512(const float* x, int64_t stride, int64_t rows, int64_t cols, float* packed) {
  const Rows16 in(reinterpret_cast<const uint8_t*>(x), stride * 4, 0, rows);
  const __mmask16 mask = low_mask16(rows);
  __m512i v[4];
  int64_t c = 0;
  for (; c + 4 <= cols; c += 4) {
    transpose<Whole>(in, 4 * c, 16, v);
    for (int64_t i = 0; i < 4; ++i) {
      _mm512_mask_storeu_ps(packed + (c + i) * rows, mask, _mm512_castsi512_ps(v[i]));
    }
  }
  if (c < cols) {
    transpose<Part>(in, 4 * c, 4 * (cols - c), v);
    for (int64_t i = 0; c + i < cols; ++i) {
      _mm512_mask_storeu_ps(packed + (c + i) * rows, mask, _mm512_castsi512_ps(v[i]));
    }
  }
}

}  // namespace triax::dense::linear_internal
