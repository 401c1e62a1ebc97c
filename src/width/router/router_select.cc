// Top-k of one token's scores and the weights of what was chosen.
#include <cmath>

#include "width/router/router_kernels.h"

namespace triax::width::internal {
namespace {

float sigmoid(float x) {
  const float e = std::exp(-std::fabs(x));
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

// Inserts into the `filled` best, which descend. Equal keys stay in order of arrival, and experts
// arrive in ascending order: ties go to the lower id. The last of `count` falls out when full.
void insert(float key, int32_t id, int64_t filled, int64_t count, float* keys, int32_t* ids) {
  int64_t place = filled < count ? filled : count - 1;
  while (place > 0 && key > keys[place - 1]) {
    keys[place] = keys[place - 1];
    ids[place] = ids[place - 1];
    --place;
  }
  keys[place] = key;
  ids[place] = id;
}

}  // namespace

void select_experts(const Selection& selection, float* scores, float* keys, int32_t* ids,
                    float* weights) {
  const int64_t count = selection.count;
  for (int64_t e = 0; e < selection.experts; ++e) {
    scores[e] = sigmoid(scores[e]);
    const float key = scores[e] + selection.bias[e];
    if (e < count || key > keys[count - 1]) {
      insert(key, static_cast<int32_t>(e), e, count, keys, ids);
    }
  }
  float sum = 1e-20f;
  for (int64_t j = 0; j < count; ++j) {
    weights[j] = selection.weights_from == RouteWeights::kBiased ? keys[j] : scores[ids[j]];
    sum += weights[j];
  }
  for (int64_t j = 0; j < count; ++j) {
    const float share = selection.renormalize ? weights[j] / sum : weights[j];
    weights[j] = share * selection.scaling_factor;
  }
}

}  // namespace triax::width::internal
