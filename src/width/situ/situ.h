// The activations between the two halves of a gated MLP.
#pragma once

#include "base/status.h"
#include "dense/linear/gating.h"
#include "device/device.h"
#include "tensor/tensor.h"

namespace triax::width {

using Activation = dense::Gating;

/// out = act(gate, up), element by element.
/// Shapes     gate, up, out [T, F] float32, rows strided
/// Precision  float32, within 4 ulp of each factor (situ_test.cc); large inputs saturate, no NaN
/// Aliasing   out may be gate or up
/// Errors     kInvalidArgument for shape or type; nothing is written then
/// Source     K3 report Eq. 12; truth: situ_reference.cc
Status gated_activation(const Device& device, const Activation& activation, ConstTensorView gate,
                        ConstTensorView up, TensorView out);

}  // namespace triax::width
