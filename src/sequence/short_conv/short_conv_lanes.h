// The short convolution over channels in lanes; every instruction set instantiates its own copy.
#pragma once

#include "sequence/lanes/math.h"
#include "sequence/short_conv/short_conv_kernels.h"

namespace triax::sequence {
namespace {

/// One token, channels [begin, end); rows[i] is the raw input that tap i multiplies.
template <typename L>
void convolve_token(const ShortConvProblem& p, const float* const* rows, float* out, int64_t begin,
                    int64_t end) {
  for (int64_t c = begin; c < end; c += L::kWidth) {
    const int n = end - c < L::kWidth ? static_cast<int>(end - c) : L::kWidth;
    auto sum = L::mul(load_some<L>(p.weight + c, n), load_some<L>(rows[0] + c, n));
    for (int64_t i = 1; i < 4; ++i) {
      sum = L::fma(load_some<L>(p.weight + i * p.weight_stride + c, n),
                   load_some<L>(rows[i] + c, n), sum);
    }
    store_some<L>(out + c, lanes_silu<L>(sum), n);
  }
}

template <typename L>
void short_conv_lanes(const ShortConvProblem& p, int64_t n, int64_t begin, int64_t end) {
  const int64_t first = p.cu_seqlens[n];
  const int64_t length = p.cu_seqlens[n + 1] - first;
  const int32_t slot = p.slots[n];
  if (slot < 0) {
    for (int64_t t = 0; t < length; ++t) {
      for (int64_t c = begin; c < end; ++c) {
        p.out[(first + t) * p.out_stride + c] = 0.0f;
      }
    }
    return;
  }
  float* window = p.windows + slot * p.slot_stride;
  const auto raw = [&](int64_t t) -> const float* {
    return t < 0 ? window + (t + 3) * p.tap_stride : p.in + (first + t) * p.in_stride;
  };
  for (int64_t t = 0; t < length; ++t) {
    const float* rows[4] = {raw(t - 3), raw(t - 2), raw(t - 1), raw(t)};
    convolve_token<L>(p, rows, p.out + (first + t) * p.out_stride, begin, end);
  }
  for (int64_t i = 0; i < 3 && length > 0; ++i) {  // ascending: entry i reads entries > i only
    const float* row = raw(length - 3 + i);
    for (int64_t c = begin; c < end; ++c) {
      window[i * p.tap_stride + c] = row[c];
    }
  }
}

}  // namespace
}  // namespace triax::sequence
