// How the prefill of routed experts divides its work: the tiles of a grouped product, and the ring
// of stages in shared memory. Knows nothing of copies and products.
#pragma once

#include <cuda_runtime.h>

#include "width/latent_moe/moe_mxfp4_sm90.cuh"
#include "width/latent_moe/moe_prefill_sm90.h"

namespace triax::width::sm90::prefill {

constexpr int kMultiplyThreads = 384;
constexpr int kThreads = kMultiplyThreads + 128;
constexpr int kTileRows = kMultiplyThreads / 2;
constexpr int kTileBlocks = kTileRows / 16;  // of 16 rows, a warp's
constexpr int kTokensMax = 160;              // of one tile
constexpr int kStages = 4;
constexpr int kTokenBytes = kTokensMax * kGroupColumns * 2;
constexpr int kWeightBytes = kTileRows * kGroupColumns / 2;
constexpr int kScaleBytes = kTileRows * kGroupColumns / 32;
// A multiple of 1024, as the swizzle wants.
constexpr int kStageBytes = (kTokenBytes + kWeightBytes + kScaleBytes + 1023) / 1024 * 1024;
constexpr int kSharedBytes = kStages * kStageBytes + kTokensMax * 4 +
                             (static_cast<int>(kMoePrefillExpertsMax) + 1) * 4 + 1024 + 128;

enum class Pass { kGateUp, kDown };

constexpr uint32_t kNoRow = 0xFFFFFFFFu;

// One grouped product: rows of every expert's matrix by the tokens of its group.
struct Grouped {
  const uint8_t* const* data[2];  // gate and up; or down twice
  const uint8_t* const* scales[2];
  const __nv_bfloat16* in;  // [., cols], permuted by groups
  const int64_t* in_rows;   // row of `in` of a grouped row; null: itself
  const int64_t* offsets;   // [E + 1]
  int experts, rows, cols;  // rows: of one matrix
  Activation activation;
  __nv_bfloat16* hidden;  // kGateUp: [grouped rows, rows], permuted
  float* out;             // kDown: [grouped rows, rows]
};

struct Tile {
  int expert, slab, count;  // count: tokens
  int64_t first;            // grouped row of the first
};

struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void next() {
    stage += 1;
    if (stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

struct Shared {
  unsigned char* stages;
  uint32_t* rows;   // [kTokensMax]: rows of `in` of the tile being copied
  uint32_t* tiles;  // [E + 1]: first tile of each expert
  uint32_t full, empty;

  __device__ explicit Shared(unsigned char* base)
      : stages(base),
        rows(reinterpret_cast<uint32_t*>(base + kStages * kStageBytes)),
        tiles(rows + kTokensMax) {
    full = shared_address(tiles + kMoePrefillExpertsMax + 2) / 8 * 8;
    empty = full + 8 * kStages;
  }
};

template <Pass kPass>
__device__ inline int slabs_of(const Grouped& p) {
  return ((kPass == Pass::kGateUp ? 2 : 1) * p.rows + kTileRows - 1) / kTileRows;
}

__device__ inline int token_tiles(int64_t tokens) {
  return static_cast<int>((tokens + kTokensMax - 1) / kTokensMax);
}

// tiles[e] = tiles of experts before e.
template <Pass kPass>
__device__ inline void count_tiles(const Grouped& p, const Shared& s) {
  const int slabs = slabs_of<kPass>(p);
  for (int e = threadIdx.x; e < p.experts; e += kThreads) {
    s.tiles[e + 1] = slabs * token_tiles(p.offsets[e + 1] - p.offsets[e]);
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    const int share = (p.experts + 31) / 32;
    const int begin = min(p.experts, static_cast<int>(threadIdx.x) * share);
    const int end = min(p.experts, begin + share);
    uint32_t sum = 0;
    for (int e = begin; e < end; ++e) {
      sum += s.tiles[e + 1];
    }
    uint32_t prefix = sum;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const uint32_t other = __shfl_up_sync(~0u, prefix, d);
      prefix += threadIdx.x >= d ? other : 0;
    }
    prefix -= sum;
    for (int e = begin; e < end; ++e) {
      prefix += s.tiles[e + 1];
      s.tiles[e + 1] = prefix;
    }
    if (threadIdx.x == 0) {
      s.tiles[0] = 0;
    }
  }
  __syncthreads();
}

// The tile of an index, searched from expert `from` on. An expert's tokens are cut evenly; the
// tiles of one slab follow each other, so that its weights come from memory once.
__device__ inline Tile find_tile(const Grouped& p, const Shared& s, uint32_t index, int from) {
  Tile tile;
  tile.expert = from;
  while (index >= s.tiles[tile.expert + 1]) {
    tile.expert += 1;
  }
  const int64_t begin = p.offsets[tile.expert];
  const int tokens = static_cast<int>(p.offsets[tile.expert + 1] - begin);
  const int parts = token_tiles(tokens);
  const int local = static_cast<int>(index - s.tiles[tile.expert]);
  tile.slab = local / parts;
  const int size = ((tokens + parts - 1) / parts + 7) / 8 * 8;
  const int start = min(tokens, (local - tile.slab * parts) * size);
  tile.first = begin + start;
  tile.count = min(tokens - start, size);
  return tile;
}

}  // namespace triax::width::sm90::prefill
