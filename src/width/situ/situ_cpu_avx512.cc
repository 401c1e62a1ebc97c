// gated_activation of one row with AVX-512.
#include <immintrin.h>

#include "width/situ/situ_kernels.h"

namespace triax::width::internal {
namespace {

__m512 set(float x) { return _mm512_set1_ps(x); }

__m512 abs(__m512 x) { return _mm512_abs_ps(x); }

// x = n log 2 + r with |r| <= log(2) / 2; the constant is split so that n times its upper part is
// exact.
struct Reduced {
  __m512 n, r;
};

Reduced reduce(__m512 x) {
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, set(0x1.715476p+0f)),
                                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 r = _mm512_fnmadd_ps(n, set(0x1.62e400p-1f), x);
  return {n, _mm512_fnmadd_ps(n, set(0x1.7f7d1cp-20f), r)};
}

// exp(r) - 1 for |r| <= log(2) / 2: the Taylor sum to r^8, whose rest is below 2^-29 of it.
__m512 expm1_reduced(__m512 r) {
  __m512 p = set(1.0f / 40320.0f);
  p = _mm512_fmadd_ps(p, r, set(1.0f / 5040.0f));
  p = _mm512_fmadd_ps(p, r, set(1.0f / 720.0f));
  p = _mm512_fmadd_ps(p, r, set(1.0f / 120.0f));
  p = _mm512_fmadd_ps(p, r, set(1.0f / 24.0f));
  p = _mm512_fmadd_ps(p, r, set(1.0f / 6.0f));
  p = _mm512_fmadd_ps(p, r, set(0.5f));
  return _mm512_fmadd_ps(_mm512_mul_ps(p, r), r, r);
}

// exp(-|x|): in [0, 1], subnormal results included.
__m512 exp_minus_abs(__m512 x) {
  const __m512 bounded = _mm512_max_ps(_mm512_sub_ps(_mm512_setzero_ps(), abs(x)), set(-104.0f));
  const Reduced a = reduce(bounded);
  return _mm512_scalef_ps(_mm512_add_ps(expm1_reduced(a.r), set(1.0f)), a.n);
}

__m512 sigmoid(__m512 x) {
  const __m512 e = exp_minus_abs(x);
  const __mmask16 negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
  const __m512 top = _mm512_mask_blend_ps(negative, set(1.0f), e);
  return _mm512_div_ps(top, _mm512_add_ps(e, set(1.0f)));
}

// With t = exp(-2|x|) - 1: tanh |x| = -t / (2 + t), exact to a few ulp down to 0.
__m512 tanh(__m512 x) {
  const __m512 bounded = _mm512_min_ps(set(10.0f), abs(x));
  const Reduced a = reduce(_mm512_mul_ps(bounded, set(-2.0f)));
  const __m512 power = _mm512_scalef_ps(set(1.0f), a.n);
  const __m512 t = _mm512_fmadd_ps(power, expm1_reduced(a.r), _mm512_sub_ps(power, set(1.0f)));
  const __m512 magnitude = _mm512_div_ps(abs(t), _mm512_add_ps(t, set(2.0f)));
  const __m512 sign = _mm512_and_ps(x, set(-0.0f));
  return _mm512_or_ps(magnitude, sign);
}

// Below -200 sigmoid is 0; the bound keeps minus infinity away from 0 * infinity.
__m512 silu(__m512 x) { return _mm512_mul_ps(_mm512_max_ps(set(-200.0f), x), sigmoid(x)); }

__m512 situ(__m512 gate, __m512 up, __m512 b, __m512 l) {
  const __m512 soft_gate = _mm512_mul_ps(b, tanh(_mm512_div_ps(gate, b)));
  const __m512 soft_up = _mm512_mul_ps(l, tanh(_mm512_div_ps(up, l)));
  return _mm512_mul_ps(_mm512_mul_ps(soft_gate, sigmoid(gate)), soft_up);
}

}  // namespace

void gated_activation_row_avx512(const Activation& activation, const float* gate, const float* up,
                                 int64_t size, float* out) {
  const bool is_silu = activation.kind == Activation::Kind::kSilu;
  const __m512 b = set(activation.beta);
  const __m512 l = set(activation.linear_beta);
  for (int64_t i = 0; i < size; i += 16) {
    const int64_t rest = size - i < 16 ? size - i : 16;
    const auto mask = static_cast<__mmask16>((1U << rest) - 1U);
    const __m512 g = _mm512_maskz_loadu_ps(mask, gate + i);
    const __m512 u = _mm512_maskz_loadu_ps(mask, up + i);
    _mm512_mask_storeu_ps(out + i, mask, is_silu ? _mm512_mul_ps(silu(g), u) : situ(g, u, b, l));
  }
}

}  // namespace triax::width::internal
