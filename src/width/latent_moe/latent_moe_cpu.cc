// latent_moe and gated_mlp from products, activations and sums; all experts hit go into one list.
#include <algorithm>
#include <cstring>
#include <memory>

#include "dense/norm/norm.h"
#include "dense/rows/rows.h"
#include "width/latent_moe/expert_groups.h"
#include "width/latent_moe/latent_moe_internal.h"
#include "width/situ/gated_linear.h"

namespace triax::width::internal {
namespace {

using dense::Product;

// A task of about this many elements outweighs the cost of handing it to a thread.
constexpr int64_t kTaskElements = 16384;

TensorView take_matrix(Workspace::Scope& scope, int64_t rows, int64_t cols) {
  return TensorView(scope.take<float>(rows * cols), {rows, cols});
}

// Products of one call of `linear`.
class ProductList {
 public:
  ProductList(Workspace::Scope& scope, int64_t capacity)
      : products_(scope.take<Product>(capacity)), capacity_(static_cast<size_t>(capacity)) {}

  void add(ConstTensorView in, const MatrixView& weight, TensorView out) {
    check(count_ < capacity_, "latent_moe: too many products");
    std::construct_at(products_ + count_++, Product{in, weight, out});
  }
  Status run(const Device& device, dense::Activations precision) {
    const Status status =
        dense::linear(device, std::span<const Product>(products_, count_), precision);
    count_ = 0;
    return status;
  }

 private:
  Product* products_;
  size_t capacity_;
  size_t count_ = 0;
};

/// One call: buffers, and the steps in their order.
class Layer {
 public:
  Layer(const Device& device, const LatentMoeArgs& args)
      : device_(device),
        args_(args),
        weights_(args.weights),
        scope_(*device.workspace),
        groups_(args.ids, args.weights.router.rows, scope_),
        products_(scope_, 2 * std::min(args.weights.router.rows, args.ids.elements()) + 3) {
    const int64_t tokens = args.in.size(0);
    const int64_t latent =
        weights_.latent_down.empty() ? args.in.size(1) : weights_.latent_down.rows;
    const int64_t hidden = weights_.experts.empty() ? 0 : weights_.experts.front().gate.rows;
    const bool plain = weights_.latent_down.empty();
    latent_ = plain ? TensorView() : take_matrix(scope_, tokens, latent);
    expert_in_ = plain ? args.in : ConstTensorView(latent_);
    sum_ = plain ? args.out : take_matrix(scope_, tokens, latent);
    rows_ = take_matrix(scope_, groups_.rows(), latent);
    gate_ = take_matrix(scope_, groups_.rows(), hidden);
    up_ = take_matrix(scope_, groups_.rows(), hidden);
    if (has_shared()) {
      shared_gate_ = take_matrix(scope_, tokens, weights_.shared.gate.rows);
      shared_up_ = take_matrix(scope_, tokens, weights_.shared.gate.rows);
      shared_out_ = take_matrix(scope_, tokens, args.in.size(1));
    }
  }

  Status run() {
    Status status = project_in();
    if (status.ok()) {
      gather();
      status = run_experts();
    }
    return status.ok() ? project_out() : status;
  }

 private:
  bool has_shared() const { return !empty(weights_.shared); }
  // Without a latent, shared and routed experts read the same input: their products go into one
  // list, if both take activations alike.
  bool joined() const {
    return has_shared() && weights_.latent_down.empty() && weights_.latent_up.empty() &&
           args_.dense_precision == args_.expert_precision;
  }
  void add_shared_halves() {
    products_.add(args_.in, weights_.shared.gate, shared_gate_);
    products_.add(args_.in, weights_.shared.up, shared_up_);
  }
  Status activate_shared() {
    return gated_activation(device_, args_.activation, shared_gate_, shared_up_, shared_gate_);
  }
  Status project_in();
  void gather();
  Status run_experts();
  void sum_experts();
  Status project_out();

  ConstTensorView rows_of(int64_t expert) const {
    const int64_t begin = groups_.begin(expert);
    const int64_t end = groups_.end(expert);
    if (groups_.consecutive(expert)) {
      return expert_in_.rows(groups_.token(begin), groups_.token(end - 1) + 1);
    }
    return rows_.rows(begin, end);
  }

  const Device& device_;
  const LatentMoeArgs& args_;
  const LatentMoeWeights& weights_;
  Workspace::Scope scope_;
  ExpertGroups groups_;
  ProductList products_;
  TensorView latent_;          // [T, L]: z, without latent products absent
  ConstTensorView expert_in_;  // [T, L]: z or the input itself
  TensorView sum_;             // [T, L]: u
  TensorView rows_;            // [T k, L]: the experts' inputs by group, later their outputs
  TensorView gate_, up_;       // [T k, F]
  TensorView shared_gate_, shared_up_, shared_out_;
};

Status Layer::project_in() {
  if (!weights_.latent_down.empty()) {
    products_.add(args_.in, weights_.latent_down, latent_);
  }
  if (joined()) {
    return {};
  }
  if (has_shared()) {
    add_shared_halves();
  }
  Status status = products_.run(device_, args_.dense_precision);
  return status.ok() && has_shared() ? activate_shared() : status;
}

void Layer::gather() {
  const auto bytes = static_cast<size_t>(rows_.size(1)) * sizeof(float);
  device_.threads->run_ranges(groups_.experts(), 8, [&](int64_t begin, int64_t end, int) {
    for (int64_t e = begin; e < end; ++e) {
      if (groups_.consecutive(e)) {
        continue;
      }
      for (int64_t row = groups_.begin(e); row < groups_.end(e); ++row) {
        std::memcpy(rows_.data<float>() + row * rows_.stride(0),
                    expert_in_.data<float>() + groups_.token(row) * expert_in_.stride(0), bytes);
      }
    }
  });
}

Status Layer::run_experts() {
  if (joined()) {
    add_shared_halves();
  }
  for (int64_t e = 0; e < groups_.experts(); ++e) {
    if (groups_.begin(e) < groups_.end(e)) {
      const MlpWeights& mlp = weights_.experts[static_cast<size_t>(e)];
      products_.add(rows_of(e), mlp.gate, gate_.rows(groups_.begin(e), groups_.end(e)));
      products_.add(rows_of(e), mlp.up, up_.rows(groups_.begin(e), groups_.end(e)));
    }
  }
  Status status = products_.run(device_, args_.expert_precision);
  if (status.ok()) {
    status = gated_activation(device_, args_.activation, gate_, up_, gate_);
  }
  if (status.ok() && joined()) {
    status = activate_shared();
    products_.add(shared_gate_, weights_.shared.down, shared_out_);
  }
  if (!status.ok()) {
    return status;
  }
  for (int64_t e = 0; e < groups_.experts(); ++e) {
    if (groups_.begin(e) < groups_.end(e)) {
      const MlpWeights& mlp = weights_.experts[static_cast<size_t>(e)];
      products_.add(gate_.rows(groups_.begin(e), groups_.end(e)), mlp.down,
                    rows_.rows(groups_.begin(e), groups_.end(e)));
    }
  }
  status = products_.run(device_, args_.expert_precision);
  if (status.ok()) {
    sum_experts();
  }
  return status;
}

// u[t] = sum_j p_j e_j, j ascending.
void Layer::sum_experts() {
  constexpr int64_t kColumns = 1024;
  const int64_t size = sum_.size(1);
  const int64_t chunks = (size + kColumns - 1) / kColumns;
  const int64_t routes = args_.ids.size(1);
  const auto add = [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = i / chunks;
      const int64_t first = i % chunks * kColumns;
      const int64_t count = std::min(kColumns, size - first);
      const float* p = args_.route_weights.data<float>() + t * args_.route_weights.stride(0);
      float* to = sum_.data<float>() + t * sum_.stride(0) + first;
      std::fill_n(to, count, 0.0f);
      for (int64_t j = 0; j < routes; ++j) {
        const float* from = rows_.data<float>() + groups_.row(t, j) * rows_.stride(0) + first;
        for (int64_t d = 0; d < count; ++d) {
          to[d] += p[j] * from[d];
        }
      }
    }
  };
  device_.threads->run_ranges(sum_.size(0) * chunks,
                              kTaskElements / (kColumns * std::max<int64_t>(routes, 1)), add);
}

Status Layer::project_out() {
  if (!weights_.latent_norm.empty()) {
    const Status status =
        dense::rms_norm(device_, {sum_, weights_.latent_norm, args_.norm_eps, sum_});
    if (!status.ok()) {
      return status;
    }
  }
  if (!weights_.latent_up.empty()) {
    products_.add(sum_, weights_.latent_up, args_.out);
  }
  if (has_shared() && !joined()) {
    products_.add(shared_gate_, weights_.shared.down, shared_out_);
  }
  const Status status = products_.run(device_, args_.dense_precision);
  return status.ok() && has_shared() ? dense::add_rows(device_, shared_out_, args_.out) : status;
}

}  // namespace

Status gated_mlp_parts(const Device& device, const MlpWeights& weights,
                       const Activation& activation, dense::Activations precision,
                       ConstTensorView in, TensorView out) {
  Workspace::Scope scope(*device.workspace);
  // Side by side, as their weights may lie: one product then.
  const int64_t hidden = weights.gate.rows;
  const TensorView both = take_matrix(scope, in.size(0), 2 * hidden);
  const TensorView gate = both.slice(1, 0, hidden);
  const TensorView up = both.slice(1, hidden, 2 * hidden);
  const Product halves[] = {{in, weights.gate, gate}, {in, weights.up, up}};
  const Status status = dense::linear(device, halves, precision);
  return status.ok() ? gated_linear(device, {.activation = activation,
                                             .gate = gate,
                                             .up = up,
                                             .down = weights.down,
                                             .precision = precision,
                                             .out = out})
                     : status;
}

Status latent_moe_cpu(const Device& device, const LatentMoeArgs& args) {
  return Layer(device, args).run();
}

}  // namespace triax::width::internal
