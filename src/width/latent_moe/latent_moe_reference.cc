// latent_moe and gated_mlp in double, token by token: the truth. Activations are never rounded.
#include <cmath>
#include <vector>

#include "tensor/dot.h"
#include "width/latent_moe/latent_moe_internal.h"
#include "width/situ/situ_kernels.h"

namespace triax::width::internal {
namespace {

using Vector = std::vector<double>;

// W x
Vector multiply(const MatrixView& w, const Vector& x) {
  Vector y(static_cast<size_t>(w.rows), 0.0);
  std::vector<float> row(x.size());
  for (size_t r = 0; r < y.size(); ++r) {
    dequantize_row(w, static_cast<int64_t>(r), row.data());
    y[r] = dot_in_double(row.data(), x.data(), w.cols);
  }
  return y;
}

// w2( act(w1 x, w3 x) )
Vector mlp(const MlpWeights& weights, const Activation& activation, const Vector& x) {
  Vector hidden = multiply(weights.gate, x);
  const Vector up = multiply(weights.up, x);
  for (size_t f = 0; f < hidden.size(); ++f) {
    hidden[f] = activate_reference(activation, hidden[f], up[f]);
  }
  return multiply(weights.down, hidden);
}

void normalise(ConstTensorView weight, double eps, Vector& u) {
  double sum = 0.0;
  for (const double x : u) {
    sum += x * x;
  }
  const double norm = std::sqrt(sum / static_cast<double>(u.size()) + eps);
  for (size_t d = 0; d < u.size(); ++d) {
    u[d] = u[d] / norm * static_cast<double>(weight.data<float>()[d]);
  }
}

Vector row_of(ConstTensorView in, int64_t t) {
  const float* row = in.data<float>() + t * in.stride(0);
  return {row, row + in.size(1)};
}

void store(const Vector& y, TensorView out, int64_t t) {
  for (size_t d = 0; d < y.size(); ++d) {
    out.data<float>()[t * out.stride(0) + static_cast<int64_t>(d)] = static_cast<float>(y[d]);
  }
}

Vector token_output(const LatentMoeArgs& args, int64_t t) {
  const LatentMoeWeights& w = args.weights;
  const int32_t* ids = args.ids.data<int32_t>() + t * args.ids.stride(0);
  const float* p = args.route_weights.data<float>() + t * args.route_weights.stride(0);
  const Vector x = row_of(args.in, t);
  // K3 report, Eq. 11: z = W_down x;  u = sum_j p_j E_j(z);  y = W_up norm(u) + E_shared(x)
  const Vector z = w.latent_down.empty() ? x : multiply(w.latent_down, x);
  Vector u(z.size(), 0.0);
  for (int64_t j = 0; j < args.ids.size(1); ++j) {
    const Vector e = mlp(w.experts[static_cast<size_t>(ids[j])], args.activation, z);
    for (size_t d = 0; d < u.size(); ++d) {
      u[d] += static_cast<double>(p[j]) * e[d];
    }
  }
  if (!w.latent_norm.empty()) {
    normalise(w.latent_norm, static_cast<double>(args.norm_eps), u);
  }
  Vector y = w.latent_up.empty() ? u : multiply(w.latent_up, u);
  if (!empty(w.shared)) {
    const Vector shared = mlp(w.shared, args.activation, x);
    for (size_t d = 0; d < y.size(); ++d) {
      y[d] += shared[d];
    }
  }
  return y;
}

}  // namespace

void gated_mlp_reference(ThreadPool& threads, const MlpWeights& weights,
                         const Activation& activation, ConstTensorView in, TensorView out) {
  threads.run(in.size(0),
              [&](int64_t t, int) { store(mlp(weights, activation, row_of(in, t)), out, t); });
}

void latent_moe_reference(ThreadPool& threads, const LatentMoeArgs& args) {
  threads.run(args.in.size(0), [&](int64_t t, int) { store(token_output(args, t), args.out, t); });
}

}  // namespace triax::width::internal
