// The largest logits in order, without sorting all.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dense/sampling/sampling.h"

namespace triax::dense::internal {

/// Order of tokens: descending logit, ties by ascending id. `logprob` holds the logit here.
bool before(const TokenLogprob& a, const TokenLogprob& b);

/// The `count` largest logits above -inf (fewer when there are fewer), in that order.
void find_largest(std::span<const float> logits, int64_t count, std::vector<TokenLogprob>& out);

}  // namespace triax::dense::internal
