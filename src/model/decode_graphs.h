// Decode steps on a GPU, captured once and replayed: no launch of a single kernel by the host.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <tuple>

#include "device/cuda/cuda_queue.h"
#include "tensor/tensor.h"

namespace triax::model {

struct Step;

/// Graphs of one model, pool and device, by the shape of the step: its number of sequences and the
/// room of their page tables. Everything else of a step is data that its kernels read.
/// Ownership  all three outlive it
class DecodeGraphs {
 public:
  /// True for steps of one token a sequence that want all logits and are neither timed nor
  /// observed.
  bool serves(const Step& step) const;

  /// Runs `stack` with the logits to write, [rows, vocabulary] in device memory: the first time of
  /// a shape as it is, the second time captured, from then on by replaying. Repetition `logits` and
  /// the workspace's scratch have the same addresses for the same shape
  Status run(const Step& step, TensorView logits, const std::function<Status(TensorView)>& stack);

 private:
  using Shape = std::tuple<size_t, size_t, int, bool>;  // sequences, table entries, options
  struct Entry {
    std::unique_ptr<CudaGraph> graph;
    void* logits = nullptr;
    bool warm = false;
  };
  static Shape shape_of(const Step& step);

  std::map<Shape, Entry> entries_;
};

}  // namespace triax::model
