// Root-mean-square normalisation.
#pragma once

#include "base/status.h"
#include "device/device.h"
#include "tensor/tensor.h"

namespace triax::dense {

/// out[t, d] = in[t, d] / sqrt(mean_d(in[t]^2) + eps) * weight[d]
struct RmsNormArgs {
  ConstTensorView in;      // [T, D] float32, rows strided
  ConstTensorView weight;  // [D] float32
  float eps = 1e-5f;
  TensorView out;  // [T, D] float32, rows strided
};

/// Precision  float32, the sum of squares in a fixed order
/// Aliasing   out may be in
/// Errors     kInvalidArgument for shape or type; nothing is written then
/// Source     spec 2.1; truth: norm_reference.cc
Status rms_norm(const Device& device, const RmsNormArgs& args);

}  // namespace triax::dense
