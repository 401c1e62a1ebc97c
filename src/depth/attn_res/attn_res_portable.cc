// The inner loops of Attention Residuals in plain C++.
#include <algorithm>

#include "depth/attn_res/attn_res_kernels.h"

namespace triax::depth {
namespace {

constexpr int64_t kLanes = 16;
constexpr int64_t kStrip = 64;

/// Lane by lane, so that the compiler may use what vectors it has.
float dot(const float* a, const float* b, int64_t dim) {
  float sum[kLanes] = {};
  int64_t d = 0;
  for (; d + kLanes <= dim; d += kLanes) {
    for (int64_t w = 0; w < kLanes; ++w) {
      sum[w] += a[d + w] * b[d + w];
    }
  }
  for (int64_t w = 0; d < dim; ++d, ++w) {
    sum[w] += a[d] * b[d];
  }
  float total = 0.0f;
  for (float part : sum) {
    total += part;
  }
  return total;
}

void dots(const AttnResDots& tile) {
  for (int64_t i = 0; i < tile.sources; ++i) {
    tile.squares[i] = dot(tile.v[i], tile.v[i], tile.dim);
    for (int64_t q = 0; q < tile.query_count; ++q) {
      tile.dots[q * tile.sources + i] =
          dot(tile.queries + q * tile.query_stride, tile.v[i], tile.dim);
    }
  }
}

void mix(const AttnResMix& tile) {
  for (int64_t begin = 0; begin < tile.dim; begin += kStrip) {
    const int64_t count = std::min(kStrip, tile.dim - begin);
    for (int64_t q = 0; q < tile.query_count; ++q) {
      float sum[kStrip] = {};
      for (int64_t i = 0; i < tile.sources; ++i) {
        const float weight = tile.weights[q * tile.sources + i];
        const float* v = tile.v[i] + begin;
        for (int64_t d = 0; d < count; ++d) {
          sum[d] += weight * v[d];
        }
      }
      std::copy(sum, sum + count, tile.out + q * tile.out_stride + begin);
    }
  }
}

}  // namespace

const AttnResKernels& attn_res_kernels_portable() {
  static constexpr AttnResKernels kKernels = {dots, mix};
  return kKernels;
}

}  // namespace triax::depth
