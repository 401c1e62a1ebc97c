// A bounded heap: after it has filled, almost every logit costs one comparison.
#include "dense/sampling/largest.h"

#include <algorithm>
#include <limits>

namespace triax::dense::internal {

bool before(const TokenLogprob& a, const TokenLogprob& b) {
  return a.logprob > b.logprob || (a.logprob == b.logprob && a.id < b.id);
}

void find_largest(std::span<const float> logits, int64_t count, std::vector<TokenLogprob>& out) {
  out.clear();
  if (count <= 0) {
    return;
  }
  float bar = -std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < logits.size(); ++i) {
    // Ids ascend, so an equal logit comes after those that are kept.
    if (logits[i] <= bar) {
      continue;
    }
    if (static_cast<int64_t>(out.size()) == count) {
      std::pop_heap(out.begin(), out.end(), before);
      out.pop_back();
    }
    out.push_back({static_cast<int32_t>(i), logits[i]});
    std::push_heap(out.begin(), out.end(), before);
    if (static_cast<int64_t>(out.size()) == count) {
      bar = out.front().logprob;
    }
  }
  std::sort_heap(out.begin(), out.end(), before);
}

}  // namespace triax::dense::internal
