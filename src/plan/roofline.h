// How long a step takes on one machine: each operation by the slower of memory and arithmetic, at
// rates of data sheets, at typical shares of them, or at shares that kernels were measured to
// reach.
#pragma once

#include <memory>
#include <vector>

#include "plan/calibration.h"
#include "plan/hardware.h"
#include "plan/operations.h"

namespace triax::plan {

/// Rates without measurements of kernels.
struct Shares {
  double bytes = 0.7;           // of the data sheet's bandwidth that kernels reach
  double flops = 0.5;           // of the data sheet's FLOPs
  double launch_s = 3e-6;       // of an operation of one layer, whatever it holds
  double collective_s = 15e-6;  // of one exchange between GPUs
};
constexpr Shares kIdeal = {1, 1, 0, 0};

enum class Limit { kMemory, kCompute, kLaunch, kLink };
std::string_view limit_name(Limit limit);

/// One operation in one step, all its layers.
struct OperationTime {
  const Operation* operation = nullptr;
  double flops = 0, bytes = 0;  // of this GPU, all layers
  double ideal_s = 0;           // by the data sheet
  double seconds = 0;           // the estimate
  Limit limit = Limit::kMemory;
  bool measured = false;  // by kernels of its kind
  double intensity() const { return bytes > 0 ? flops / bytes : 0; }
};

/// Costs of the steps of one model on one machine. Immutable; cheap to ask.
class StepModel {
 public:
  StepModel(checkpoint::ModelConfig config, const Formats& formats, const Sharding& sharding,
            Hardware hardware, const Shares& shares,
            std::shared_ptr<const Calibration> calibration = nullptr,
            Attention attention = Attention::kLatent);

  std::vector<OperationTime> times(const Load& load) const;
  /// Of all operations, one after the other.
  double seconds(const Load& load) const;
  double seconds(std::span<const StepPart> parts) const;
  /// A prompt of `tokens` after `context`, in steps of `chunk`; with pp stages the chunks follow
  /// one another through them: (chunks + pp - 1) / (chunks pp) of the sum.
  double prefill_seconds(double tokens, double context, double chunk) const;

  const checkpoint::ModelConfig& config() const { return config_; }
  const Hardware& hardware() const { return hardware_; }
  const Sharding& sharding() const { return sharding_; }
  const Formats& formats() const { return formats_; }
  const std::vector<Operation>& list() const { return operations_; }

 private:
  OperationTime time(const Operation& operation, const Load& load) const;

  checkpoint::ModelConfig config_;
  Formats formats_;
  Sharding sharding_;
  Hardware hardware_;
  Shares shares_;
  std::shared_ptr<const Calibration> calibration_;
  std::vector<Operation> operations_;
};

/// FLOPs a second of products with weights of that format: those of their own unit where there is
/// one (fp8, MXFP4 with fp8 activations on fp4 units is not assumed: MXFP4 and int8 unpack to
/// bf16).
double product_rate(const Hardware& hardware, Format weights);

}  // namespace triax::plan
