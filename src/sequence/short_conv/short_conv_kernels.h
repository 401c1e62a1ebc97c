// Plain-data form of a checked short convolution, and the kernels behind it. Internal.
#pragma once

#include <cstdint>

namespace triax::sequence {

struct ShortConvProblem {
  const float* in;
  int64_t in_stride;
  const float* weight;
  int64_t weight_stride;
  const int64_t* cu_seqlens;
  const int32_t* slots;
  float* windows;
  int64_t slot_stride, tap_stride;
  float* out;
  int64_t out_stride;
};

/// Channels [begin, end) of sequence n: all its tokens and its window.
using ShortConvKernel = void (*)(const ShortConvProblem&, int64_t n, int64_t begin, int64_t end);

void short_conv_reference(const ShortConvProblem& problem, int64_t n, int64_t begin, int64_t end);
void short_conv_portable(const ShortConvProblem& problem, int64_t n, int64_t begin, int64_t end);
void short_conv_avx2(const ShortConvProblem& problem, int64_t n, int64_t begin, int64_t end);
void short_conv_avx512(const ShortConvProblem& problem, int64_t n, int64_t begin, int64_t end);

}  // namespace triax::sequence
