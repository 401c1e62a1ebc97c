// What the kernels of routed experts share beside the unpacking of their weights.
#pragma once

#include "dense/linear/linear_mxfp4_sm90.cuh"
#include "width/situ/situ.h"

namespace triax::width::sm90 {

using namespace dense::sm90;

/// situ.h's activation in float32.
__device__ __forceinline__ float activate(const Activation& activation, float gate, float up) {
  const float sigmoid = 1.0f / (1.0f + expf(-gate));
  if (activation.kind == Activation::Kind::kSilu) {
    return (gate == -INFINITY ? 0.0f : gate * sigmoid) * up;
  }
  return activation.beta * tanhf(gate / activation.beta) * sigmoid * activation.linear_beta *
         tanhf(up / activation.linear_beta);
}

}  // namespace triax::width::sm90
