// gated_activation in double: the truth.
#include <cmath>

#include "width/situ/situ_kernels.h"

namespace triax::width::internal {
namespace {

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// x sigmoid(x); its limit at minus infinity is 0, where the product of the limits is undefined.
double silu(double x) { return std::isinf(x) && x < 0.0 ? 0.0 : x * sigmoid(x); }

}  // namespace

double activate_reference(const Activation& activation, double gate, double up) {
  if (activation.kind == Activation::Kind::kSilu) {
    return silu(gate) * up;
  }
  // K3 report, Eq. 12: SiTU-GLU(g, u) = b tanh(g / b) sigmoid(g) * l tanh(u / l)
  const auto b = static_cast<double>(activation.beta);
  const auto l = static_cast<double>(activation.linear_beta);
  return b * std::tanh(gate / b) * sigmoid(gate) * l * std::tanh(up / l);
}

void gated_activation_reference(const Activation& activation, ConstTensorView gate,
                                ConstTensorView up, TensorView out) {
  for (int64_t t = 0; t < gate.size(0); ++t) {
    const float* g = gate.data<float>() + t * gate.stride(0);
    const float* u = up.data<float>() + t * up.stride(0);
    float* o = out.data<float>() + t * out.stride(0);
    for (int64_t f = 0; f < gate.size(1); ++f) {
      o[f] = static_cast<float>(
          activate_reference(activation, static_cast<double>(g[f]), static_cast<double>(u[f])));
    }
  }
}

}  // namespace triax::width::internal
