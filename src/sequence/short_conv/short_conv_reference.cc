// The short convolution as the formula says it, in double: the truth of the suite.
#include <cmath>

#include "sequence/short_conv/short_conv_kernels.h"

namespace triax::sequence {
namespace {

/// Raw input of channel c at token t of the sequence; t < 0 reaches into the window.
float raw_input(const ShortConvProblem& p, int64_t n, int64_t t, int64_t c) {
  if (t < 0) {
    return p.windows[p.slots[n] * p.slot_stride + (t + 3) * p.tap_stride + c];
  }
  return p.in[(p.cu_seqlens[n] + t) * p.in_stride + c];
}

void convolve_channel(const ShortConvProblem& p, int64_t n, int64_t c) {
  const int64_t first = p.cu_seqlens[n];
  const int64_t length = p.cu_seqlens[n + 1] - first;
  for (int64_t t = 0; t < length; ++t) {
    double sum = 0.0;
    for (int64_t i = 0; i < 4; ++i) {
      sum += static_cast<double>(p.weight[i * p.weight_stride + c]) * raw_input(p, n, t - 3 + i, c);
    }
    p.out[(first + t) * p.out_stride + c] = static_cast<float>(sum / (1.0 + std::exp(-sum)));
  }
  for (int64_t i = 0; i < 3; ++i) {  // ascending: entry i reads entries >= i only
    p.windows[p.slots[n] * p.slot_stride + i * p.tap_stride + c] =
        raw_input(p, n, length - 3 + i, c);
  }
}

}  // namespace

void short_conv_reference(const ShortConvProblem& p, int64_t n, int64_t begin, int64_t end) {
  for (int64_t c = begin; c < end; ++c) {
    if (p.slots[n] >= 0) {
      convolve_channel(p, n, c);
      continue;
    }
    for (int64_t t = p.cu_seqlens[n]; t < p.cu_seqlens[n + 1]; ++t) {
      p.out[t * p.out_stride + c] = 0.0f;
    }
  }
}

}  // namespace triax::sequence
