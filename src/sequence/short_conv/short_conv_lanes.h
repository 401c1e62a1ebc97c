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

/// Floats ahead of its use that memory is asked for in a step of one token: weights and windows
/// come from memory then, in seven streams too short for the hardware to follow.
constexpr int64_t kPrefetchFloats = 256;

/// Asks for the floats from `c` on of the seven streams.
void prefetch_streams(const ShortConvProblem& p, const float* window, int64_t c) {
  for (int64_t i = 0; i < 4; ++i) {
    __builtin_prefetch(p.weight + i * p.weight_stride + c);
  }
  for (int64_t i = 0; i < 3; ++i) {
    __builtin_prefetch(window + i * p.tap_stride + c, 1);
  }
}

/// A sequence of one token, token t of the call: the arithmetic of convolve_token, and the window
/// moves on in the same pass.
template <typename L>
void step_token(const ShortConvProblem& p, int64_t t, float* window, int64_t begin, int64_t end) {
  const float* in = p.in + t * p.in_stride;
  float* out = p.out + t * p.out_stride;
  for (int64_t c = begin; c < end && c < begin + kPrefetchFloats; c += 16) {
    prefetch_streams(p, window, c);
  }
  for (int64_t c = begin; c < end; c += L::kWidth) {
    if (c + kPrefetchFloats < end && (c - begin) % 16 == 0) {
      prefetch_streams(p, window, c + kPrefetchFloats);
    }
    const int n = end - c < L::kWidth ? static_cast<int>(end - c) : L::kWidth;
    float* rows[3] = {window + c, window + p.tap_stride + c, window + 2 * p.tap_stride + c};
    const auto second = load_some<L>(rows[1], n);
    const auto third = load_some<L>(rows[2], n);
    const auto now = load_some<L>(in + c, n);
    const float* weight = p.weight + c;
    auto sum = L::mul(load_some<L>(weight, n), load_some<L>(rows[0], n));
    sum = L::fma(load_some<L>(weight + p.weight_stride, n), second, sum);
    sum = L::fma(load_some<L>(weight + 2 * p.weight_stride, n), third, sum);
    sum = L::fma(load_some<L>(weight + 3 * p.weight_stride, n), now, sum);
    store_some<L>(rows[0], second, n);
    store_some<L>(rows[1], third, n);
    store_some<L>(rows[2], now, n);
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
  if (length == 1) {
    step_token<L>(p, first, window, begin, end);
    return;
  }
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
