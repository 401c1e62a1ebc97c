// A norm and the products that take its result: what most sublayers begin with.
#pragma once

#include <span>

#include "base/status.h"
#include "dense/linear/linear.h"
#include "device/device.h"
#include "tensor/tensor.h"

namespace triax::dense {

/// What a sublayer's products start from: x = rms_norm(in + delta) * weight.
/// Shapes     in, delta, sum, x [T, D] float32, rows dense; weight [D]
struct NormInput {
  ConstTensorView in;
  ConstTensorView delta;  // empty: none
  TensorView sum;         // in + delta; unused without delta
  ConstTensorView weight;
  float eps = 1e-5f;
  TensorView x;
};

/// sum and x, then products whose `in` is x. One launch on a GPU where the products allow it.
/// Precision  as rms_norm and linear
/// Aliasing   sum and x are distinct from each other, from all inputs and from the products'
/// outputs Errors     kInvalidArgument for shape, type or null; nothing is written then
Status norm_linear(const Device& device, const NormInput& input, std::span<const Product> products,
                   Activations activations = Activations::kF32);

}  // namespace triax::dense
