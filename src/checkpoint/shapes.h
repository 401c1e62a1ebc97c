// The sizes of known models, for benchmarks and plans that need no checkpoint.
#pragma once

#include <string_view>

#include "base/status.h"
#include "checkpoint/config.h"

namespace triax::checkpoint {

struct ShapeOptions {
  int64_t layers = 0;  // 0: all; else the first ones, in the model's own pattern
  int64_t vocab = 0;   // 0: the model's own
};

/// "kimi-k3", "kimi-linear-48b", or "tiny" (the small model that ships, models/boot-k3).
/// Number types as published: K3's routed experts are MXFP4, everything else bf16.
/// Errors     kInvalidArgument for another name, or more layers than the model has
Result<ModelConfig> named_shape(std::string_view name, const ShapeOptions& options);

}  // namespace triax::checkpoint
