// A gated hidden layer on the device.
#pragma once

#include "dense/linear/gating.h"
#include "device/cuda/block.cuh"

namespace triax::dense {

__device__ inline float gated(const Gating& gating, float gate, float up) {
  if (gating.kind == Gating::Kind::kSilu) {
    return cuda::silu(gate) * up;
  }
  const float b = gating.beta;
  const float l = gating.linear_beta;
  return b * tanhf(gate / b) * cuda::sigmoid(gate) * (l * tanhf(up / l));
}

}  // namespace triax::dense
