// The inner loops of MLA for AVX2 with FMA and F16C.
#include <immintrin.h>

#include <cstring>

#include "sequence/mla/mla_lanes.h"

namespace triax::sequence {
namespace {

struct MlaAvx2 {
  using Reg = __m256;
  static constexpr int kWidth = 8;
  static constexpr int kScoreRows = 6;
  static constexpr int kSumVecs = 2;

  static Reg zero() { return _mm256_setzero_ps(); }
  static Reg set(float x) { return _mm256_set1_ps(x); }
  static Reg load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, Reg x) { _mm256_storeu_ps(p, x); }
  static Reg load_some(const float* p, int n) {
    return n == kWidth ? load(p) : _mm256_maskload_ps(p, first(n));
  }
  static void store_some(float* p, Reg x, int n) {
    n == kWidth ? store(p, x) : _mm256_maskstore_ps(p, first(n), x);
  }
  static void prefetch(const void* p) { _mm_prefetch(p, _MM_HINT_T0); }
  static Reg add(Reg a, Reg b) { return _mm256_add_ps(a, b); }
  static Reg sub(Reg a, Reg b) { return _mm256_sub_ps(a, b); }
  static Reg mul(Reg a, Reg b) { return _mm256_mul_ps(a, b); }
  static Reg div(Reg a, Reg b) { return _mm256_div_ps(a, b); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm256_fmadd_ps(a, b, c); }
  static Reg max(Reg a, Reg b) { return _mm256_max_ps(a, b); }
  static Reg round(Reg x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  /// y * 2^n for n in [-126, 0]; elsewhere anything, which the caller discards.
  static Reg scale(Reg y, Reg n) {
    const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return mul(y, _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23)));
  }
  static Reg negative_abs(Reg x) { return _mm256_or_ps(x, set(-0.0f)); }
  static Reg if_less(Reg a, Reg b, Reg yes, Reg no) {
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
  }
  static float sum(Reg x) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
  }

  static void unpack_f32(const unsigned char* data, int64_t cols, float* out) {
    std::memcpy(out, data, static_cast<size_t>(cols) * sizeof(float));
  }
  static void unpack_f16(const unsigned char* data, int64_t cols, float* out) {
    for (int64_t c = 0; c < cols; c += kWidth) {
      const int n = left(cols, c);
      store_some(out + c, _mm256_cvtph_ps(load_halves(data + 2 * c, n)), n);
    }
  }
  static void unpack_bf16(const unsigned char* data, int64_t cols, float* out) {
    for (int64_t c = 0; c < cols; c += kWidth) {
      const int n = left(cols, c);
      const __m256i bits = _mm256_cvtepu16_epi32(load_halves(data + 2 * c, n));
      store_some(out + c, _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16)), n);
    }
  }
  static void unpack_int8(const unsigned char* data, const unsigned char* scales, int64_t cols,
                          float* out) {
    for (int64_t block = 0; block < cols / kScaleBlock; ++block) {
      uint16_t bits = 0;
      std::memcpy(&bits, scales + 2 * block, 2);
      const Reg scale_of_block = from_bits(static_cast<uint32_t>(bits) << 16);
      for (int64_t c = block * kScaleBlock; c < (block + 1) * kScaleBlock; c += kWidth) {
        const __m128i x = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(data + c));
        store(out + c, mul(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)), scale_of_block));
      }
    }
  }
  static void unpack_mxfp4(const unsigned char* data, const unsigned char* scales, int64_t cols,
                           float* out) {
    const __m128i low = _mm_set1_epi8(15);
    for (int64_t block = 0; block < cols / kScaleBlock; ++block) {
      const __m128i x =
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(data + block * kScaleBlock / 2));
      const __m128i even = _mm_and_si128(x, low);
      const __m128i odd = _mm_and_si128(_mm_srli_epi16(x, 4), low);
      const Reg scale_of_block = e8m0(scales[block]);
      float* to = out + block * kScaleBlock;
      store_codes(to, _mm_unpacklo_epi8(even, odd), scale_of_block);
      store_codes(to + 2 * kWidth, _mm_unpackhi_epi8(even, odd), scale_of_block);
    }
  }

  /// kWidth weights before their scale.
  template <MatrixFormat kFormat>
  static Reg weights(const unsigned char* data) {
    if constexpr (kFormat == MatrixFormat::kF32) {
      return _mm256_loadu_ps(reinterpret_cast<const float*>(data));
    } else if constexpr (kFormat == MatrixFormat::kF16) {
      return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data)));
    } else if constexpr (kFormat == MatrixFormat::kBf16) {
      const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(data));
      return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
    } else if constexpr (kFormat == MatrixFormat::kInt8) {
      const __m128i x = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(data));
      return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x));
    } else {
      // A byte in each half of 64 bits, its high nibble lowest in the upper half.
      const __m256i x = _mm256_cvtepu8_epi64(_mm_loadu_si32(data));
      return e2m1(_mm256_or_si256(x, _mm256_slli_epi64(x, 28)));
    }
  }
  /// `count` <= 8 scales as floats.
  template <MatrixFormat kFormat>
  static void scales(const unsigned char* data, int64_t count, float* out) {
    constexpr int64_t kBytes = kFormat == MatrixFormat::kInt8 ? 2 : 1;
    unsigned char some[16] = {};
    if (count < 8) {
      std::memcpy(some, data, static_cast<size_t>(count * kBytes));
      data = some;
    }
    __m256i bits;
    if constexpr (kFormat == MatrixFormat::kInt8) {
      const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(data));
      bits = _mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16);
    } else {
      const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(data));
      const __m256i x = _mm256_cvtepu8_epi32(bytes);
      const __m256i smallest = _mm256_cmpeq_epi32(x, _mm256_setzero_si256());
      const __m256i nan = _mm256_cmpeq_epi32(x, _mm256_set1_epi32(255));
      bits = _mm256_slli_epi32(x, 23);
      bits = _mm256_or_si256(bits, _mm256_and_si256(smallest, _mm256_set1_epi32(0x400000)));
      bits = _mm256_or_si256(bits, _mm256_and_si256(nan, _mm256_set1_epi32(1)));
    }
    _mm256_storeu_ps(out, _mm256_castsi256_ps(bits));
  }

 private:
  static __m256i first(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static int left(int64_t cols, int64_t c) {
    return cols - c < kWidth ? static_cast<int>(cols - c) : kWidth;
  }
  static __m128i load_halves(const unsigned char* data, int n) {
    if (n == kWidth) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(data));
    }
    uint16_t some[kWidth] = {};
    std::memcpy(some, data, static_cast<size_t>(n) * 2);
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(some));
  }
  static Reg from_bits(uint32_t bits) {
    return _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int32_t>(bits)));
  }
  /// 2^(x - 127); the smallest is subnormal, 255 is NaN.
  static Reg e8m0(unsigned char x) {
    const uint32_t exponent = static_cast<uint32_t>(x) << 23;
    return from_bits(x == 0 ? 0x400000U : exponent | (x == 255 ? 1U : 0U));
  }
  /// Sixteen E2M1 codes times a scale.
  static void store_codes(float* out, __m128i codes, Reg scale_of_block) {
    store(out, mul(e2m1(_mm256_cvtepu8_epi32(codes)), scale_of_block));
    store(out + kWidth, mul(e2m1(_mm256_cvtepu8_epi32(_mm_srli_si128(codes, 8))), scale_of_block));
  }
  static Reg e2m1(__m256i codes) {
    const Reg table = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
    const Reg sign =
        _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_and_si256(codes, _mm256_set1_epi32(8)), 28));
    return _mm256_or_ps(_mm256_permutevar8x32_ps(table, codes), sign);  // the low 3 bits choose
  }
};

}  // namespace

const MlaKernels& mla_kernels_avx2() {
  static constexpr MlaKernels kKernels = kernels_of<MlaAvx2>();
  return kKernels;
}

}  // namespace triax::sequence
