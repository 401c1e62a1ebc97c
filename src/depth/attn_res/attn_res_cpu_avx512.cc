// The inner loops of Attention Residuals for AVX-512.
#include <immintrin.h>

#include "depth/attn_res/attn_res_lanes.h"

namespace triax::depth {
namespace {

struct AttnResAvx512 {
  using Reg = __m512;
  static constexpr int kWidth = 16;
  static constexpr int kQueries = 4;
  static constexpr int kSources = 4;

  static Reg zero() { return _mm512_setzero_ps(); }
  static Reg set(float x) { return _mm512_set1_ps(x); }
  static Reg load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Reg x) { _mm512_storeu_ps(p, x); }
  static Reg load_some(const float* p, int n) {
    return n == kWidth ? load(p) : _mm512_maskz_loadu_ps(first(n), p);
  }
  static void store_some(float* p, Reg x, int n) {
    n == kWidth ? store(p, x) : _mm512_mask_storeu_ps(p, first(n), x);
  }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm512_fmadd_ps(a, b, c); }
  static float sum(Reg x) { return _mm512_reduce_add_ps(x); }

 private:
  static __mmask16 first(int n) { return static_cast<__mmask16>((1U << n) - 1U); }
};

}  // namespace

const AttnResKernels& attn_res_kernels_avx512() {
  static constexpr AttnResKernels kKernels = kernels_of<AttnResAvx512>();
  return kKernels;
}

}  // namespace triax::depth
