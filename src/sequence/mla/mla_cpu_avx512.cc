// The inner loops of MLA for AVX-512.
#include <immintrin.h>

#include <cstring>

#include "sequence/mla/mla_lanes.h"

namespace triax::sequence {
namespace {

struct MlaAvx512 {
  using Reg = __m512;
  static constexpr int kWidth = 16;
  static constexpr int kScoreRows = 8;
  static constexpr int kSumVecs = 4;

  static Reg zero() { return _mm512_setzero_ps(); }
  static Reg set(float x) { return _mm512_set1_ps(x); }
  static Reg load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Reg x) { _mm512_storeu_ps(p, x); }
  static Reg load_some(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static void store_some(float* p, Reg x, int n) { _mm512_mask_storeu_ps(p, first(n), x); }
  static void prefetch(const void* p) { _mm_prefetch(p, _MM_HINT_T0); }
  static Reg add(Reg a, Reg b) { return _mm512_add_ps(a, b); }
  static Reg sub(Reg a, Reg b) { return _mm512_sub_ps(a, b); }
  static Reg mul(Reg a, Reg b) { return _mm512_mul_ps(a, b); }
  static Reg div(Reg a, Reg b) { return _mm512_div_ps(a, b); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm512_fmadd_ps(a, b, c); }
  static Reg max(Reg a, Reg b) { return _mm512_max_ps(a, b); }
  static Reg round(Reg x) { return _mm512_roundscale_ps(x, 0x08); }
  static Reg scale(Reg y, Reg n) { return _mm512_scalef_ps(y, n); }
  static Reg negative_abs(Reg x) { return _mm512_or_ps(x, set(-0.0f)); }
  static Reg if_less(Reg a, Reg b, Reg yes, Reg no) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
  }
  static float sum(Reg x) { return _mm512_reduce_add_ps(x); }

  static void unpack_f32(const unsigned char* data, int64_t cols, float* out) {
    std::memcpy(out, data, static_cast<size_t>(cols) * sizeof(float));
  }
  static void unpack_f16(const unsigned char* data, int64_t cols, float* out) {
    for (int64_t c = 0; c < cols; c += kWidth) {
      const __mmask16 mask = first(left(cols, c));
      _mm512_mask_storeu_ps(out + c, mask,
                            _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, data + 2 * c)));
    }
  }
  static void unpack_bf16(const unsigned char* data, int64_t cols, float* out) {
    for (int64_t c = 0; c < cols; c += kWidth) {
      const __mmask16 mask = first(left(cols, c));
      const __m512i bits = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, data + 2 * c));
      _mm512_mask_storeu_ps(out + c, mask, _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16)));
    }
  }
  static void unpack_int8(const unsigned char* data, const unsigned char* scales, int64_t cols,
                          float* out) {
    for (int64_t block = 0; block < cols / kScaleBlock; ++block) {
      uint16_t bits = 0;
      std::memcpy(&bits, scales + 2 * block, 2);
      const Reg scale_of_block = from_bits(static_cast<uint32_t>(bits) << 16);
      for (int64_t c = block * kScaleBlock; c < (block + 1) * kScaleBlock; c += kWidth) {
        const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(data + c));
        store(out + c, mul(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(x)), scale_of_block));
      }
    }
  }
  static void unpack_mxfp4(const unsigned char* data, const unsigned char* scales, int64_t cols,
                           float* out) {
    const Reg table = e2m1();
    const __m128i low = _mm_set1_epi8(15);
    for (int64_t block = 0; block < cols / kScaleBlock; ++block) {
      const __m128i x =
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(data + block * kScaleBlock / 2));
      const __m128i even = _mm_and_si128(x, low);
      const __m128i odd = _mm_and_si128(_mm_srli_epi16(x, 4), low);
      const Reg scale_of_block = e8m0(scales[block]);
      float* to = out + block * kScaleBlock;
      const __m512i left_codes = _mm512_cvtepu8_epi32(_mm_unpacklo_epi8(even, odd));
      const __m512i right_codes = _mm512_cvtepu8_epi32(_mm_unpackhi_epi8(even, odd));
      store(to, mul(_mm512_permutexvar_ps(left_codes, table), scale_of_block));
      store(to + kWidth, mul(_mm512_permutexvar_ps(right_codes, table), scale_of_block));
    }
  }

  /// kWidth weights before their scale.
  template <MatrixFormat kFormat>
  static Reg weights(const unsigned char* data) {
    if constexpr (kFormat == MatrixFormat::kF32) {
      return _mm512_loadu_ps(data);
    } else if constexpr (kFormat == MatrixFormat::kF16) {
      return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(data)));
    } else if constexpr (kFormat == MatrixFormat::kBf16) {
      const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data));
      return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
    } else if constexpr (kFormat == MatrixFormat::kInt8) {
      const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(data));
      return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(x));
    } else {
      // A byte in each half of 64 bits, its high nibble lowest in the upper half: a permutation
      // looks at the low four bits only.
      const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(data));
      const __m512i x = _mm512_cvtepu8_epi64(bytes);
      return _mm512_permutexvar_ps(_mm512_or_si512(x, _mm512_slli_epi64(x, 28)), e2m1());
    }
  }
  /// `count` <= 8 scales as floats.
  template <MatrixFormat kFormat>
  static void scales(const unsigned char* data, int64_t count, float* out) {
    const auto mask = static_cast<__mmask8>((1U << count) - 1U);
    __m256i bits;
    if constexpr (kFormat == MatrixFormat::kInt8) {
      bits = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_maskz_loadu_epi16(mask, data)), 16);
    } else {
      const __m256i x = _mm256_cvtepu8_epi32(_mm_maskz_loadu_epi8(mask, data));
      bits = _mm256_slli_epi32(x, 23);
      const __mmask8 smallest = _mm256_cmpeq_epi32_mask(x, _mm256_setzero_si256());
      const __mmask8 nan = _mm256_cmpeq_epi32_mask(x, _mm256_set1_epi32(255));
      bits = _mm256_mask_mov_epi32(bits, smallest, _mm256_set1_epi32(0x400000));
      bits = _mm256_mask_mov_epi32(bits, nan, _mm256_set1_epi32(0x7F800001));
    }
    _mm256_storeu_ps(out, _mm256_castsi256_ps(bits));
  }

 private:
  static Reg e2m1() {
    return _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f,
                          -1.5f, -2.0f, -3.0f, -4.0f, -6.0f);
  }
  static __mmask16 first(int n) { return static_cast<__mmask16>((1U << n) - 1U); }
  static int left(int64_t cols, int64_t c) {
    return cols - c < kWidth ? static_cast<int>(cols - c) : kWidth;
  }
  static Reg from_bits(uint32_t bits) {
    return _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int32_t>(bits)));
  }
  /// 2^(x - 127); the smallest is subnormal, 255 is NaN.
  static Reg e8m0(unsigned char x) {
    const uint32_t exponent = static_cast<uint32_t>(x) << 23;
    return from_bits(x == 0 ? 0x400000U : exponent | (x == 255 ? 1U : 0U));
  }
};

}  // namespace

const MlaKernels& mla_kernels_avx512() {
  static constexpr MlaKernels kKernels = kernels_of<MlaAvx512>();
  return kKernels;
}

}  // namespace triax::sequence
