// gated_activation of one row with AVX2.
#include <immintrin.h>

#include "width/situ/situ_kernels.h"

namespace triax::width::internal {
namespace {

__m256 set(float x) { return _mm256_set1_ps(x); }

__m256 abs(__m256 x) { return _mm256_andnot_ps(set(-0.0f), x); }

// x = n log 2 + r with |r| <= log(2) / 2; the constant is split so that n times its upper part is
// exact.
struct Reduced {
  __m256 n, r;
};

Reduced reduce(__m256 x) {
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, set(0x1.715476p+0f)),
                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m256 r = _mm256_fnmadd_ps(n, set(0x1.62e400p-1f), x);
  return {n, _mm256_fnmadd_ps(n, set(0x1.7f7d1cp-20f), r)};
}

// exp(r) - 1 for |r| <= log(2) / 2: the Taylor sum to r^8, whose rest is below 2^-29 of it.
__m256 expm1_reduced(__m256 r) {
  __m256 p = set(1.0f / 40320.0f);
  p = _mm256_fmadd_ps(p, r, set(1.0f / 5040.0f));
  p = _mm256_fmadd_ps(p, r, set(1.0f / 720.0f));
  p = _mm256_fmadd_ps(p, r, set(1.0f / 120.0f));
  p = _mm256_fmadd_ps(p, r, set(1.0f / 24.0f));
  p = _mm256_fmadd_ps(p, r, set(1.0f / 6.0f));
  p = _mm256_fmadd_ps(p, r, set(0.5f));
  return _mm256_fmadd_ps(_mm256_mul_ps(p, r), r, r);
}

// 2^n for integers n in [-126, 127].
__m256 power_of_two(__m256 n) {
  const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
}

// exp(-|x|): in [0, 1]. The power is applied in two halves, so that subnormal results come out.
__m256 exp_minus_abs(__m256 x) {
  const __m256 bounded = _mm256_max_ps(_mm256_sub_ps(_mm256_setzero_ps(), abs(x)), set(-104.0f));
  const Reduced a = reduce(bounded);
  const __m256 half = _mm256_floor_ps(_mm256_mul_ps(a.n, set(0.5f)));
  const __m256 y = _mm256_mul_ps(_mm256_add_ps(expm1_reduced(a.r), set(1.0f)), power_of_two(half));
  return _mm256_mul_ps(y, power_of_two(_mm256_sub_ps(a.n, half)));
}

__m256 sigmoid(__m256 x) {
  const __m256 e = exp_minus_abs(x);
  const __m256 negative = _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_LT_OQ);
  const __m256 top = _mm256_blendv_ps(set(1.0f), e, negative);
  return _mm256_div_ps(top, _mm256_add_ps(e, set(1.0f)));
}

// With t = exp(-2|x|) - 1: tanh |x| = -t / (2 + t), exact to a few ulp down to 0.
__m256 tanh(__m256 x) {
  const __m256 bounded = _mm256_min_ps(set(10.0f), abs(x));
  const Reduced a = reduce(_mm256_mul_ps(bounded, set(-2.0f)));
  const __m256 power = power_of_two(a.n);
  const __m256 t = _mm256_fmadd_ps(power, expm1_reduced(a.r), _mm256_sub_ps(power, set(1.0f)));
  const __m256 magnitude = _mm256_div_ps(abs(t), _mm256_add_ps(t, set(2.0f)));
  return _mm256_or_ps(magnitude, _mm256_and_ps(x, set(-0.0f)));
}

// Below -200 sigmoid is 0; the bound keeps minus infinity away from 0 * infinity.
__m256 silu(__m256 x) { return _mm256_mul_ps(_mm256_max_ps(set(-200.0f), x), sigmoid(x)); }

__m256 situ(__m256 gate, __m256 up, __m256 b, __m256 l) {
  const __m256 soft_gate = _mm256_mul_ps(b, tanh(_mm256_div_ps(gate, b)));
  const __m256 soft_up = _mm256_mul_ps(l, tanh(_mm256_div_ps(up, l)));
  return _mm256_mul_ps(_mm256_mul_ps(soft_gate, sigmoid(gate)), soft_up);
}

__m256i lanes_below(int64_t count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

}  // namespace

void gated_activation_row_avx2(const Activation& activation, const float* gate, const float* up,
                               int64_t size, float* out) {
  const bool is_silu = activation.kind == Activation::Kind::kSilu;
  const __m256 b = set(activation.beta);
  const __m256 l = set(activation.linear_beta);
  for (int64_t i = 0; i < size; i += 8) {
    const __m256i mask = lanes_below(size - i < 8 ? size - i : 8);
    const __m256 g = _mm256_maskload_ps(gate + i, mask);
    const __m256 u = _mm256_maskload_ps(up + i, mask);
    _mm256_maskstore_ps(out + i, mask, is_silu ? _mm256_mul_ps(silu(g), u) : situ(g, u, b, l));
  }
}

}  // namespace triax::width::internal
