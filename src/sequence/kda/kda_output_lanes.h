// The gated norm at the end of a KDA layer over lanes; every instruction set has its own copy.
#pragma once

#include "sequence/kda/kda_step_lanes.h"

namespace triax::sequence {
namespace {

/// out = in / sqrt(mean in^2 + eps) * weight * sigmoid(gate), one head of one token.
template <typename L>
void output_head(const float* in, const float* weight, const float* gate, float eps, int64_t size,
                 float* out) {
  auto squares = L::zero();
  for (int64_t c = 0; c < size; c += L::kWidth) {
    const auto x = load_some<L>(in + c, lanes_at<L>(c, size));
    squares = L::fma(x, x, squares);
  }
  const float mean = L::sum(squares) / static_cast<float>(size);
  const auto factor = L::set(1.0f / __builtin_sqrtf(mean + eps));
  for (int64_t c = 0; c < size; c += L::kWidth) {
    const int n = lanes_at<L>(c, size);
    const auto x = L::mul(L::mul(load_some<L>(in + c, n), factor), load_some<L>(weight + c, n));
    store_some<L>(out + c, L::mul(x, lanes_sigmoid<L>(load_some<L>(gate + c, n))), n);
  }
}

template <typename L>
void kda_output_lanes(const KdaOutputProblem& p, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t t = row / p.heads;
    const int64_t h = row % p.heads;
    output_head<L>(p.in.data + t * p.in.token + h * p.in.head, p.weight,
                   p.gate.data + t * p.gate.token + h * p.gate.head, p.eps, p.values,
                   p.out + t * p.out_token + h * p.out_head);
  }
}

}  // namespace
}  // namespace triax::sequence
