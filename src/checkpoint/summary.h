// The numbers of a model that follow from its config alone: parameters, bytes, state sizes.
#pragma once

#include <array>
#include <cstdint>
#include <map>

#include "checkpoint/config.h"
#include "checkpoint/tensor_specs.h"

namespace triax::checkpoint {

struct PartSummary {
  int64_t parameters = 0;
  int64_t active = 0;  // read for one token
  int64_t bytes = 0;   // as published
};

/// What `triax inspect` prints.
///   parameters  every weight of the text model, padding included (A_log), block scales not
///   active      those that one token multiplies with: all but the routed experts that it does not
///               visit and the embedding table, of which it reads one row. This is the count that
///               gives K3's published 104.2 billion
struct ModelSummary {
  std::array<PartSummary, kParts> parts;  // index = Part
  PartSummary total;
  std::map<ElementType, int64_t> bytes_by_type;  // as published

  int64_t kda_state_bytes = 0;         // float32, one sequence, all KDA layers
  int64_t conv_window_bytes = 0;       // float32, one sequence: the last taps - 1 inputs of q, k, v
  int64_t latent_bytes_per_token = 0;  // bf16, all MLA layers
  /// Tokens whose bf16 latents weigh as much as one KDA state; an fp8 latent doubles it.
  double checkpoint_cost_tokens = 0.0;
};

/// Bytes follow the vendors' number types: MXFP4 experts when the config has such a group, else
/// bf16; int8 dense matrices, the embedding excepted, when it has that group (quantize.h).
ModelSummary summarize(const ModelConfig& config);

}  // namespace triax::checkpoint
