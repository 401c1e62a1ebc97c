// Sixteen float lanes of AVX-512. Only for *_avx512.cc; the contract is in portable.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace triax::sequence {
namespace {

struct Avx512Lanes {
  using Reg = __m512;
  static constexpr int kWidth = 16;
  static constexpr int kPanel = 4;  // vectors of a register tile of four rows

  static Reg zero() { return _mm512_setzero_ps(); }
  static Reg set(float x) { return _mm512_set1_ps(x); }
  static Reg load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Reg x) { _mm512_storeu_ps(p, x); }
  static Reg load_n(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static void store_n(float* p, Reg x, int n) { _mm512_mask_storeu_ps(p, first(n), x); }
  static Reg add(Reg a, Reg b) { return _mm512_add_ps(a, b); }
  static Reg sub(Reg a, Reg b) { return _mm512_sub_ps(a, b); }
  static Reg mul(Reg a, Reg b) { return _mm512_mul_ps(a, b); }
  static Reg div(Reg a, Reg b) { return _mm512_div_ps(a, b); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm512_fmadd_ps(a, b, c); }
  static Reg fnma(Reg a, Reg b, Reg c) { return _mm512_fnmadd_ps(a, b, c); }
  static Reg abs(Reg x) { return _mm512_andnot_ps(set(-0.0f), x); }
  static Reg if_positive(Reg x, Reg a, Reg b) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, zero(), _CMP_GE_OQ), b, a);
  }
  static Reg clamp(Reg x, float low, float high) {
    return _mm512_min_ps(set(high), _mm512_max_ps(set(low), x));
  }
  static Reg round(Reg x) { return _mm512_roundscale_ps(x, 0x08); }
  static Reg scale(Reg y, Reg n) { return _mm512_scalef_ps(y, n); }
  static float sum(Reg x) {
    const __m256 eight = _mm256_add_ps(low(x), high(x));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
  }
  static void sum8(const Reg* x, float* out) {
    __m512 pair[4];
    for (int i = 0; i < 4; ++i) {
      pair[i] = _mm512_add_ps(_mm512_unpacklo_ps(x[2 * i], x[2 * i + 1]),
                              _mm512_unpackhi_ps(x[2 * i], x[2 * i + 1]));
    }
    __m512 quad[2];
    for (int i = 0; i < 2; ++i) {
      quad[i] = _mm512_add_ps(_mm512_shuffle_ps(pair[2 * i], pair[2 * i + 1], 0x44),
                              _mm512_shuffle_ps(pair[2 * i], pair[2 * i + 1], 0xee));
    }
    // quad[i]: in each of the four 128-bit parts the partial sums of rows 4i .. 4i + 3.
    const __m512 halves = _mm512_add_ps(_mm512_shuffle_f32x4(quad[0], quad[1], 0x44),
                                        _mm512_shuffle_f32x4(quad[0], quad[1], 0xee));
    const __m512 odd = _mm512_shuffle_f32x4(halves, halves, 0xb1);
    const __m512 sums = _mm512_add_ps(halves, odd);
    _mm_storeu_ps(out, _mm512_castps512_ps128(sums));
    _mm_storeu_ps(out + 4, _mm256_castps256_ps128(high(sums)));
  }
  static void transpose(const float* in, int64_t in_stride, float* out, int64_t out_stride) {
    __m512 r[16];
    __m512 t[16];
    for (int i = 0; i < 16; ++i) {
      r[i] = load(in + i * in_stride);
    }
    for (int i = 0; i < 16; i += 2) {
      t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
      t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
      for (int j = 0; j < 2; ++j) {
        r[i + 2 * j] = _mm512_shuffle_ps(t[i + j], t[i + j + 2], 0x44);
        r[i + 2 * j + 1] = _mm512_shuffle_ps(t[i + j], t[i + j + 2], 0xee);
      }
    }
    // r[4a + c]: column c of each 128-bit part, rows 4a .. 4a + 3.
    for (int c = 0; c < 4; ++c) {
      const __m512 p = _mm512_shuffle_f32x4(r[c], r[4 + c], 0x88);
      const __m512 q = _mm512_shuffle_f32x4(r[c], r[4 + c], 0xdd);
      const __m512 s = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0x88);
      const __m512 u = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0xdd);
      store(out + c * out_stride, _mm512_shuffle_f32x4(p, s, 0x88));
      store(out + (8 + c) * out_stride, _mm512_shuffle_f32x4(p, s, 0xdd));
      store(out + (4 + c) * out_stride, _mm512_shuffle_f32x4(q, u, 0x88));
      store(out + (12 + c) * out_stride, _mm512_shuffle_f32x4(q, u, 0xdd));
    }
  }

 private:
  static __mmask16 first(int n) { return static_cast<__mmask16>((1U << n) - 1U); }
  static __m256 low(__m512 x) { return _mm512_castps512_ps256(x); }
  static __m256 high(__m512 x) { return _mm512_extractf32x8_ps(x, 1); }
};

}  // namespace
}  // namespace triax::sequence
