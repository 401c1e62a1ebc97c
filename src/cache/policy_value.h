// Our policy and its limit: what is kept is what saves most prefill for its bytes and time.
#pragma once

#include <memory>

#include "cache/policy.h"

namespace triax::cache {

enum class Foresight : uint8_t {
  kLearned,  // return times are predicted from those seen
  kPerfect,  // Session::next_use is known
};

std::unique_ptr<Policy> make_value_policy(Foresight foresight, const CacheConfig& config,
                                          Tier tier);

}  // namespace triax::cache
