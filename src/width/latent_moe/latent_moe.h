// Mixture of experts in a latent width (Stable LatentMoE), and the plain one.
#pragma once

#include <span>

#include "base/status.h"
#include "dense/linear/linear.h"
#include "device/device.h"
#include "tensor/matrix.h"
#include "tensor/tensor.h"
#include "width/router/router.h"
#include "width/situ/situ.h"

namespace triax::width {

/// One gated MLP: w2( act(w1 x, w3 x) ).
struct MlpWeights {
  MatrixView gate;  // w1 [F, D]
  MatrixView up;    // w3 [F, D]
  MatrixView down;  // w2 [D, F]
};

/// out = mlp(in). Shapes in, out [T, D] float32, rows strided; distinct.
Status gated_mlp(const Device& device, const MlpWeights& weights, const Activation& activation,
                 dense::Activations precision, ConstTensorView in, TensorView out);

/// The experts' addresses as arrays in device memory, so that a GPU's step need not send them.
/// Each [E]; scales null for plain formats.
struct ExpertTable {
  const void* const* data = nullptr;
  const void* const* scales = nullptr;
};
struct ExpertTables {
  ExpertTable gate, up, down;
  /// Scratch of the fast decode kernel, zeroed once, shared by layers that run one after another;
  /// null: taken and zeroed in each call.
  void* decode_scratch = nullptr;
  int64_t decode_scratch_bytes = 0;
};

/// Bytes that decode_scratch needs for any number of tokens that the kernel takes; 0: it takes
/// none.
int64_t moe_decode_scratch_bytes(CudaQueue& queue, int64_t routes, int64_t width, int64_t hidden);

/// All that one MoE layer owns. For the plain MoE (Kimi Linear) down, up and norm are empty and the
/// latent width L is D.
struct LatentMoeWeights {
  MatrixView router;                    // [E, D]
  ConstTensorView router_bias;          // [E]
  std::span<const MlpWeights> experts;  // [E], each over width L
  MatrixView latent_down;               // [L, D] or empty
  MatrixView latent_up;                 // [D, L] or empty
  ConstTensorView latent_norm;          // [L] or empty: norm of the complete sum, before latent_up
  MlpWeights shared;                    // over width D, unweighted; empty: none
  ExpertTables tables;                  // of `experts`; empty: made in each call on a GPU
};

struct LatentMoeArgs {
  LatentMoeWeights weights;
  Activation activation;
  float norm_eps = 1e-5f;
  bool renormalize = true;
  float scaling_factor = 1.0f;
  RouteWeights weights_from = RouteWeights::kUnbiased;
  dense::Activations expert_precision = dense::Activations::kF32;  // routed experts' inputs
  dense::Activations dense_precision = dense::Activations::kF32;   // latent and shared products
  ConstTensorView in;                                              // [T, D] float32, rows strided
  ConstTensorView shared_gate = {}, shared_up = {};                // see below; empty: made here
  ConstTensorView router_logits = {};                              // likewise, dense
  TensorView out;                                                  // [T, D]; distinct from in
  TensorView ids;                                                  // [T, k] int32: the routes taken
  TensorView route_weights;                                        // [T, k] float32
};

/// z = latent_down x;  u = sum_j p_j w2_j(act(w1_j z, w3_j z));
/// out = latent_up( rms_norm(u) ) + shared(x)
/// A GPU takes from the caller, who made them beside other products of `in`: shared_gate and
/// shared_up [T, S], the shared expert's hidden layer; router_logits [T, E] (used with few tokens).
/// Tokens are grouped by expert: each expert's weights are read once a call. The sum over experts
/// runs in the order of ids, so it does not depend on the grouping.
/// Errors     kInvalidArgument for shape or type; nothing is written to `out` then. A GPU wants one
///            format for all experts' matrices of a kind
/// Source     spec 2.5, K3 report Eq. 11; truth: latent_moe_reference.cc
Status latent_moe(const Device& device, const LatentMoeArgs& args);

}  // namespace triax::width
