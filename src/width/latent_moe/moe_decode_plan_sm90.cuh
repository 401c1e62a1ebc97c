// How the decode of routed experts divides its work: shared memory, the routes grouped by expert,
// each block's share of tiles, and where a warp stands in it. Knows nothing of copies and products.
#pragma once

#include <cuda_runtime.h>

#include "width/latent_moe/moe_decode_sm90.h"
#include "width/latent_moe/moe_mxfp4_sm90.cuh"

namespace triax::width::sm90::decode {

constexpr int kMultiplyWarps = 15;
constexpr int kAddWarps = 4;
constexpr int kMultiplyThreads = kMultiplyWarps * 32;
constexpr int kThreads = (kMultiplyWarps + kAddWarps + 1) * 32;
constexpr int kTileRows = 16;
constexpr int kPairColumns = 2 * kGroupColumns;
constexpr int kTileTokens = 4;  // of one pass over a tile, as 8 planes
constexpr int kPassTiles = 8;   // tiles that take turns when an expert needs several passes
constexpr int kPartSums = kTileRows * kTileTokens;
constexpr int kStagesMax = 16;
constexpr int kListBytes = 2 * (3 * (kMoeDecodeExpertsMax + 8) + kMoeDecodeRoutesMax);
constexpr int kBarriersBytes = 8 * 3 * kStagesMax + 64;
constexpr int kSharedMax = 232448;
constexpr int64_t kBarrierBytes = 256;

// A token's row of activations in shared memory: bytes of one plane. Rows 64 bytes off a multiple
// of 128, so that two of them meet no bank twice.
__host__ __device__ constexpr int plane_bytes(int columns) {
  return (columns + kPairColumns - 1) / kPairColumns * (2 * kPairColumns) + 64;
}
// What a warp takes at once.
__host__ __device__ constexpr int part_columns(int columns) {
  return columns > 4 * kPairColumns ? 2 * kPairColumns : kPairColumns;
}
__host__ __device__ constexpr int parts_of(int columns) {
  return (columns + part_columns(columns) - 1) / part_columns(columns);
}
__host__ __device__ constexpr int tile_bytes(int columns) {
  return kTileRows * (columns / 2 + columns / 32);
}

// Sizes of shared memory; offsets in bytes.
struct Layout {
  int stages, stage_bytes, parts_max;
  int sums;  // from a stage's begin
  int lists, tokens, barriers, bytes;
};

struct Params {
  MoeDecodeSm90 args;
  Layout layout;
  unsigned long long* barriers[2];  // arrivals of blocks after each list, of all launches
  float* hidden;                    // [T k, F]
  float* partial;                   // [T k, L]
};

struct Shared {
  unsigned char* ring;
  uint16_t* visited;            // experts with tokens, ascending
  uint16_t* begin;              // their first entry in `routes`, and one past the last
  uint16_t* passes;             // passes over the weights of those before, and of all
  uint16_t* routes;             // route indices t k + j, by expert, then token
  unsigned char* tokens;        // activations, two planes a token
  uint32_t full, ready, empty;  // barriers of the ring: weights are there; sums are; all is free
  unsigned long long* targets;  // [2]: of params' barriers, in this launch

  __device__ Shared(unsigned char* base, const Layout& layout)
      : ring(base),
        visited(reinterpret_cast<uint16_t*>(base + layout.lists)),
        begin(visited + kMoeDecodeExpertsMax + 8),
        passes(begin + kMoeDecodeExpertsMax + 8),
        routes(passes + kMoeDecodeExpertsMax + 8),
        tokens(base + layout.tokens),
        full(shared_address(base + layout.barriers)),
        ready(full + 8 * kStagesMax),
        empty(ready + 8 * kStagesMax),
        targets(
            reinterpret_cast<unsigned long long*>(base + layout.barriers + kBarriersBytes - 64)) {}
};

// What all warps share: the block's tiles [first, last) of each list.
struct Plan {
  int columns[2], expert_tiles[2], first[2], last[2];
};

// Where a warp stands: pass after pass over blocks of tiles of one expert, expert after expert.
struct Cursor {
  int phase = 0;  // 0: gate and up; 1: down; 2: done
  int slot = 0;   // index into `visited`
  int tile = 0;   // of the expert
  int pass = 0, passes = 0;
  int block_begin = 0, block_end = 0;
  int left = 0;  // tiles of the block's share from block_begin on
};

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

__device__ __forceinline__ int route_expert(const Params& p, int route) {
  const int k = static_cast<int>(p.args.routes);
  const int id = p.args.ids[(route / k) * p.args.ids_stride + route % k];
  return id >= 0 && id < p.args.weights.experts ? id : -1;
}

// One expert's share of the lists, packed for block_prefix: itself, its tokens, its passes.
__device__ __forceinline__ uint64_t expert_share(int tokens) {
  const uint64_t passes = (tokens + kTileTokens - 1) / kTileTokens;
  return (tokens > 0 ? 1ull : 0ull) << 40 | passes << 20 | static_cast<uint64_t>(tokens);
}

// Fills visited, begin, passes and routes; returns the number of experts visited. Every block does
// this for itself: cheaper than a launch. A set of tokens an expert, as bits, gives each route its
// rank.
__device__ inline int group_routes(const Params& p, const Shared& s) {
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
    mine[i] = r < routes ? route_expert(p, r) : -1;
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
  return static_cast<int>(total >> 40);
}

// The first tile, over all visited experts, of share `share` of `shares`: experts weigh as many
// times their tiles as they need passes.
__device__ inline int share_begin(const Shared& s, int visited, int tiles, int share, int shares) {
  const uint32_t total = s.passes[visited] * static_cast<uint32_t>(tiles);  // below 2^20
  const uint32_t work = total * static_cast<uint32_t>(share) / static_cast<uint32_t>(shares);
  const int pass = static_cast<int>(work / static_cast<uint32_t>(tiles));
  int low = 0;  // the last slot whose passes begin at or before `pass`
  for (int step = 512; step > 0; step /= 2) {
    if (low + step <= visited && s.passes[low + step] <= pass) {
      low += step;
    }
  }
  if (low >= visited) {
    return visited * tiles;
  }
  const int own = s.passes[low + 1] - s.passes[low];
  return low * tiles + (static_cast<int>(work) - s.passes[low] * tiles) / own;
}

__device__ inline Plan make_plan(const Params& p, const Shared& s, int visited) {
  Plan plan;
  plan.columns[0] = static_cast<int>(p.args.weights.width);
  plan.columns[1] = static_cast<int>(p.args.weights.hidden);
  plan.expert_tiles[0] = plan.columns[1] / (kTileRows / 2);
  plan.expert_tiles[1] = plan.columns[0] / kTileRows;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int block = static_cast<int>(blockIdx.x);
    const int blocks = static_cast<int>(gridDim.x);
    plan.first[i] = share_begin(s, visited, plan.expert_tiles[i], block, blocks);
    plan.last[i] = share_begin(s, visited, plan.expert_tiles[i], block + 1, blocks);
  }
  return plan;
}

// A block of tiles from block_begin on: all that is left of the expert, or few when several passes
// are needed, so that the second finds the weights in the L2.
__device__ inline void enter_block(const Plan& plan, const Shared& s, Cursor& c) {
  const int tiles = c.phase == 0 ? plan.expert_tiles[0] : plan.expert_tiles[1];
  if (c.block_begin == tiles) {
    c.slot += 1;
    c.block_begin = 0;
  }
  c.passes = (s.begin[c.slot + 1] - s.begin[c.slot] + kTileTokens - 1) / kTileTokens;
  c.pass = 0;
  c.tile = c.block_begin;
  c.block_end = min(tiles, c.block_begin + c.left);
  if (c.passes > 1) {
    c.block_end = min(c.block_end, c.block_begin + kPassTiles);
  }
}

// The first tile of c.phase or, when the block has none there, of a later one.
__device__ inline void enter_phase(const Plan& plan, const Shared& s, Cursor& c) {
  for (; c.phase < 2; ++c.phase) {
    const int first = c.phase == 0 ? plan.first[0] : plan.first[1];
    const int last = c.phase == 0 ? plan.last[0] : plan.last[1];
    if (first < last) {
      const int tiles = c.phase == 0 ? plan.expert_tiles[0] : plan.expert_tiles[1];
      c.slot = first / tiles;
      c.block_begin = first - c.slot * tiles;
      c.left = last - first;
      enter_block(plan, s, c);
      return;
    }
  }
}

__device__ __forceinline__ void advance(const Plan& plan, const Shared& s, Cursor& c) {
  c.tile += 1;
  if (c.tile < c.block_end) {
    return;
  }
  c.pass += 1;
  if (c.pass < c.passes) {
    c.tile = c.block_begin;
    return;
  }
  c.left -= c.block_end - c.block_begin;
  c.block_begin = c.block_end;
  if (c.left > 0) {
    enter_block(plan, s, c);
  } else {
    c.phase += 1;
    enter_phase(plan, s, c);
  }
}

__device__ __forceinline__ int pass_tokens(const Shared& s, const Cursor& c) {
  return min(s.begin[c.slot + 1] - s.begin[c.slot] - c.pass * kTileTokens, kTileTokens);
}

__device__ __forceinline__ int pass_route(const Shared& s, const Cursor& c, int token) {
  return s.routes[s.begin[c.slot] + c.pass * kTileTokens + token];
}

// A stage of the ring and its parity, kept in step with a cursor.
struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void next(int stages) {
    stage += 1;
    if (stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace triax::width::sm90::decode
