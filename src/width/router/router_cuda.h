// The router on the GPU: float32 logits, then a warp selects for each token.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "tensor/matrix.h"
#include "width/router/router.h"

namespace triax {
class CudaQueue;
}

namespace triax::width {

/// How experts and weights follow from logits: as RouteArgs says.
struct RouterChoice {
  const float* bias = nullptr;  // [E] device
  bool renormalize = true;
  float scaling_factor = 1.0f;
  RouteWeights weights_from = RouteWeights::kUnbiased;
};

/// logits[t, e] = x[t] W[e]
/// Shapes     in [tokens, gate.cols], logits [tokens, E] device float32, in's rows strided; gate in
///            device memory, any format
struct RouterLogitsCuda {
  const float* in;
  int64_t in_stride;
  int64_t tokens;
  MatrixView gate;
  float* logits;
};

/// Precision  float32, in a fixed order that does not depend on the number of tokens
/// Errors     a cudaError_t as int; enqueues only
extern "C" int triax_cuda_router_logits(const RouterLogitsCuda* args, void* stream);

/// The same on Hopper's tensor cores: bf16 gates of up to 8192 columns, in multiples of 128, data
/// and rows of `in` 16-byte aligned. Errors     cudaErrorNotSupported: the plain form takes it
extern "C" int triax_cuda_router_logits_sm90(const RouterLogitsCuda* args, void* stream);

/// The logits by the fastest form that takes the gate: always the same one for one gate.
Status router_logits_cuda(CudaQueue& queue, const RouterLogitsCuda& args);

/// s = sigmoid(logits), top-k of s + bias (ties: the lower id), the contract of RouteArgs
/// Shapes     logits [tokens, experts] device float32; ids int32 and weights float32 [tokens,
///            count], rows strided
/// Edges      NaN counts as a key below all others
struct RouterSelectCuda {
  const float* logits;
  int64_t tokens;
  int64_t experts;  // <= kRouterExpertsMax
  RouterChoice choice;
  int64_t count;  // k, <= experts
  int32_t* ids;
  int64_t ids_stride;
  float* weights;
  int64_t weights_stride;
};

constexpr int64_t kRouterExpertsMax = 8192;

/// Errors     a cudaError_t as int (too many experts: cudaErrorNotSupported); enqueues only
extern "C" int triax_cuda_router_select(const RouterSelectCuda* args, void* stream);

}  // namespace triax::width
