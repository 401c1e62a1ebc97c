// The inner loops of Attention Residuals for AVX2 with FMA.
#include <immintrin.h>

#include "depth/attn_res/attn_res_lanes.h"

namespace triax::depth {
namespace {

struct AttnResAvx2 {
  using Reg = __m256;
  static constexpr int kWidth = 8;
  static constexpr int kQueries = 2;
  static constexpr int kSources = 4;

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
  static Reg fma(Reg a, Reg b, Reg c) { return _mm256_fmadd_ps(a, b, c); }
  static float sum(Reg x) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
  }

 private:
  static __m256i first(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
};

}  // namespace

const AttnResKernels& attn_res_kernels_avx2() {
  static constexpr AttnResKernels kKernels = kernels_of<AttnResAvx2>();
  return kKernels;
}

}  // namespace triax::depth
