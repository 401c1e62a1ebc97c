// One token's experts and their weights, chosen by one warp: what the router's own kernel and
// operations that route for themselves share.
#pragma once

#include <cstdint>

#include "device/cuda/block.cuh"
#include "width/router/router_cuda.h"

namespace triax::width {

/// A float's place in an order of integers; NaN counts as minus infinity. Never 0.
__device__ inline uint32_t order_of_key(float key) {
  const uint32_t bits = __float_as_uint((isnan(key) ? -INFINITY : key) + 0.0f);
  return (bits & 0x80000000U) != 0U ? ~bits : bits | 0x80000000U;
}

/// A load that stays where it is written: the compiler likes to move it down to its use, beyond a
/// division, and the latencies add up.
__device__ __forceinline__ float load_now(const float* from) {
  float value;
  asm volatile("ld.global.f32 %0, [%1];" : "=f"(value) : "l"(from) : "memory");
  return value;
}

/// The keys of one token that a lane looks after: experts lane, lane + 32, ..., kOwned of them.
template <int kOwned>
class LaneKeys {
 public:
  __device__ LaneKeys(const float* logits, const float* bias, int experts) {
    constexpr int kAtOnce = 8;  // loads that are under way together
#pragma unroll
    for (int first = 0; first < kOwned; first += kAtOnce) {
      float logit[kAtOnce];
      float offset[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int e = min(expert_of(first + i), experts - 1);
        logit[i] = load_now(logits + e);
        offset[i] = load_now(bias + e);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const uint32_t key = order_of_key(cuda::sigmoid(logit[i]) + offset[i]);
        keys_[first + i] = expert_of(first + i) < experts ? key : 0;
      }
    }
    find_best();
  }

  /// The best expert left in any lane (ties: the lower id), in all lanes; it is taken out.
  __device__ int take_best() {
    const uint32_t best = __reduce_max_sync(~0U, best_);
    const uint32_t own = best_ == best ? static_cast<uint32_t>(best_expert_) : ~0U;
    const auto expert = static_cast<int>(__reduce_min_sync(~0U, own));
    if (expert == best_expert_) {
#pragma unroll
      for (int i = 0; i < kOwned; ++i) {
        keys_[i] = i == expert / cuda::kWarp ? 0 : keys_[i];
      }
      find_best();
    }
    return expert;
  }

 private:
  __device__ static int expert_of(int index) {
    return static_cast<int>(threadIdx.x % cuda::kWarp) + index * cuda::kWarp;
  }

  __device__ void find_best() {
    best_ = 0;
    int index = 0;
#pragma unroll
    for (int i = 0; i < kOwned; ++i) {
      index = keys_[i] > best_ ? i : index;
      best_ = max(keys_[i], best_);
    }
    best_expert_ = expert_of(index);
  }

  uint32_t keys_[kOwned];
  uint32_t best_;
  int best_expert_;
};

/// ids[0 .. count) and their weights from one token's logits, as RouterChoice says. A whole warp
/// calls; what it wrote is visible to its lanes afterwards.
/// Shapes     logits [experts], experts <= 32 kOwned, count <= experts
template <int kOwned, typename Id>
__device__ void choose_experts(const RouterChoice& choice, const float* logits, int experts,
                               int count, Id* ids, float* weights) {
  const int lane = static_cast<int>(threadIdx.x % cuda::kWarp);
  LaneKeys<kOwned> keys(logits, choice.bias, experts);
  for (int j = 0; j < count; ++j) {
    const int expert = keys.take_best();
    if (lane == 0) {
      ids[j] = static_cast<Id>(expert);
    }
  }
  __syncwarp();
  float sum = 0.0f;
  for (int j = lane; j < count; j += cuda::kWarp) {
    const int e = ids[j];
    const float weight = cuda::sigmoid(logits[e]) +
                         (choice.weights_from == RouteWeights::kBiased ? choice.bias[e] : 0.0f);
    weights[j] = weight;
    sum += weight;
  }
  sum = cuda::warp_sum(sum);
  const float factor = choice.scaling_factor / (choice.renormalize ? sum + 1e-20f : 1.0f);
  for (int j = lane; j < count; j += cuda::kWarp) {
    weights[j] *= factor;
  }
  __syncwarp();
}

}  // namespace triax::width
