// What every layer of one forward pass shares. Internal to model.
#pragma once

#include <chrono>
#include <vector>

#include "dense/norm/norm.h"
#include "model/model.h"

namespace triax::model {

/// A batch flattened to ragged arrays.
struct Step {
  const Device& device;
  const checkpoint::ModelConfig& config;
  const ForwardOptions& options;
  StatePool& pool;
  int64_t tokens = 0;                            // T: of all sequences
  std::vector<int64_t> cu_seqlens;               // [N + 1]
  std::vector<int64_t> starts;                   // [N]
  std::vector<int32_t> slots;                    // [N]
  std::vector<std::span<const int32_t>> tables;  // [N] latent pages

  /// Runs one operation; its wall time is added to options.times under `name`.
  template <typename F>
  Status run(std::string_view name, F&& operation) const {
    if (options.times == nullptr) {
      return operation();
    }
    const auto begin = std::chrono::steady_clock::now();
    Status status = operation();
    options.times->add(
        name, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    return status;
  }  /// Products with matrices that are not routed experts.
  Status linear(std::string_view name, std::span<const dense::Product> products) const {
    return run(name, [&] { return dense::linear(device, products, options.dense); });
  }
  Status linear(std::string_view name, const dense::Product& product) const {
    return linear(name, std::span(&product, 1));
  }

  Status norm(const dense::RmsNormArgs& args) const {
    return run("norm", [&] { return dense::rms_norm(device, args); });
  }

  void observe(int64_t layer, std::string_view name, ConstTensorView value) const {
    if (options.observer) {
      options.observer(layer, name, value);
    }
  }
};

/// A float32 [rows, cols] array in the workspace.
inline TensorView take(Workspace::Scope& scope, int64_t rows, int64_t cols) {
  return TensorView(scope.take<float>(rows * cols), {rows, cols});
}

/// out = attention(norm'd input x) of one layer; x, out [T, D].
Status kda_layer(const Step& step, int64_t layer, const KdaWeights& weights, ConstTensorView x,
                 TensorView out);
Status mla_layer(const Step& step, int64_t layer, const MlaWeights& weights, ConstTensorView x,
                 TensorView out);
/// out = FFN or mixture of experts of one layer; x, out [T, D].
Status ffn_layer(const Step& step, int64_t layer, const LayerWeights& weights, ConstTensorView x,
                 TensorView out);

}  // namespace triax::model
