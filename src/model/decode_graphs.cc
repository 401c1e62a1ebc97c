#include "model/decode_graphs.h"

#include "model/step.h"

namespace triax::model {
namespace {

/// Stages what differs from step to step, in an order that never changes.
Status stage(const Step& step) {
  CudaQueue& queue = *step.device.cuda;
  const auto stage = [&](auto span) { return queue.stage(span).status(); };
  Status status = stage(std::span<const int32_t>(step.ids));
  status = status.ok() ? stage(std::span<const int64_t>(step.cu_seqlens)) : status;
  status = status.ok() ? stage(std::span<const int64_t>(step.starts)) : status;
  status = status.ok() ? stage(std::span<const int32_t>(step.slots)) : status;
  status = status.ok() ? stage(std::span<const int32_t>(step.flat_tables)) : status;
  return status.ok() ? stage(std::span<const int64_t>(step.rows)) : status;
}

}  // namespace

DecodeGraphs::Shape DecodeGraphs::shape_of(const Step& step) {
  const ForwardOptions& options = step.options;
  const int ways = static_cast<int>(options.route_weights) +
                   16 * static_cast<int>(options.experts) + 256 * static_cast<int>(options.dense);
  return {step.slots.size(), step.flat_tables.size(), ways,
          step.tokens <= options.two_phase_tokens_max};
}

bool DecodeGraphs::serves(const Step& step) const {
  const size_t sequences = step.slots.size();
  return sequences > 0 && step.ids.size() == sequences && step.rows.size() == sequences &&
         step.cu_seqlens[sequences] == static_cast<int64_t>(sequences) &&
         step.options.times == nullptr && !step.options.observer;
}

Status DecodeGraphs::run(const Step& step, TensorView logits,
                         const std::function<Status(TensorView)>& stack) {
  constexpr size_t kGraphsMax = 32;  // each holds some megabytes
  CudaQueue& queue = *step.device.cuda;
  if (entries_.size() > kGraphsMax) {
    entries_.clear();
  }
  Entry& entry = entries_[shape_of(step)];
  if (!entry.warm || (entry.graph != nullptr && entry.logits != logits.raw())) {
    entry = {};
    entry.warm = true;
    const Status status = queue.begin_step();
    return status.ok() ? stack(logits) : status;
  }
  if (entry.graph == nullptr) {
    if (Status s = queue.begin_capture(); !s.ok()) {
      return s;
    }
    Status status = stage(step);
    status = status.ok() ? stack(logits) : status;
    if (!status.ok()) {
      queue.abandon_capture();
      return status;
    }
    Result<std::unique_ptr<CudaGraph>> captured = queue.end_capture();
    if (!captured.ok()) {
      return captured.status();
    }
    entry.graph = std::move(*captured);
    entry.logits = logits.raw();
  }
  Status status = queue.begin_replay(*entry.graph);
  status = status.ok() ? stage(step) : status;
  return status.ok() ? queue.replay(*entry.graph) : status;
}

}  // namespace triax::model
