// The second half of a gated MLP: the activation and the product that takes it.
#pragma once

#include "dense/linear/linear.h"
#include "width/situ/situ.h"

namespace triax::width {

/// out = act(gate, up) down^T + add. One launch on a GPU with few rows.
/// Shapes     gate, up [T, F], add (or empty), out [T, D] float32, rows strided; down [D, F]
struct GatedLinearArgs {
  Activation activation;
  ConstTensorView gate;
  ConstTensorView up;
  MatrixView down;
  dense::Activations precision = dense::Activations::kF32;
  ConstTensorView add = {};
  TensorView out;
};

/// Precision  as gated_activation and linear
/// Aliasing   out may be add, else is distinct from all inputs
/// Errors     kInvalidArgument for shape or type; nothing is written then
Status gated_linear(const Device& device, const GatedLinearArgs& args);

}  // namespace triax::width
