// Which experts a token visits, and with what weights.
#pragma once

#include "base/status.h"
#include "device/device.h"
#include "tensor/matrix.h"
#include "tensor/tensor.h"

namespace triax::width {

/// kUnbiased: the paper, and every engine. kBiased: weights from score + bias, as the published
/// Kimi Linear code does by mistake; only to reproduce it.
enum class RouteWeights { kUnbiased, kBiased };

/// s = sigmoid(x W^T);  T = top-k of s + bias (ties: the lower id);
/// p_j = s_j / (sum_T s + 1e-20) * scaling_factor   (without `renormalize`: s_j * scaling_factor)
struct RouteArgs {
  ConstTensorView in;    // [T, D] float32, rows strided
  MatrixView gate;       // [E, D]
  ConstTensorView bias;  // [E] float32; decides, does not weigh
  bool renormalize = true;
  float scaling_factor = 1.0f;
  RouteWeights weights_from = RouteWeights::kUnbiased;
  TensorView ids;      // [T, k] int32, by descending s + bias
  TensorView weights;  // [T, k] float32
};

/// Precision  float32 logits, in a fixed order that does not depend on T
/// Errors     kInvalidArgument for shape or type, or k > E; nothing is written then
/// Source     spec 2.5, K3 report Eq. 13; truth: router_reference.cc
Status route(const Device& device, const RouteArgs& args);

}  // namespace triax::width
