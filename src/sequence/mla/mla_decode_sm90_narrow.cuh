// Absorbed MLA decode of up to 64 rows a CTA. Registers suffice for roles: warpgroup 0 scores and
// makes weights, warpgroups 1 and 2 keep O^T, alternate tiles of 64 latent columns each.
#pragma once

#include "sequence/mla/mla_decode_sm90.cuh"

namespace triax::sequence {
namespace {

constexpr int kNarrowThreads = 3 * kGroup;

/// S^T of one block, in the order in which tiles arrive, waited for.
template <typename L, int kRows, int kSlots>
__device__ __forceinline__ void narrow_score(uint32_t base, int block, float (&s)[kRows / 2]) {
  int slot = block * kTiles % kSlots;
  uint32_t phase = block * kTiles / kSlots & 1;
#pragma unroll 1
  for (int c = 0; c < kTiles; ++c) {
    barrier_wait(base + L::kFull + slot * 8, phase);
    score_tile<L, kRows>(base + L::kRing + slot * kTileBytes, base + c * L::kQueryChunk, c, s);
    if (++slot == kSlots) {
      slot = 0;
      phase ^= 1;
    }
  }
  barrier_wait(base + L::kSharedFull, block & 1);
  score_tile<L, kRows>(base + L::kShared, base + kTiles * L::kQueryChunk, 1, s);
  wgmma_commit();
  wgmma_wait<0>();
  pin(s);
}

/// Waits until the weights of two blocks ago are done with. It comes before every arrival at the
/// full barrier of the same place: who waits there must not find it two phases ahead.
template <typename L>
__device__ __forceinline__ void narrow_wait_free(uint32_t base, int block) {
  if (block > 1) {
    barrier_wait(base + L::kWeightFree + (block & 1) * 8, (block / 2 - 1) & 1);
  }
}

/// Warpgroup 0.
template <int kRows, int kSlots>
__device__ void narrow_score_part(unsigned char* smem, uint32_t base, const CUtensorMap* pool_map,
                                  const DecodeParams& p, const Item& item) {
  using L = Layout<kRows, kSlots, 2>;
  const int t = threadIdx.x;
  float sum[kRows / 4] = {};
  barrier_wait(base + L::kQueryFull, 0);
#pragma unroll 1
  for (int i = 0; i < item.blocks; ++i) {
    const int odd = i & 1;
    float s[kRows / 2];
    narrow_score<L, kRows, kSlots>(base, i, s);
    const float top = relative_scores<L, kRows>(smem, p.scale_log2, item, 0, i, s);
    const bool raise = group_any(1, kGroup, i == 0 || top > kHeadroom);
    if (t == 0 && i + 1 < item.blocks) {
      load_tile(base + L::kShared, base + L::kSharedFull, pool_map, kTiles, item.pages[i + 1]);
    }
    narrow_wait_free<L>(base, i);
    if (raise) {
      raise_references<L, kRows, kRows>(smem, floats(smem, L::kFactor) + odd * kRows, 0, 1, i == 0,
                                        sum, s);
    }
    if (t < 2) {
      reinterpret_cast<int*>(smem + L::kRaised)[2 * odd + t] = raise && i > 0;
    }
    uint32_t weights[kRows / 4];
    make_weights<kRows>(s, sum, weights);
    store_weights<kRows>(base + L::kWeight + odd * L::kQueryChunk, weights);
    if ((i + 1) * kPage > item.tokens) {
      zero_tail<L, kSlots>(smem, i, item.tokens - i * kPage, kGroup);
    }
    fence_async_proxy();
    group_sync(1, kGroup);
    barrier_arrive(base + L::kWeightFull + odd * 8);
  }
  finish_sums<L, kRows, kRows>(smem, p, item, 0, 1, kGroup, sum);
  narrow_wait_free<L>(base, item.blocks);
  barrier_arrive(base + L::kWeightFull + (item.blocks & 1) * 8);
}

/// Warpgroups 1 and 2.
template <int kRows, int kSlots>
__device__ void narrow_sum_part(unsigned char* smem, uint32_t base, const CUtensorMap* pool_map,
                                const DecodeParams& p, const Item& item, int group) {
  using L = Layout<kRows, kSlots, 2>;
  const int t = threadIdx.x & (kGroup - 1);
  const int lane = t & 31;
  float o[4][kRows / 2];
#pragma unroll 1
  for (int i = 0; i < item.blocks; ++i) {
    const int odd = i & 1;
    barrier_wait(base + L::kWeightFull + odd * 8, i / 2 & 1);
    const int* raised = reinterpret_cast<const int*>(smem + L::kRaised) + 2 * odd;
    if (raised[0] != 0) {
      rescale<kRows>(floats(smem, L::kFactor) + odd * kRows, raised, lane, o);
    }
    sum_block<L, kRows, kSlots>(base, base + L::kWeight + odd * L::kQueryChunk, pool_map, item,
                                group, 2 + group, i, o);
    barrier_arrive(base + L::kWeightFree + odd * 8);
  }
  barrier_wait(base + L::kWeightFull + (item.blocks & 1) * 8, item.blocks / 2 & 1);
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    pin(o[m]);
  }
  group_sync(4, 2 * kGroup);  // both are done with tiles and weights
  stage_sums<kRows>(smem, floats(smem, L::kReduce), group * 64 + t / 32 * 16 + lane / 4, lane, o);
  group_sync(4, 2 * kGroup);
  store_rows(smem, p, item, static_cast<int>(threadIdx.x - kGroup) / 32, lane);
}

}  // namespace
}  // namespace triax::sequence
