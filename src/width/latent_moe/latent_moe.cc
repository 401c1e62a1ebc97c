// Checks and dispatch of latent_moe and gated_mlp.
#include "width/latent_moe/latent_moe.h"

#include <fmt/core.h>

#include "tensor/shape_check.h"
#include "width/latent_moe/latent_moe_internal.h"

namespace triax::width {
namespace {

bool fits(const MatrixView& m, int64_t rows, int64_t cols) {
  const bool blocked = m.format == MatrixFormat::kMxfp4 || m.format == MatrixFormat::kInt8;
  return m.rows == rows && m.cols == cols && (!m.empty() || rows * cols == 0) &&
         (!blocked || (cols % kScaleBlock == 0 && m.scales != nullptr));
}

void check_mlp(ShapeCheck& shapes, const char* gate, const char* up, const char* down,
               const MlpWeights& mlp, const char* hidden, const char* width) {
  shapes.matrix(gate, mlp.gate, hidden, width)
      .matrix(up, mlp.up, hidden, width)
      .matrix(down, mlp.down, width, hidden);
}

// Hundreds of experts are compared directly; only one that does not fit is described.
Status check_experts(const LatentMoeWeights& weights, int64_t latent) {
  if (static_cast<int64_t>(weights.experts.size()) != weights.router.rows) {
    return Status::invalid_argument(fmt::format("latent_moe: {} experts, expected E={}",
                                                weights.experts.size(), weights.router.rows));
  }
  const int64_t hidden = weights.experts.empty() ? 0 : weights.experts.front().gate.rows;
  for (size_t e = 0; e < weights.experts.size(); ++e) {
    const MlpWeights& mlp = weights.experts[e];
    if (!fits(mlp.gate, hidden, latent) || !fits(mlp.up, hidden, latent) ||
        !fits(mlp.down, latent, hidden)) {
      const std::string name = fmt::format("latent_moe: expert {}", e);
      ShapeCheck shapes(name);
      shapes.bind("F", hidden).bind("L", latent);
      check_mlp(shapes, "gate", "up", "down", mlp, "F", "L");
      return shapes.status();
    }
  }
  return {};
}

Status check_arguments(const LatentMoeArgs& args) {
  const LatentMoeWeights& w = args.weights;
  ShapeCheck shapes("latent_moe");
  shapes.f32("in", args.in, {"T", "D"})
      .f32("out", args.out, {"T", "D"})
      .typed("ids", args.ids, DType::kI32, {"T", "k"})
      .f32("route_weights", args.route_weights, {"T", "k"})
      .matrix("router", w.router, "E", "D")
      .f32("router_bias", w.router_bias, {"E"})
      .require(w.latent_down.empty() == w.latent_up.empty(),
               "only one of latent_down and latent_up is given")
      .require(w.latent_norm.empty() || !w.latent_down.empty(),
               "latent_norm is given without latent_down");
  if (!w.latent_down.empty()) {
    shapes.matrix("latent_down", w.latent_down, "L", "D")
        .matrix("latent_up", w.latent_up, "D", "L");
  }
  if (!w.latent_norm.empty()) {
    shapes.f32("latent_norm", w.latent_norm, {"L"});
  }
  if (!internal::empty(w.shared)) {
    check_mlp(shapes, "shared.gate", "shared.up", "shared.down", w.shared, "S", "D");
  }
  if (shapes.ok() && shapes["k"] > shapes["E"]) {
    shapes.require(false, fmt::format("k is {}, expected at most E={}", shapes["k"], shapes["E"]));
  }
  if (!shapes.ok()) {
    return shapes.status();
  }
  return check_experts(w, w.latent_down.empty() ? shapes["D"] : shapes["L"]);
}

}  // namespace

Status gated_mlp(const Device& device, const MlpWeights& weights, const Activation& activation,
                 dense::Activations precision, ConstTensorView in, TensorView out) {
  ShapeCheck shapes("gated_mlp");
  shapes.f32("in", in, {"T", "D"}).f32("out", out, {"T", "D"});
  check_mlp(shapes, "gate", "up", "down", weights, "F", "D");
  if (!shapes.ok() || shapes["T"] == 0) {
    return shapes.status();
  }
  if (device.backend == Backend::kReference) {
    internal::gated_mlp_reference(*device.threads, weights, activation, in, out);
    return {};
  }
  return internal::gated_mlp_parts(device, weights, activation, precision, in, out);
}

Status latent_moe(const Device& device, const LatentMoeArgs& args) {
  Status status = check_arguments(args);
  if (!status.ok()) {
    return status;
  }
  if (args.in.size(0) == 0) {
    return status;
  }
  if (device.backend == Backend::kCuda) {
    return internal::latent_moe_cuda(device, args);
  }
  status = route(device, internal::route_args(args));
  if (!status.ok()) {
    return status;
  }
  if (device.backend == Backend::kReference) {
    internal::latent_moe_reference(*device.threads, args);
    return {};
  }
  return internal::latent_moe_cpu(device, args);
}

}  // namespace triax::width
