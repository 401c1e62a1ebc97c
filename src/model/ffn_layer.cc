// The width axis of a layer: a dense gated MLP or a mixture of experts (spec 2.5).
#include "model/step.h"
#include "width/situ/gated_linear.h"

namespace triax::model {
namespace {

width::Activation activation_of(const checkpoint::ActivationConfig& config) {
  using Kind = width::Activation::Kind;
  return {.kind = config.kind == checkpoint::ActivationKind::kSitu ? Kind::kSitu : Kind::kSilu,
          .beta = config.beta,
          .linear_beta = config.linear_beta};
}

/// The two halves of a gated hidden layer, side by side as their weights may lie.
struct Hidden {
  TensorView gate, up;  // [T, F]
};

/// Norm and hidden layer of a gated MLP; empty without weights: the norm alone. `beside`: another
/// product of the same input, if its matrix is not empty.
Result<Hidden> make_hidden(const Step& step, std::string_view name, const width::MlpWeights& mlp,
                           const dense::NormInput& input, const dense::Product& beside,
                           Workspace::Scope& scope) {
  const int64_t width = mlp.gate.rows;
  const TensorView both = take(scope, step.tokens, 2 * width);
  const Hidden hidden = {both.slice(1, 0, width), both.slice(1, width, 2 * width)};
  std::vector<dense::Product> products;
  if (!mlp.gate.empty()) {
    products = {{input.x, mlp.gate, hidden.gate}, {input.x, mlp.up, hidden.up}};
  }
  if (!beside.weight.empty()) {
    products.push_back(beside);
  }
  if (Status s = step.norm_linear(name, input, products); !s.ok()) {
    return s;
  }
  return hidden;
}

Status dense_mlp(const Step& step, const width::MlpWeights& mlp, const dense::NormInput& input,
                 TensorView out) {
  Workspace::Scope scope(*step.device.workspace);
  const Result<Hidden> hidden = make_hidden(step, "dense mlp", mlp, input, {}, scope);
  if (!hidden.ok()) {
    return hidden.status();
  }
  return step.run("dense mlp", [&] {
    return width::gated_linear(step.device, {.activation = activation_of(step.config.activation),
                                             .gate = hidden->gate,
                                             .up = hidden->up,
                                             .down = mlp.down,
                                             .precision = step.options.dense,
                                             .out = out});
  });
}

}  // namespace

Status ffn_layer(const Step& step, int64_t layer, const LayerWeights& weights,
                 const dense::NormInput& input, TensorView out) {
  const checkpoint::ModelConfig& config = step.config;
  if (weights.dense) {
    return dense_mlp(step, weights.mlp, input, out);
  }
  Workspace::Scope scope(*step.device.workspace);
  // On a CPU the shared expert's products run beside those of the others. With few tokens on a GPU
  // the router's logits cost nothing beside them.
  const bool apart = step.device.cuda != nullptr;
  dense::Product router;
  if (apart && step.tokens <= dense::kDecodeRowsMax &&
      step.options.dense == dense::Activations::kBf16 &&
      step.options.experts == dense::Activations::kBf16) {
    const MatrixView& weight = weights.moe.router;
    router = {input.x, weight, take(scope, step.tokens, weight.rows)};
  }
  const Result<Hidden> shared =
      make_hidden(step, "shared expert", apart ? weights.moe.shared : width::MlpWeights(), input,
                  router, scope);
  if (!shared.ok()) {
    return shared.status();
  }
  const int64_t top_k = config.moe.top_k;
  const TensorView ids(scope.take<int32_t>(step.tokens * top_k), {step.tokens, top_k});
  const TensorView route_weights = take(scope, step.tokens, top_k);
  const width::LatentMoeArgs args{.weights = weights.moe.view(),
                                  .activation = activation_of(config.activation),
                                  .norm_eps = config.norm_eps,
                                  .renormalize = config.moe.renormalize,
                                  .scaling_factor = config.moe.scaling,
                                  .weights_from = step.options.route_weights,
                                  .expert_precision = step.options.experts,
                                  .dense_precision = step.options.dense,
                                  .in = input.x,
                                  .shared_gate = shared->gate,
                                  .shared_up = shared->up,
                                  .router_logits = router.out,
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
