// What every layer of one forward pass shares. Internal to model.
#pragma once

#include <chrono>
#include <vector>

#include "dense/linear/norm_linear.h"
#include "dense/norm/norm.h"
#include "device/cuda/cuda_queue.h"
#include "model/model.h"

namespace triax::model {

/// A batch flattened to ragged arrays.
struct Step {
  const Device& device;
  const checkpoint::ModelConfig& config;
  const ForwardOptions& options;
  StatePool& pool;
  int64_t tokens = 0;                                 // T: of all sequences
  std::vector<int32_t> ids = {};                      // [T]
  std::vector<int64_t> rows = {};                     // whose logits are wanted
  std::vector<int64_t> cu_seqlens = {};               // [N + 1]
  std::vector<int64_t> starts = {};                   // [N]
  std::vector<int32_t> slots = {};                    // [N]
  std::vector<std::span<const int32_t>> tables = {};  // [N] latent pages
  std::vector<int32_t> flat_tables = {};              // the same [N, any], on a GPU only

  /// Runs one operation; its wall time is added to options.times under `name`. On a GPU timing
  /// waits for each operation.
  template <typename F>
  Status run(std::string_view name, F&& operation) const {
    if (options.times == nullptr) {
      return operation();
    }
    const auto begin = std::chrono::steady_clock::now();
    Status status = operation();
    if (status.ok() && device.cuda != nullptr) {
      status = device.cuda->synchronize();
    }
    options.times->add(
        name, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    return status;
  }

  /// Products with matrices that are not routed experts.
  Status linear(std::string_view name, std::span<const dense::Product> products) const {
    return run(name, [&] { return dense::linear(device, products, options.dense); });
  }
  Status linear(std::string_view name, const dense::Product& product) const {
    return linear(name, std::span(&product, 1));
  }

  Status norm(const dense::RmsNormArgs& args) const {
    return run("norm", [&] { return dense::rms_norm(device, args); });
  }

  /// The norm that a sublayer begins with, and products of its result. On a GPU they may be one.
  Status norm_linear(std::string_view name, const dense::NormInput& input,
                     std::span<const dense::Product> products) const {
    if (device.cuda != nullptr) {
      return run(name, [&] { return dense::norm_linear(device, input, products, options.dense); });
    }
    const Status status = norm({input.in, input.weight, input.eps, input.x});
    return status.ok() ? linear(name, products) : status;
  }

  /// `value` itself, or a copy of what lies on a GPU, which `copy` then holds.
  Result<ConstTensorView> on_host(ConstTensorView value, Tensor& copy) const {
    if (device.cuda == nullptr) {
      return value;
    }
    copy = Tensor(value.dtype(), value.shape());
    const Status status = device.cuda->read(copy.view().raw(), value.raw(), copy.bytes());
    return status.ok() ? Result<ConstTensorView>(copy.view()) : status;
  }

  /// Shows the observer a contiguous array.
  Status observe(int64_t layer, std::string_view name, ConstTensorView value) const {
    if (!options.observer) {
      return {};
    }
    Tensor copy;
    const Result<ConstTensorView> seen = on_host(value, copy);
    if (seen.ok()) {
      options.observer(layer, name, *seen);
    }
    return seen.status();
  }
};

/// A float32 [rows, cols] array in the workspace.
inline TensorView take(Workspace::Scope& scope, int64_t rows, int64_t cols) {
  return TensorView(scope.take<float>(rows * cols), {rows, cols});
}

/// out = attention(norm of the input) of one layer; out [T, D]. Writes input.sum and input.x.
Status kda_layer(const Step& step, int64_t layer, const KdaWeights& weights,
                 const dense::NormInput& input, TensorView out);
Status mla_layer(const Step& step, int64_t layer, const MlaWeights& weights,
                 const dense::NormInput& input, TensorView out);
/// out = FFN or mixture of experts of one layer, likewise.
Status ffn_layer(const Step& step, int64_t layer, const LayerWeights& weights,
                 const dense::NormInput& input, TensorView out);

}  // namespace triax::model
