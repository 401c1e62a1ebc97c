// Our policy and its limit: what is kept is what saves most prefill for its bytes and time.
#pragma once

#include <memory>

#include "cache/policy.h"

namespace triax::cache {

/// Return times are predicted from those seen.
std::unique_ptr<Policy> make_value_policy(const CacheConfig& config);

/// Session::next_use and next_tokens are known.
std::unique_ptr<Policy> make_clairvoyant_policy(const CacheConfig& config, Tier tier);

}  // namespace triax::cache
