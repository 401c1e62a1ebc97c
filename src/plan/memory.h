// What fits: weights, states, latents, drafts and workspace of one GPU; tokens and resumable
// sessions of each tier.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "plan/explain.h"
#include "plan/hardware.h"
#include "plan/weights.h"

namespace triax::plan {

/// Bytes of one sequence, all GPUs together, each byte once.
struct SequenceBytes {
  double state = 0;              // KDA's recurrent states
  double windows = 0;            // the last taps - 1 inputs of q, k, v
  double latents_per_token = 0;  // MLA
  double checkpoint() const { return state + windows; }
  /// Tokens whose latents weigh as much as one state (the seeds' "31 thousand tokens").
  double checkpoint_tokens() const { return state / latents_per_token; }
};
/// The windows are float32, as Triax keeps them.
SequenceBytes sequence_bytes(const checkpoint::ModelConfig& config, const Formats& formats);

/// A draft model beside the target, replicated weights aside cut like it.
struct Draft {
  double weights_bytes = 0;
  double latents_per_token = 0;  // bytes of its own cache, all layers
  double records_per_sequence =
      0;  // inputs of KDA for each draft token, to roll back without copies
};
/// "none", or "dspark": the published draft of K3: 5 MLA layers, 3.56 B parameters in bf16, blocks
/// of 7.
/// Errors     kInvalidArgument for another name, or dspark for a model without KDA layers
Result<Draft> named_draft(std::string_view name, const checkpoint::ModelConfig& config,
                          const Formats& formats);

struct MemoryOptions {
  double concurrency = 16;    // sequences that run, all dp together
  double context = 131072;    // tokens of one session
  double chunk = 8192;        // tokens of a prefill step, for the workspace
  double usable_share = 0.9;  // of the memory: the rest is the driver's, graphs, fragments
  double extra_bytes = 0;     // of each GPU for whatever else is there
  std::optional<double> workspace_bytes = {};  // instead of the estimate
  double ram_bytes = -1;                       // of one node; < 0: the hardware's
  double ssd_bytes = 0;
  Draft draft = {};
};

/// One GPU of the pipeline stage that has the least room for tokens.
struct GpuMemory {
  int64_t stage = 0;
  double total = 0, usable = 0;
  PartBytes weights{};
  double draft = 0, workspace = 0, extra = 0;
  double running_states = 0;     // states and windows of the sequences that run, draft records
  double room = 0;               // for latents and checkpoints; negative: so much is short
  double latents_per_token = 0;  // of this GPU, the draft's among them
  double state = 0;              // of one checkpoint, this GPU's part
  double weights_total() const { return sum(weights); }
};

/// What a tier holds: tokens if it held nothing but latents, sessions if each has one checkpoint
/// and `context` tokens.
struct TierCapacity {
  const char* name = "";
  double bytes = 0;  // all GPUs or nodes together
  double tokens = 0;
  double sessions = 0;
};

struct MemoryPlan {
  GpuMemory gpu;
  SequenceBytes sequence;
  double weights_total = 0;  // each byte once
  bool fits = false;
  double short_bytes = 0;   // of one GPU, when it does not fit
  int64_t gpus_needed = 0;  // least power of two that would hold it, cut the same way; 0: none
  std::vector<TierCapacity> tiers;
  double equal_pages_tokens = 0;  // see equal_page_tokens; 0: not that kind of model or no room
  Explanations explanations;
};

/// Errors     kInvalidArgument names the option: negative, not finite
Result<MemoryPlan> plan_memory(const checkpoint::ModelConfig& config, const Formats& formats,
                               const Sharding& sharding, const Hardware& hardware,
                               const MemoryOptions& options);

/// Bytes that one chunk's activations need on one GPU: an estimate, not a measurement.
double workspace_bytes(const checkpoint::ModelConfig& config, const Sharding& sharding,
                       double chunk);

/// Cache of one GPU in an engine whose pages have equal bytes for all kinds of layers (vLLM's
/// hybrid manager).
struct EqualPages {
  double block_tokens = 0;  // tokens of a page: a multiple of 128 that is no smaller than a state
  double page_bytes = 0;    // of one layer
  double blocks = 0;        // that fit
  double blocks_per_request = 0;  // of a request of the longest context
  double tokens = 0;  // that such an engine reports: blocks / blocks_per_request contexts
};
/// Windows are bf16 there; two state blocks are held by each group of KDA layers.
EqualPages equal_page_tokens(const checkpoint::ModelConfig& config, const Formats& formats,
                             const Sharding& sharding, double room_bytes);

}  // namespace triax::plan
