// The kernels of gated_activation, one for each instruction set. Internal to this folder.
#pragma once

#include <cstdint>

#include "width/situ/situ.h"

namespace triax::width::internal {

/// out[i] = act(gate[i], up[i]) for i in [0, size). out may be gate or up.
using GatedActivationRow = void (*)(const Activation& activation, const float* gate,
                                    const float* up, int64_t size, float* out);

void gated_activation_row(const Activation& activation, const float* gate, const float* up,
                          int64_t size, float* out);
void gated_activation_row_avx2(const Activation& activation, const float* gate, const float* up,
                               int64_t size, float* out);
void gated_activation_row_avx512(const Activation& activation, const float* gate, const float* up,
                                 int64_t size, float* out);

/// One element in double.
double activate_reference(const Activation& activation, double gate, double up);

void gated_activation_reference(const Activation& activation, ConstTensorView gate,
                                ConstTensorView up, TensorView out);

}  // namespace triax::width::internal
