// Recorded sessions through the cache with their recorded times: what is reused, and what is
// written, read and wasted for it. No scheduler and no step times: see served.h.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "base/status.h"
#include "cache/cache.h"
#include "replay/trace.h"

namespace triax::replay {

/// How sessions are played (AgentX: lanes that each hold one session until it drains, then draw the
/// next).
struct LaneOptions {
  int sessions = 16;           // lanes
  double start_low = 0.25;     // the first session of a lane starts at a random point of these
  double start_high = 0.75;    // shares of its requests, with its history in one warm-up request
  int64_t requests = 0;        // stop after so many measured ones; 0: after duration_s
  double duration_s = 3600.0;  // of virtual time
  uint64_t seed = 42;
};

/// Tokens of the prompt that a cache could have which keeps every state of every request for ever.
int64_t possible_tokens(const TraceRequest& request);

/// What a replay counts; tokens and checkpoints of measured requests only, warm-up excluded.
struct ReplayCounts {
  int64_t requests = 0;
  int64_t prompt_tokens = 0;
  int64_t possible_tokens = 0;  // with every prefix kept for ever, in whole blocks
  int64_t resumed_tokens = 0;
  std::array<int64_t, cache::kTiers> loaded_tokens{};  // of them, by the tier that had them
  int64_t no_room = 0;  // requests that ran outside of the cache, everything being in use
  double hit_rate() const { return share(resumed_tokens); }
  double possible() const { return share(possible_tokens); }

 private:
  double share(int64_t tokens) const {
    return prompt_tokens == 0 ? 0.0
                              : static_cast<double>(tokens) / static_cast<double>(prompt_tokens);
  }
};

struct RecordedResult {
  ReplayCounts counts;
  cache::CacheStats cache;                          // of the whole run
  std::array<int64_t, cache::kTiers> used_bytes{};  // at the end
  double virtual_s = 0.0;
  double cpu_s = 0.0;     // of the simulation proper
  int64_t simulated = 0;  // requests, warm-up included
};

/// Plays `traces` against a new cache of that configuration.
/// Errors     those of Cache::create
Result<RecordedResult> replay_recorded(const std::vector<Trace>& traces,
                                       const cache::CacheConfig& config, const LaneOptions& options,
                                       FunctionRef<void(double)> progress);

}  // namespace triax::replay
