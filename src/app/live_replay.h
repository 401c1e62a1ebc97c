// Recorded sessions through the real engine: a small model computes synthesised tokens, on a clock
// whose steps take what they took and whose pauses are skipped. Prints nothing.
#pragma once

#include <functional>
#include <vector>

#include "base/function_ref.h"
#include "base/status.h"
#include "engine/batch_engine.h"
#include "replay/served.h"

namespace triax::app {

struct LiveOptions {
  replay::LaneOptions lanes;
  engine::BatchOptions batch;
  double check_share = 0.01;            // of the answers that are computed again, cold and alone
  std::function<double()> step_s = {};  // what a step takes; empty: as long as it took
};

/// Answers computed again from their prompts' first tokens.
struct Recomputed {
  int64_t answers = 0;
  int64_t reused_tokens = 0;  // of their prompts, when they were served
  int64_t mismatches = 0;     // answers with a log-probability further off than kLogprobBound
  double worst = 0.0;         // difference of log-probabilities
};

/// Of the 20 likeliest tokens and the one that was drawn, at each place of an answer; as `bench
/// serve` has it. Rounding alone moves them by some 2e-5; a near tie of experts can go beyond, and
/// then counts as a mismatch (src/engine/README.md).
inline constexpr double kLogprobBound = 1e-3;

struct LiveResult {
  replay::ReplayCounts counts;  // of measured requests that ended
  int64_t answer_tokens = 0;    // of those
  int64_t computed_tokens = 0;  // in steps since the warm-up
  double busy_s = 0.0;          // inside those steps: step_seconds()
  int64_t preemptions = 0;      // in the whole run
  Recomputed recomputed;
};

/// Plays the lanes until so many measured requests (or seconds) have passed, then recomputes.
/// Errors     those of BatchEngine; kInvalidArgument for a prompt beyond the engine's context
Result<LiveResult> replay_live(const std::vector<replay::Trace>& traces, engine::Engine& engine,
                               const LiveOptions& options, FunctionRef<void(double)> progress);

/// A clock of steps. On a GPU that of the wall; on a CPU what this process has computed, divided by
/// its threads, so that other programs do not count.
double step_seconds(const Device& device);

/// Seconds of a step, linear in what it holds.
struct StepTimes {
  double step_s = 0.0;
  double prefill_step_s = 0.0;  // further, when it reads any prompt
  double prefill_token_s = 0.0;
  double prefill_pair_s = 0.0;  // a new token and one before it
  double decode_token_s = 0.0;
  double decode_pair_s = 0.0;
  double operator()(std::span<const replay::StepPart> parts) const;
};

/// Measured on random prompts, each step of which is known: some seconds.
/// Errors     those of BatchEngine
Result<StepTimes> measure_steps(engine::Engine& engine);

/// Log-probabilities of `answer` after `prompt`, computed cold and alone, against those it had.
/// Returns    the largest difference
Result<double> recompute(engine::Engine& engine, std::span<const int32_t> prompt,
                         std::span<const dense::SampledToken> answer);

}  // namespace triax::app
