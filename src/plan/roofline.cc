#include "plan/roofline.h"

#include <algorithm>
#include <cmath>

namespace triax::plan {

std::string_view limit_name(Limit limit) {
  constexpr std::array<std::string_view, 4> kNames = {"memory", "compute", "launch", "link"};
  return kNames[static_cast<size_t>(limit)];
}

double product_rate(const Hardware& hardware, Format weights) {
  return weights == Format::kFp8 && hardware.fp8_flops.value > 0 ? hardware.fp8_flops.value
                                                                 : hardware.bf16_flops.value;
}

StepModel::StepModel(checkpoint::ModelConfig config, const Formats& formats,
                     const Sharding& sharding, Hardware hardware, const Shares& shares,
                     std::shared_ptr<const Calibration> calibration, Attention attention)
    : config_(std::move(config)),
      formats_(formats),
      sharding_(sharding),
      hardware_(std::move(hardware)),
      shares_(shares),
      calibration_(std::move(calibration)),
      operations_(operations(config_, formats_, sharding_, attention)) {}

OperationTime StepModel::time(const Operation& operation, const Load& load) const {
  const double flops = dot(operation.flops, load), bytes = dot(operation.bytes, load);
  OperationTime out;
  out.operation = &operation;
  out.flops = flops * operation.layers;
  out.bytes = bytes * operation.layers;
  if (operation.kernel == Kernel::kLink) {
    const bool inside = sharding_.stage_gpus() <= hardware_.node_gpus;
    const double rate = std::max(
        inside ? hardware_.peer_bytes_per_second.value : hardware_.network_bytes_per_second.value,
        1.0);
    out.ideal_s = operation.layers * bytes / rate;
    out.seconds = out.ideal_s / shares_.bytes + operation.layers * shares_.collective_s;
    out.limit = Limit::kLink;
    return out;
  }
  const double memory_s = bytes / hardware_.memory_bytes_per_second.value;
  const double compute_s = flops / product_rate(hardware_, operation.weights);
  const double ideal_s = std::max(memory_s, compute_s);
  out.ideal_s = operation.layers * ideal_s;
  out.limit = memory_s >= compute_s ? Limit::kMemory : Limit::kCompute;
  double seconds = 0;
  if (calibration_ != nullptr) {
    seconds = calibration_->seconds(operation.kernel, operation.weights, flops, bytes, ideal_s);
    out.measured = seconds > 0;
  }
  if (!out.measured) {
    const double work = std::max(memory_s / shares_.bytes, compute_s / shares_.flops);
    seconds = work + shares_.launch_s;
    out.limit = work < shares_.launch_s ? Limit::kLaunch : out.limit;
  }
  out.seconds = operation.layers * seconds;
  return out;
}

std::vector<OperationTime> StepModel::times(const Load& load) const {
  std::vector<OperationTime> out;
  for (const Operation& operation : operations_) {
    if (!operation.absent(load)) {
      out.push_back(time(operation, load));
    }
  }
  return out;
}

double StepModel::seconds(const Load& load) const {
  double sum = 0;
  for (const Operation& operation : operations_) {
    sum += operation.absent(load) ? 0.0 : time(operation, load).seconds;
  }
  return sum;
}

double StepModel::seconds(std::span<const StepPart> parts) const {
  return seconds(load_of(config_, parts));
}

double StepModel::prefill_seconds(double tokens, double context, double chunk) const {
  double sum = 0, done = 0, chunks = 0;
  while (done < tokens) {
    const double now = std::min(chunk, tokens - done);
    sum += seconds(prefill_load(config_, 1, now, context + done));
    done += now;
    ++chunks;
  }
  const auto pp = static_cast<double>(sharding_.pp);
  return chunks > 0 ? sum * (chunks + pp - 1) / (chunks * pp) : 0.0;
}

}  // namespace triax::plan
