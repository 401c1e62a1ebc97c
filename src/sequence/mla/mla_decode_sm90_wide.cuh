// Absorbed MLA decode of up to 96 rows a CTA. O^T takes 192 registers of each thread of two
// warpgroups, so both do everything: each scores half of the rows and sums half of the columns.
#pragma once

#include "sequence/mla/mla_decode_sm90.cuh"

namespace triax::sequence {
namespace {

constexpr int kWideRows = 96;
constexpr int kWideSlots = 12;  // a block and a half
constexpr int kWideThreads = 2 * kGroup;
constexpr int kWideHalf = kWideRows / 2;
using Wide = Layout<kWideRows, kWideSlots, 1>;

/// S^T of the warpgroup's rows: 4 tiles of a block, first or last. Tiles come and go in fours.
template <int kFirst>
__device__ __forceinline__ void wide_score_four(uint32_t base, uint32_t queries, int block,
                                                float (&s)[kWideHalf / 2]) {
  const int four = 2 * block + kFirst / 4;
  const int place = four % (kWideSlots / 4);
  const uint32_t tiles =
      __shfl_sync(0xFFFFFFFFu, base + Wide::kRing + place * 4 * kTileBytes, 0);  // one for the warp
  const uint32_t full = base + Wide::kFull + place * 32;
  const uint32_t phase = four / (kWideSlots / 4) & 1;
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    barrier_wait(full + c * 8, phase);
    score_tile<Wide, kWideHalf>(tiles + c * kTileBytes, queries + (kFirst + c) * Wide::kQueryChunk,
                                kFirst | c, s);
  }
}

/// The rest of a block's scores, waited for.
__device__ __forceinline__ void wide_score_rest(uint32_t base, uint32_t queries, int block,
                                                float (&s)[kWideHalf / 2]) {
  wide_score_four<4>(base, queries, block, s);
  barrier_wait(base + Wide::kSharedFull, block & 1);
  score_tile<Wide, kWideHalf>(base + Wide::kShared, queries + kTiles * Wide::kQueryChunk, 1, s);
  wgmma_commit();
  wgmma_wait<0>();
  pin(s);
}

/// From the scores of the warpgroup's rows to weights in shared memory that both may use.
__device__ __forceinline__ void wide_make_block(unsigned char* smem, uint32_t base,
                                                const CUtensorMap* pool_map, float scale_log2,
                                                const Item& item, int group, int block,
                                                float (&sum)[kWideHalf / 4],
                                                float (&s)[kWideHalf / 2]) {
  const int first = group * kWideHalf;
  const float top = relative_scores<Wide, kWideHalf>(smem, scale_log2, item, first, block, s);
  const bool raise = group_any(1 + group, kGroup, block == 0 || top > kHeadroom);
  if (raise) {
    raise_references<Wide, kWideRows, kWideHalf>(
        smem, floats(smem, Wide::kFactor) + (block & 1) * kWideRows, first, 1 + group, block == 0,
        sum, s);
  }
  if ((threadIdx.x & (kGroup - 1)) == 0) {
    reinterpret_cast<int*>(smem + Wide::kRaised)[2 * (block & 1) + group] = raise && block > 0;
  }
  uint32_t weights[kWideHalf / 4];
  make_weights<kWideHalf>(s, sum, weights);
  group_sync(3, kWideThreads);  // nobody needs the last weights nor this block's shared features
  if (threadIdx.x == 0 && block + 1 < item.blocks) {
    load_tile(base + Wide::kShared, base + Wide::kSharedFull, pool_map, kTiles,
              item.pages[block + 1]);
  }
  store_weights<kWideHalf>(base + Wide::kWeight + first * 128, weights);
  if ((block + 1) * kPage > item.tokens) {
    zero_tail<Wide, kWideSlots>(smem, block, item.tokens - block * kPage, kWideThreads);
  }
  fence_async_proxy();
  group_sync(3, kWideThreads);
}

/// A part of a sequence. Scores of the next block begin before the sums of this one, as far as its
/// tiles have arrived.
__device__ __forceinline__ void wide_attend(unsigned char* smem, uint32_t base,
                                            const CUtensorMap* pool_map, const DecodeParams& p,
                                            const Item& item) {
  const int group = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / kGroup, 0);
  const int lane = threadIdx.x & 31;
  const uint32_t queries = base + group * kWideHalf * 128;
  float o[4][kWideRows / 2];
  float s[kWideHalf / 2];
  float sum[kWideHalf / 4] = {};
  barrier_wait(base + Wide::kQueryFull, 0);
  wide_score_four<0>(base, queries, 0, s);
  wide_score_rest(base, queries, 0, s);
  wide_make_block(smem, base, pool_map, p.scale_log2, item, group, 0, sum, s);
#pragma unroll 1
  for (int i = 0; i < item.blocks; ++i) {
    const bool more = i + 1 < item.blocks;
    const int* raised = reinterpret_cast<const int*>(smem + Wide::kRaised) + 2 * (i & 1);
    if ((raised[0] | raised[1]) != 0) {
      rescale<kWideRows>(floats(smem, Wide::kFactor) + (i & 1) * kWideRows, raised, lane, o);
    }
    if (more) {
      wide_score_four<0>(base, queries, i + 1, s);
      wgmma_commit();
    }
    sum_block<Wide, kWideRows, kWideSlots>(base, base + Wide::kWeight, pool_map, item, group,
                                           1 + group, i, o);
    if (more) {
      wide_score_rest(base, queries, i + 1, s);
      wide_make_block(smem, base, pool_map, p.scale_log2, item, group, i + 1, sum, s);
    }
  }
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    pin(o[m]);
  }
  finish_sums<Wide, kWideRows, kWideHalf>(smem, p, item, group * kWideHalf, 3, kWideThreads, sum);
  const int column = group * 64 + static_cast<int>(threadIdx.x & (kGroup - 1)) / 32 * 16 + lane / 4;
  stage_sums<kWideRows>(smem, floats(smem, Wide::kReduce), column, lane, o);
  group_sync(3, kWideThreads);
  store_rows(smem, p, item, static_cast<int>(threadIdx.x) / 32, lane);
}

}  // namespace
}  // namespace triax::sequence
