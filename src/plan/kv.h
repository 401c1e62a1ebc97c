// What a cache is worth: its size and KV throughput against context, beside baselines without
// linear attention; checkpoint spacing; when loading beats recomputing.
#pragma once

#include <string>
#include <vector>

#include "plan/memory.h"
#include "plan/roofline.h"

namespace triax::plan {

/// The hybrid, or the same stack with another attention in every layer.
enum class Baseline { kHybrid, kFullMla, kGqa };
std::string_view baseline_name(Baseline baseline);

/// Heads and widths stay; kGqa has 8 key-value heads of the value's width.
checkpoint::ModelConfig baseline_config(const checkpoint::ModelConfig& config, Baseline baseline);
Attention baseline_attention(Baseline baseline);

/// Cached bytes of one sequence of `context` tokens, with one checkpoint.
double cache_bytes(const SequenceBytes& sequence, double context);

/// Bytes of cache that a prefill makes a second: the least bandwidth to hand them on.
/// Source     seeds: KV cache size / time to first token at a sequence length
struct KvThroughput {
  double context = 0, bytes = 0, prefill_s = 0;
  double bytes_per_second() const { return bytes / prefill_s; }
};
KvThroughput kv_throughput(const StepModel& model, double context, double chunk);

/// A checkpoint every `spacing` tokens, beside latents: what it costs and what it saves.
struct Spacing {
  double spacing = 0;
  double bytes_per_token = 0;   // state / spacing
  double of_latents = 0;        // the same in units of the latents
  double recompute_tokens = 0;  // expected: half of the spacing
  double recompute_s = 0;       // at that context
};
Spacing checkpoint_spacing(const StepModel& model, double spacing, double context, double chunk);

/// (state + context x latents) / rate.
double load_seconds(const SequenceBytes& sequence, double context, double rate);
/// Least context whose loading over `rate` takes no longer than its prefill; infinity: none up to
/// `longest`.
double break_even_tokens(const StepModel& model, double rate, double chunk, double longest);

}  // namespace triax::plan
