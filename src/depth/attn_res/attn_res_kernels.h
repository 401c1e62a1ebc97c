// The inner loops of Attention Residuals, one table an instruction set. They know rows of one
// token, not tokens or blocks.
#pragma once

#include <cstdint>

namespace triax::depth {

/// dots[q * sources + i] = queries[q] . v[i];  squares[i] = v[i] . v[i]
/// Every product is one chain over d, lane by lane, so it does not depend on what else is asked.
struct AttnResDots {
  const float* queries = nullptr;
  int64_t query_stride = 0;
  int64_t query_count = 0;
  const float* const* v = nullptr;  // [sources]
  int64_t sources = 0;
  int64_t dim = 0;
  float* dots = nullptr;     // [query_count, sources]
  float* squares = nullptr;  // [sources]
};

/// out[q][d] = sum_i weights[q * sources + i] v[i][d], i ascending. An output row may be one of the
/// v when there is only one query.
struct AttnResMix {
  const float* weights = nullptr;  // [query_count, sources]
  int64_t query_count = 0;
  const float* const* v = nullptr;  // [sources]
  int64_t sources = 0;
  int64_t dim = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
};

struct AttnResKernels {
  void (*dots)(const AttnResDots& tile);
  void (*mix)(const AttnResMix& tile);
};

const AttnResKernels& attn_res_kernels_portable();
const AttnResKernels& attn_res_kernels_avx2();
const AttnResKernels& attn_res_kernels_avx512();

}  // namespace triax::depth
