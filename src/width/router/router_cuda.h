// The router on the GPU, plain: float32 logits, then a warp selects for each token.
#pragma once

#include <cstdint>

#include "tensor/matrix.h"
#include "width/router/router.h"

namespace triax::width {

/// s = sigmoid(x W^T), top-k of s + bias (ties: the lower id), the contract of RouteArgs
/// Shapes     in [tokens, gate.cols] device float32, rows strided; gate in device memory, any
///            format; bias [E]; ids int32 and weights float32 [tokens, count], rows strided;
///            scores: scratch of tokens * E float32
/// Edges      NaN counts as a key below all others
struct RouteCuda {
  const float* in;
  int64_t in_stride;
  int64_t tokens;
  MatrixView gate;
  const float* bias;
  int64_t count;  // k, <= E
  bool renormalize;
  float scaling_factor;
  RouteWeights weights_from;
  float* scores;
  int32_t* ids;
  int64_t ids_stride;
  float* weights;
  int64_t weights_stride;
};

/// Precision  float32 logits in a fixed order that does not depend on the number of tokens
/// Errors     a cudaError_t as int; enqueues only
extern "C" int triax_cuda_route(const RouteCuda* args, void* stream);

}  // namespace triax::width
