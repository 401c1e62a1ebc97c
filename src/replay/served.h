// Recorded sessions through scheduler and cache together, on a virtual clock whose steps take what
// a roofline says: waiting, first tokens, throughput.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "replay/cost.h"
#include "replay/recorded.h"
#include "sched/scheduler.h"

namespace triax::replay {

struct ServedOptions {
  LaneOptions lanes;
  sched::Options sched;
  ModelCost model;
  Machine machine;
  double sample_s = 30.0;  // between samples of what is resident; 0: none
  std::function<double(std::span<const StepPart>)> step_s = {};  // empty: model and machine's
  bool agents_apart = false;  // to the scheduler each agent is a session, not each tree of them
};

/// What is on the device at one moment.
struct Sample {
  double at_s = 0.0;
  int64_t used_bytes = 0;
  int64_t state_bytes = 0;  // of it in checkpoints
  int64_t running = 0;
  int64_t queued = 0;
};

struct ServedResult {
  ReplayCounts counts;
  cache::CacheStats cache;  // of the whole run
  sched::Counters sched;
  std::vector<double> first_token_s;  // of measured requests, ascending; of those still without one
                                      // their wait so far
  int64_t waiting = 0;                // those
  int64_t answer_tokens = 0;          // of measured requests
  int64_t computed_tokens = 0;        // in steps since the warm-up
  double measured_s = 0.0;            // virtual time since the warm-up
  double step_s = 0.0;                // virtual time inside steps of it
  std::vector<Sample> samples;
  double cpu_s = 0.0;
  int64_t simulated = 0;  // requests, warm-up included

  /// p in [0, 1]; 0 without requests.
  double first_token(double p) const;
};

/// Errors     those of Cache::create; kInvalidArgument: options that the scheduler cannot keep
Result<ServedResult> replay_served(const std::vector<Trace>& traces,
                                   const cache::CacheConfig& config, const ServedOptions& options,
                                   FunctionRef<void(double)> progress);

}  // namespace triax::replay
