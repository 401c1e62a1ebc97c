// gated_activation of one row in portable code.
#include <algorithm>
#include <cmath>

#include "width/situ/situ_kernels.h"

namespace triax::width::internal {
namespace {

// The exponential of a negative number only: it cannot overflow.
float sigmoid(float x) {
  const float e = std::exp(-std::fabs(x));
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

// Below -200 sigmoid is 0; the bound keeps minus infinity away from 0 * infinity.
float silu(float x) { return std::max(x, -200.0f) * sigmoid(x); }

}  // namespace

void gated_activation_row(const Activation& activation, const float* gate, const float* up,
                          int64_t size, float* out) {
  if (activation.kind == Activation::Kind::kSilu) {
    for (int64_t i = 0; i < size; ++i) {
      out[i] = silu(gate[i]) * up[i];
    }
    return;
  }
  const float b = activation.beta;
  const float l = activation.linear_beta;
  for (int64_t i = 0; i < size; ++i) {
    const float gated = b * std::tanh(gate[i] / b) * sigmoid(gate[i]);
    out[i] = gated * (l * std::tanh(up[i] / l));
  }
}

}  // namespace triax::width::internal
