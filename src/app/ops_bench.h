// Single operations of a shape on random data, timed or, for a comparison, run once.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "app/bench.h"
#include "base/rng.h"
#include "device/device.h"

namespace triax::app {

/// What one call reads and writes at least, and computes.
struct Work {
  double bytes = 0.0;
  double flops = 0.0;
};

/// Operations of one shape on one device. The same calls in the same order see the same data on
/// every device.
class OpsBench {
 public:
  OpsBench(const BenchFlags& flags, const checkpoint::ModelConfig& config, const Device& device,
           const MachinePeaks& peaks)
      : flags_(flags), config_(config), device_(device), peaks_(peaks) {}

  /// From now on each operation runs once, untimed, and its result is kept here.
  void keep_results(std::vector<std::vector<float>>* results) { results_ = results; }

  /// T tokens, all at once.
  Status linear(int64_t tokens);
  Status norm(int64_t tokens);
  Status attn_res(int64_t tokens);
  Status latent_moe(int64_t tokens, const model::ModelWeights& weights);
  /// `sequences` sequences of `tokens` new tokens each.
  Status kda(int64_t tokens, int64_t sequences);
  Status mla(int64_t tokens, int64_t sequences, int64_t context);

 private:
  Status run(const std::string& name, const Work& work, TensorView out,
             const std::function<Status()>& operation);
  Status keep(TensorView out);
  Result<double> seconds_of(const std::function<Status()>& operation);
  void print(const std::string& name, const Work& work, const Samples& samples, size_t count) const;

  /// In the device's memory.
  Tensor random(std::initializer_list<int64_t> shape, double mean = 0.0);
  Tensor zeros(DType dtype, std::initializer_list<int64_t> shape);
  Tensor on_device(Tensor host);
  /// A random matrix of the format, [rows, cols]; `memory` holds it.
  Result<MatrixView> matrix(const std::string& format, int64_t rows, int64_t cols,
                            std::vector<Tensor>& memory);
  Result<dense::Activations> activations(bool experts) const;

  const BenchFlags& flags_;
  const checkpoint::ModelConfig& config_;
  const Device& device_;
  MachinePeaks peaks_;
  Rng rng_{1};
  std::vector<std::vector<float>>* results_ = nullptr;
  Tensor flush_;  // on a GPU: read before each sample, so that nothing lies in its cache
};

}  // namespace triax::app
