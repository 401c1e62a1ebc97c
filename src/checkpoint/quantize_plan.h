// What becomes of each tensor of a checkpoint, and the config that describes it. Private to this
// module: writes nothing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/quantize.h"
#include "checkpoint/writer.h"

namespace triax::checkpoint {

enum class Treatment { kCopy, kMxfp4, kInt8 };

/// One tensor of the input.
struct QuantizeItem {
  const TensorEntry* entry = nullptr;
  Treatment treatment = Treatment::kCopy;
  MatrixView matrix;  // what is to be quantised; empty: kCopy
  /// What the output holds of it: the tensor; or packed values, then scales.
  std::vector<TensorPlan> outputs;
};

/// One output file and the items that fill it.
struct QuantizeShard {
  Shard shard;
  std::vector<QuantizeItem> items;
};

/// Every tensor of the files, those that the text model does not use included, in the files' order.
/// A function of the input and the options alone.
std::vector<QuantizeShard> plan_quantization(const Checkpoint& checkpoint,
                                             const QuantizeOptions& options);

}  // namespace triax::checkpoint
