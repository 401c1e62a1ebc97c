// The width axis of a layer: a dense gated MLP or a mixture of experts (spec 2.5).
#include "model/step.h"

namespace triax::model {
namespace {

width::Activation activation_of(const checkpoint::ActivationConfig& config) {
  using Kind = width::Activation::Kind;
  return {.kind = config.kind == checkpoint::ActivationKind::kSitu ? Kind::kSitu : Kind::kSilu,
          .beta = config.beta,
          .linear_beta = config.linear_beta};
}

}  // namespace

Status ffn_layer(const Step& step, int64_t layer, const LayerWeights& weights, ConstTensorView x,
                 TensorView out) {
  const checkpoint::ModelConfig& config = step.config;
  const width::Activation activation = activation_of(config.activation);
  if (weights.dense) {
    return step.run("dense mlp", [&] {
      return width::gated_mlp(step.device, weights.mlp, activation, step.options.dense, x, out);
    });
  }
  Workspace::Scope scope(*step.device.workspace);
  const int64_t top_k = config.moe.top_k;
  const TensorView ids(scope.take<int32_t>(step.tokens * top_k), {step.tokens, top_k});
  const TensorView route_weights = take(scope, step.tokens, top_k);
  const width::LatentMoeArgs args{.weights = weights.moe.view(),
                                  .activation = activation,
                                  .norm_eps = config.norm_eps,
                                  .renormalize = config.moe.renormalize,
                                  .scaling_factor = config.moe.scaling,
                                  .weights_from = step.options.route_weights,
                                  .expert_precision = step.options.experts,
                                  .dense_precision = step.options.dense,
                                  .in = x,
                                  .out = out,
                                  .ids = ids,
                                  .route_weights = route_weights};
  if (Status s = step.run("latent_moe", [&] { return width::latent_moe(step.device, args); });
      !s.ok()) {
    return s;
  }
  if (Status s = step.observe(layer, "expert_ids", ids); !s.ok()) {
    return s;
  }
  return step.observe(layer, "expert_weights", route_weights);
}

}  // namespace triax::model
