// The policies of today's systems: fixed boundaries, least recently used.
#pragma once

#include <cstdint>
#include <memory>

#include "cache/policy.h"

namespace triax::cache {

enum class Junction : uint8_t {
  kNever,
  kAnywhere,  // wherever pages match further than any state, also where a state was lost
  kTrueFork,  // only where another continuation exists
};

struct LruRules {
  int64_t interval = 0;  // a checkpoint each so many tokens; 0: none of these
  Junction junction = Junction::kNever;
  int64_t states_per_session_max = 0;  // of what nobody uses; 0: any number
};

/// All of them publish the prompt's end too, and no answer's end.
std::unique_ptr<Policy> make_lru_policy(const LruRules& rules);

}  // namespace triax::cache
