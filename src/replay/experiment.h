// One row of a table: a policy under a pressure, the mean of several seeds, with recorded timings
// and served by a machine.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "replay/served.h"

namespace triax::replay {

/// Bytes as a pool counts them.
struct Sizes {
  int64_t page_bytes = 64 * 13824;  // K3, fp8 latents, each stored once
  int64_t state_bytes = 449000000;  // K3's states in fp32 and convolution windows
  int64_t matrix_bytes =
      434110464;         // of it the states, which may lie in fewer bits below the device
  double at_rest = 1.0;  // bytes there for each of matrix_bytes
  int64_t lower_state_bytes() const {
    return state_bytes - static_cast<int64_t>((1.0 - at_rest) * static_cast<double>(matrix_bytes));
  }
};

struct Setting {
  std::string policy = "value";
  int sessions = 24;
  std::array<int64_t, cache::kTiers> budget_bytes{};  // 0: no such tier
};

struct ExperimentOptions {
  Sizes sizes;
  LaneOptions lanes;  // sessions and seed come from the setting
  int seeds = 5;      // lanes.seed, lanes.seed + 1, ...
  bool recorded = true;
  bool served = true;
  sched::Options sched;
  ModelCost model;
  Machine machine;
  // Instead of model and machine, where a better model of steps is at hand:
  std::function<double(std::span<const StepPart>)> step_s = {};
  std::optional<cache::PrefillCost> prefill = {};
  double link_share = 1.0;  // bytes count once for so many GPUs: their links carry them together
                            // (1), or each carries them (the number of GPUs)
};

struct Row {
  Setting setting;
  int seeds = 0;

  struct Reuse {
    double hit_rate = 0, hit_low = 0, hit_high = 0;  // mean and extremes over seeds
    double possible = 0;
    double requests = 0;                       // measured, of one seed
    double prefill_tokens = 0;                 // computed, a request
    double no_room = 0;                        // share of requests
    double written = 0, read = 0, wasted = 0;  // checkpoints, a request
    double tokens_evicted = 0, tokens_no_state = 0, tokens_not_loaded = 0;  // shares of the prompts
    double tokens_from_ram = 0, tokens_from_ssd = 0;                        // in hit_rate
  };
  Reuse recorded;
  double simulator_requests_s = 0;  // with recorded timings, on one core of this machine

  Reuse served;
  double first_token_p50_s = 0, first_token_p90_s = 0, first_token_p99_s = 0;
  double answer_tokens_s = 0;
  double waiting = 0;  // requests without a first token at the end; counted with their wait so far
  double preemptions = 0, displacements = 0;
  double busy = 0;                                 // share of the time inside steps
  std::array<double, cache::kTiers> used_bytes{};  // at the end, of the recorded runs if there are
  std::vector<Sample> samples;                     // of the first seed, served
};

/// Errors     those of replay_recorded and replay_served
Result<Row> run_experiment(const std::vector<Trace>& traces, const Setting& setting,
                           const ExperimentOptions& options, FunctionRef<void(double)> progress);

}  // namespace triax::replay
