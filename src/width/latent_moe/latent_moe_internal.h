// What the files of this folder share.
#pragma once

#include "width/latent_moe/latent_moe.h"

namespace triax::width::internal {

inline bool empty(const MlpWeights& mlp) {
  return mlp.gate.empty() && mlp.up.empty() && mlp.down.empty();
}

inline RouteArgs route_args(const LatentMoeArgs& args) {
  return {.in = args.in,
          .gate = args.weights.router,
          .bias = args.weights.router_bias,
          .renormalize = args.renormalize,
          .scaling_factor = args.scaling_factor,
          .weights_from = args.weights_from,
          .ids = args.ids,
          .weights = args.route_weights};
}

/// Arguments are checked; T > 0.
void gated_mlp_reference(ThreadPool& threads, const MlpWeights& weights,
                         const Activation& activation, ConstTensorView in, TensorView out);
/// By products and the activation, on any other device.
Status gated_mlp_parts(const Device& device, const MlpWeights& weights,
                       const Activation& activation, dense::Activations precision,
                       ConstTensorView in, TensorView out);

/// Arguments are checked and the routes taken; T > 0.
void latent_moe_reference(ThreadPool& threads, const LatentMoeArgs& args);
Status latent_moe_cpu(const Device& device, const LatentMoeArgs& args);
/// Arguments are checked; T > 0. Takes the routes itself.
Status latent_moe_cuda(const Device& device, const LatentMoeArgs& args);

}  // namespace triax::width::internal
