// What a step computes and moves, operation by operation: FLOPs and bytes as linear functions of a
// few quantities of the step. Pure counting; times are in roofline.h.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/config.h"
#include "plan/explain.h"
#include "plan/sharding.h"

namespace triax::plan {

/// What one sequence adds to a step.
struct StepPart {
  int64_t tokens = 0;
  int64_t context = 0;  // tokens before them
  bool prefill = false;
};

/// The quantities of a step that FLOPs and bytes are linear in.
enum class Per {
  kStep,           // once, whatever the step holds (weights)
  kDecodeStep,     // once if the step decodes
  kToken,          // new tokens
  kPrefillToken,   // of them, in prompts
  kDecodeToken,    // of them, one a sequence
  kSequence,       // sequences: states read and written
  kLogits,         // rows of logits: one a sequence
  kPairExpanded,   // (new token, token it sees), attention with expanded keys and values
  kPairAbsorbed,   // the same, attention over latents
  kExpandedToken,  // tokens whose latents become keys and values: context and new ones
  kLatent,         // tokens of cache that absorbed attention reads
  kVisited,        // experts of a layer that some token visits
};
constexpr size_t kPers = 12;
using Load = std::array<double, kPers>;
using Terms = std::array<double, kPers>;

/// Tokens visit experts as if at random: visited = E (1 - (1 - k / E)^tokens).
double visited_experts(const checkpoint::ModelConfig& config, double tokens);
/// A prompt's attention is expanded, a decode step's absorbed.
Load load_of(const checkpoint::ModelConfig& config, std::span<const StepPart> parts);
/// `sequences` sequences that each decode one token after `context` tokens.
Load decode_load(const checkpoint::ModelConfig& config, double sequences, double context);
/// `tokens` tokens of each of `sequences` prompts after `context` tokens.
Load prefill_load(const checkpoint::ModelConfig& config, double sequences, double tokens,
                  double context);

/// Which measured kernels an operation's time is read off.
enum class Kernel {
  kLinear,
  kKdaDecode,
  kKdaPrefill,
  kMlaDecode,
  kMlaPrefill,
  kExperts,
  kRouter,
  kAttnRes,
  kElementwise,  // norms, sums, convolution
  kSample,
  kLink,  // between GPUs
};
constexpr size_t kKernels = 11;
std::string_view kernel_name(Kernel kernel);

/// One operation of all its layers, on one GPU.
struct Operation {
  const char* name = "";
  Kernel kernel = Kernel::kLinear;
  Format weights = Format::kBf16;  // of what it multiplies with
  double layers = 0;               // that have it; costs below are of one
  Terms flops{};
  Terms bytes{};  // memory; of kLink: over the link
  bool absent(const Load& load) const;
};
double dot(const Terms& terms, const Load& load);

/// What the layers that are not KDA cache.
///   kLatent   MLA's latents
///   kGrouped  keys and values of fewer heads (GQA), for baselines: MlaConfig's kv_lora counts both
enum class Attention { kLatent, kGrouped };

/// All operations of a step, in the order of the network, on one GPU of a stage that the work is
/// spread over evenly; the layers of all stages. Residual stream in float32, other activations
/// bf16.
std::vector<Operation> operations(const checkpoint::ModelConfig& config, const Formats& formats,
                                  const Sharding& sharding,
                                  Attention attention = Attention::kLatent);

/// The formulas of one head, chunk, pair, token, with this model's numbers.
Explanations explain_operations(const checkpoint::ModelConfig& config, const Formats& formats);

// --- The formulas of the seeds, one by one. ---

/// KDA over a chunk of C tokens of one head: 12 C^3 + 8 C^2 D + 6 C D^2 FLOPs.
/// Source     seeds, FlashKDA: six products C x C x C of the inverse, four C x C x D, three C x D x
/// D
double kda_chunk_flops(double chunk, double dim);
/// The same over two kernels with a workspace between: 8 C^2 + 22 C D bytes.
/// Source     seeds, FlashKDA: K1 reads q, k, g; six tensors go through memory; K2 reads v, writes
/// o
double kda_chunk_bytes(double chunk, double dim);
/// In one kernel: q, k, v, g in, o out in bf16, and beta: 10 D + 2 bytes a token and head.
double kda_fused_bytes(double dim);
/// One token of one head: 7 D^2 FLOPs; the state read and written: 2 x bytes x D^2.
double kda_decode_flops(double dim);
double kda_decode_bytes(double dim, double state_bytes);
/// A pair of one head with keys and values expanded: 2 (d_qk + d_v).
double mla_expanded_pair_flops(const checkpoint::MlaConfig& mla);
/// Over latents: 2 (latent + kv_lora).
double mla_absorbed_pair_flops(const checkpoint::MlaConfig& mla);
/// New tokens of a long context from which expanding is cheaper than absorbing.
double mla_crossover_tokens(const checkpoint::MlaConfig& mla);
/// Attention Residuals: numbers of width d that a sublayer reads and writes, in two phases:
/// N / S + 5 for N sources and S sublayers a block. An ordinary residual: 3.
/// Source     Attention Residuals report: 5.5 d for N = 8, S = 16; 3 d
double attn_res_two_phase_io(double sources, double sublayers);
constexpr double kResidualIo = 3;

}  // namespace triax::plan
