// The routes of a few tokens: taken or chosen, grouped by expert, and their results summed up.
// Every block does the first two for itself, which is cheaper than a launch and a barrier.
#pragma once

#include <cuda_runtime.h>

#include "width/latent_moe/moe_decode_plan_sm90.cuh"
#include "width/router/router_select.cuh"

namespace triax::width::sm90::decode {

// Routes and weights of one token, by one warp, into shared memory.
__device__ inline void take_routes(const Params& p, const Shared& s, int token) {
  const int k = static_cast<int>(p.args.routes);
  const int experts = static_cast<int>(p.args.weights.experts);
  uint16_t* ids = s.ids + token * k;
  float* weights = s.weights + token * k;
  if (p.args.routes_from == MoeRoutes::kLogits) {
    const float* logits = p.args.logits + static_cast<int64_t>(token) * experts;
    if (experts <= 256) {
      choose_experts<8>(p.args.choice, logits, experts, k, ids, weights);
    } else {
      choose_experts<32>(p.args.choice, logits, experts, k, ids, weights);
    }
    for (int j = lane_id(); blockIdx.x == 0 && j < k; j += 32) {
      p.args.ids[token * p.args.ids_stride + j] = ids[j];
      p.args.route_weights[token * p.args.route_weights_stride + j] = weights[j];
    }
    return;
  }
  for (int j = lane_id(); j < k; j += 32) {
    const int id = p.args.ids[token * p.args.ids_stride + j];
    ids[j] = id >= 0 && id < experts ? static_cast<uint16_t>(id) : kNoExpert;
    weights[j] = p.args.route_weights[token * p.args.route_weights_stride + j];
  }
}

// What this block's arrivals will complete. A launch adds an arrival a block; before this block's
// own, less than that has been added.
__device__ __forceinline__ void set_targets(const Shared& s, const unsigned long long (&seen)[2]) {
  for (int i = 0; i < 2; ++i) {
    s.targets[i] = (seen[i] / gridDim.x + 1) * gridDim.x;
  }
}

// Exclusive prefixes of `value` over the block; `total` is the sum.
__device__ inline uint64_t block_prefix(uint64_t value, uint64_t* scratch, uint64_t& total) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  uint64_t sum = value;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const uint64_t other = __shfl_up_sync(~0u, sum, d);
    sum += lane >= d ? other : 0;
  }
  if (lane == 31) {
    scratch[warp] = sum;
  }
  __syncthreads();
  uint64_t warps = lane < kThreads / 32 ? scratch[lane] : 0;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const uint64_t other = __shfl_up_sync(~0u, warps, d);
    warps += lane >= d ? other : 0;
  }
  total = __shfl_sync(~0u, warps, 31);
  const uint64_t before = __shfl_sync(~0u, warps, max(warp - 1, 0));
  return (warp > 0 ? before : 0) + sum - value;
}

// One expert's share of the lists, packed for block_prefix: itself, its tokens, its passes.
__device__ __forceinline__ uint64_t expert_share(int tokens) {
  const uint64_t passes = (tokens + kTileTokens - 1) / kTileTokens;
  return (tokens > 0 ? 1ull : 0ull) << 40 | passes << 20 | static_cast<uint64_t>(tokens);
}

// Fills visited, begin, passes, routes and count from ids.
// A set of tokens an expert, as bits, gives each route its rank.
__device__ inline void group_routes(const Params& p, const Shared& s) {
  constexpr int kExperts = static_cast<int>(kMoeDecodeExpertsMax);
  auto* sets = reinterpret_cast<unsigned long long*>(s.ring);
  auto* scratch = reinterpret_cast<uint64_t*>(sets + kExperts);
  auto* starts = reinterpret_cast<uint16_t*>(scratch + 32);
  const int thread = static_cast<int>(threadIdx.x);
  const int k = static_cast<int>(p.args.routes);
  const int routes = static_cast<int>(p.args.tokens) * k;
  constexpr int kShare = (static_cast<int>(kMoeDecodeRoutesMax) + kThreads - 1) / kThreads;
  int mine[kShare];
#pragma unroll
  for (int i = 0; i < kShare; ++i) {
    const int r = thread + i * kThreads;
    mine[i] = r < routes && s.ids[r] != kNoExpert ? s.ids[r] : -1;
  }
  for (int e = thread; e < kExperts; e += kThreads) {
    sets[e] = 0;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kShare; ++i) {
    if (mine[i] >= 0) {
      atomicOr(&sets[mine[i]], 1ull << ((thread + i * kThreads) / k));
    }
  }
  __syncthreads();
  const bool counts = 2 * thread < kExperts;
  const int count0 = counts ? __popcll(sets[2 * thread]) : 0;
  const int count1 = counts ? __popcll(sets[2 * thread + 1]) : 0;
  uint64_t total;
  uint64_t at = block_prefix(expert_share(count0) + expert_share(count1), scratch, total);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int count = i == 0 ? count0 : count1;
    if (count > 0) {
      starts[2 * thread + i] = static_cast<uint16_t>(at & 0xFFFF);
      s.visited[at >> 40] = static_cast<uint16_t>(2 * thread + i);
      s.begin[at >> 40] = static_cast<uint16_t>(at & 0xFFFF);
      s.passes[at >> 40] = static_cast<uint16_t>(at >> 20 & 0xFFFF);
      at += expert_share(count);
    }
  }
  if (thread == 0) {
    s.begin[total >> 40] = static_cast<uint16_t>(total & 0xFFFF);
    s.passes[total >> 40] = static_cast<uint16_t>(total >> 20 & 0xFFFF);
    *s.count = static_cast<int>(total >> 40);
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kShare; ++i) {
    if (mine[i] >= 0) {
      const int r = thread + i * kThreads;
      const int rank = __popcll(sets[mine[i]] & ((1ull << (r / k)) - 1));
      s.routes[starts[mine[i]] + rank] = static_cast<uint16_t>(r);
    }
  }
  __syncthreads();
}

// The same by one warp, for 32 routes at most; experts in the order of their first routes.
__device__ inline void group_few_routes(const Shared& s, int routes) {
  const int lane = threadIdx.x % 32;
  const int expert = lane < routes ? s.ids[lane] : kNoExpert;
  const unsigned peers = __match_any_sync(~0u, expert);
  const int leader = __ffs(static_cast<int>(peers)) - 1;
  const unsigned before = (1u << lane) - 1;
  const unsigned leaders = __ballot_sync(~0u, expert != kNoExpert && leader == lane);
  const bool leads = (leaders >> lane & 1) != 0;
  const int count = __popc(peers);
  const uint32_t own =
      leads ? static_cast<uint32_t>(count | (count + kTileTokens - 1) / kTileTokens << 16) : 0;
  uint32_t sum = own;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const uint32_t other = __shfl_up_sync(~0u, sum, d);
    sum += lane >= d ? other : 0;
  }
  const uint32_t start = sum - own;
  const int slot = __popc(leaders & before);
  if (leads) {
    s.visited[slot] = static_cast<uint16_t>(expert);
    s.begin[slot] = static_cast<uint16_t>(start & 0xFFFF);
    s.passes[slot] = static_cast<uint16_t>(start >> 16);
  }
  if (lane == 31) {
    s.begin[__popc(leaders)] = static_cast<uint16_t>(sum & 0xFFFF);
    s.passes[__popc(leaders)] = static_cast<uint16_t>(sum >> 16);
    *s.count = __popc(leaders);
  }
  const uint32_t group_start = __shfl_sync(~0u, start, leader);
  if (expert != kNoExpert) {
    s.routes[(group_start & 0xFFFF) + __popc(peers & before)] = static_cast<uint16_t>(lane);
  }
}

// out[t] = sum of its routes' partial values, in the order of ids.
__device__ inline void combine(const Params& p, const Shared& s) {
  constexpr int kAtOnce = 8;
  const int quads = static_cast<int>(p.args.weights.width) / 4;
  const int k = static_cast<int>(p.args.routes);
  const int count = static_cast<int>(p.args.tokens) * quads;
  for (int i = threadIdx.x * gridDim.x + blockIdx.x; i < count; i += gridDim.x * kThreads) {
    const int t = i / quads;
    const int quad = i - t * quads;
    const auto* from =
        reinterpret_cast<const float4*>(p.partial) + static_cast<int64_t>(t) * k * quads + quad;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int first = 0; first < k; first += kAtOnce) {
      float4 y[kAtOnce];
      float weight[kAtOnce];
      bool present[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int route = min(first + j, k - 1);
        y[j] = __ldcg(from + static_cast<int64_t>(route) * quads);
        weight[j] = s.weights[t * k + route];
        present[j] = first + j < k && s.ids[t * k + route] != kNoExpert;
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (present[j]) {
          sum.x += weight[j] * y[j].x;
          sum.y += weight[j] * y[j].y;
          sum.z += weight[j] * y[j].z;
          sum.w += weight[j] * y[j].w;
        }
      }
    }
    float* out = p.args.out + t * p.args.out_stride + 4 * quad;
    out[0] = sum.x;
    out[1] = sum.y;
    out[2] = sum.z;
    out[3] = sum.w;
  }
}

}  // namespace triax::width::sm90::decode
