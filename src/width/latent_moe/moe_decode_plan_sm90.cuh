// How the decode of routed experts divides its work: shared memory, each block's share of tiles,
// and the jobs it consists of. Knows nothing of copies and products.
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
constexpr int kListBytes =
    2 * (3 * (kMoeDecodeExpertsMax + 8) + 2 * kMoeDecodeRoutesMax) + 4 * kMoeDecodeRoutesMax;
constexpr int kBarriersBytes = 8 * (3 * kStagesMax + 1) + 24;
constexpr int kGroupingBytes = 16384;
constexpr int kSharedMax = 232448;
constexpr int64_t kBarrierBytes = 256;

__device__ __forceinline__ int lane_id() { return threadIdx.x % 32; }

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
  int sums;                 // from a stage's begin
  int tokens, token_bytes;  // token_bytes: of one token, two planes of the wider width
  int slots;                // tokens of an expert in shared memory: of one pass or two
  int lists, barriers, bytes;
  bool resident;  // all tokens are in shared memory from the start
};

struct Params {
  MoeDecodeSm90 args;
  Layout layout;
  unsigned long long* barriers[2];  // arrivals of blocks after each list, of all launches
  unsigned char* hidden;            // [T k, 2, F] bf16: the planes of the activations
  float* partial;                   // [T k, L]
};

constexpr uint16_t kNoExpert = 0xFFFF;

struct Shared {
  unsigned char* ring;
  unsigned char* tokens;        // activations, two planes a token
  float* weights;               // [T k] of routes
  uint16_t* ids;                // [T k]; kNoExpert: absent
  uint16_t* visited;            // experts with tokens
  uint16_t* begin;              // their first entry in `routes`, and one past the last
  uint16_t* passes;             // passes over the weights of those before, and of all
  uint16_t* routes;             // route indices t k + j, by expert, then token
  uint32_t full, ready, empty;  // barriers of the ring: weights are there; sums are; all is free
  uint32_t listed;              // barrier of the lists
  unsigned long long* targets;  // [2]: of params' barriers, in this launch
  int* count;                   // of experts visited

  __device__ Shared(unsigned char* base, const Layout& layout)
      : ring(base),
        tokens(base + layout.tokens),
        weights(reinterpret_cast<float*>(base + layout.lists)),
        ids(reinterpret_cast<uint16_t*>(weights + kMoeDecodeRoutesMax)),
        visited(ids + kMoeDecodeRoutesMax),
        begin(visited + kMoeDecodeExpertsMax + 8),
        passes(begin + kMoeDecodeExpertsMax + 8),
        routes(passes + kMoeDecodeExpertsMax + 8),
        full(shared_address(base + layout.barriers)),
        ready(full + 8 * kStagesMax),
        empty(ready + 8 * kStagesMax),
        listed(empty + 8 * kStagesMax),
        targets(
            reinterpret_cast<unsigned long long*>(base + layout.barriers + kBarriersBytes - 24)),
        count(reinterpret_cast<int*>(targets + 2)) {}
};

// What all warps share: the block's tiles [first, last) of each list.
struct Plan {
  int columns[2], expert_tiles[2], first[2], last[2];
};

// Tiles of one expert by up to kTileTokens of its tokens: what is done with one set of tokens in
// shared memory. Jobs follow each other expert after expert, list after list.
struct Job {
  int phase = 0;  // 0: gate and up; 1: down; 2: none left
  int slot = 0;   // index into `visited`
  int begin = 0, end = 0;
  int pass = 0, passes = 0;
  int left = 0;  // tiles of the block's share from `begin` on
};

// The first tile, over all visited experts, of share `share` of `shares`: experts weigh as many
// times their tiles as they need passes.
__device__ inline int share_begin(const Shared& s, int visited, int tiles, int share, int shares) {
  const uint32_t total = s.passes[visited] * static_cast<uint32_t>(tiles);  // below 2^20
  const uint32_t work = total * static_cast<uint32_t>(share) / static_cast<uint32_t>(shares);
  if (s.passes[visited] == visited) {
    return static_cast<int>(work);
  }
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

__device__ inline Plan make_plan(const Params& p, const Shared& s) {
  Plan plan;
  plan.columns[0] = static_cast<int>(p.args.weights.width);
  plan.columns[1] = static_cast<int>(p.args.weights.hidden);
  plan.expert_tiles[0] = plan.columns[1] / (kTileRows / 2);
  plan.expert_tiles[1] = plan.columns[0] / kTileRows;
  const int lane = threadIdx.x % 32;  // four lanes find the four ends
  const int own =
      share_begin(s, *s.count, lane / 2 % 2 == 0 ? plan.expert_tiles[0] : plan.expert_tiles[1],
                  static_cast<int>(blockIdx.x) + lane % 2, static_cast<int>(gridDim.x));
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    plan.first[i] = __shfl_sync(~0u, own, 2 * i);
    plan.last[i] = __shfl_sync(~0u, own, 2 * i + 1);
  }
  return plan;
}

// Tiles from job.begin on: all that is left of the expert, or few when several passes are needed,
// so that the second finds the weights in the L2.
__device__ inline void enter_tiles(const Plan& plan, const Shared& s, Job& job) {
  const int tiles = job.phase == 0 ? plan.expert_tiles[0] : plan.expert_tiles[1];
  if (job.begin == tiles) {
    job.slot += 1;
    job.begin = 0;
  }
  job.passes = (s.begin[job.slot + 1] - s.begin[job.slot] + kTileTokens - 1) / kTileTokens;
  job.pass = 0;
  job.end = min(tiles, job.begin + job.left);
  if (job.passes > 1) {
    job.end = min(job.end, job.begin + kPassTiles);
  }
}

// The first job of job.phase or, when the block has none there, of a later one.
__device__ inline void enter_phase(const Plan& plan, const Shared& s, Job& job) {
  for (; job.phase < 2; ++job.phase) {
    const int first = job.phase == 0 ? plan.first[0] : plan.first[1];
    const int last = job.phase == 0 ? plan.last[0] : plan.last[1];
    if (first < last) {
      const int tiles = job.phase == 0 ? plan.expert_tiles[0] : plan.expert_tiles[1];
      job.slot = first / tiles;
      job.begin = first - job.slot * tiles;
      job.left = last - first;
      enter_tiles(plan, s, job);
      return;
    }
  }
}

__device__ inline void next_job(const Plan& plan, const Shared& s, Job& job) {
  job.pass += 1;
  if (job.pass < job.passes) {
    return;
  }
  job.left -= job.end - job.begin;
  job.begin = job.end;
  if (job.left > 0) {
    enter_tiles(plan, s, job);
  } else {
    job.phase += 1;
    enter_phase(plan, s, job);
  }
}

__device__ __forceinline__ int job_tokens(const Shared& s, const Job& job) {
  return min(s.begin[job.slot + 1] - s.begin[job.slot] - job.pass * kTileTokens, kTileTokens);
}

__device__ __forceinline__ int job_route(const Shared& s, const Job& job, int token) {
  return s.routes[s.begin[job.slot] + job.pass * kTileTokens + token];
}

// The tokens of an expert that are in shared memory together: those of a job's pass and, where
// there is room, of its neighbour, so that passes in turn need not bring them again.
struct TokenSet {
  int phase = -1, slot = -1, first = 0;
  __device__ __forceinline__ TokenSet() {}
  __device__ __forceinline__ TokenSet(const Job& job, int slots)
      : phase(job.phase), slot(job.slot), first(job.pass * kTileTokens / slots * slots) {}
  __device__ __forceinline__ bool operator==(const TokenSet& o) const {
    return phase == o.phase && slot == o.slot && first == o.first;
  }
};

// A stage of the ring and its parity, kept in step with the tiles.
struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  // `tiles` further, at most as many as there are stages.
  __device__ __forceinline__ void advance(int tiles, int stages) {
    stage += tiles;
    if (stage >= stages) {
      stage -= stages;
      parity ^= 1;
    }
  }
};

}  // namespace triax::width::sm90::decode
