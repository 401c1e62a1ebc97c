// What the two kernels of absorbed MLA decode share. Both are transposed: S^T = C Q^T and
// O^T += C^T P^T, so that heads are the N of a wgmma and any multiple of 16 of them wastes nothing.
#pragma once

#include "sequence/mla/mla_decode_sm90.h"
#include "sequence/mla/mla_sm90.cuh"

namespace triax::sequence {
namespace {

using namespace sm90;

constexpr int kPage = 64;
constexpr int kTiles = 8;                      // of 64 latent columns
constexpr uint32_t kTileBytes = kPage * 128u;  // 64 tokens of 64 columns
constexpr int kGroup = 128;                    // threads of a warpgroup
constexpr uint32_t kRowBytes = 512 * 4 + 16;   // of a row of O as it is staged
// Weights are relative to a reference that is raised only when a score exceeds it by this much (in
// base 2): bf16 and float32 hold such weights as exactly as smaller ones.
constexpr float kHeadroom = 48.0f;
constexpr float kMinusInfinity = -__builtin_huge_valf();

struct DecodeParams {
  const int32_t* page_table;
  const int64_t* cu_seqlens;
  const int64_t* starts;
  void* out;
  float* part;  // [tokens * heads, splits_max, 512]
  float* lse;   // [tokens * heads, splits_max], base 2
  int64_t heads;
  int64_t pages_max;
  int64_t split_tokens;
  int64_t splits_max;
  float scale_log2;
  int out_float32;
};

__device__ __forceinline__ int64_t split_of(const DecodeParams& p, int64_t length) {
  if (p.split_tokens > 0) {
    return p.split_tokens;
  }
  return length <= kMlaLengthShort    ? kMlaSplitShort
         : length <= kMlaLengthMiddle ? kMlaSplitMiddle
                                      : kMlaSplitLong;
}

/// What one CTA computes; kept in shared memory, as registers are short.
struct Item {
  const int32_t* pages;  // of its first block
  int64_t first_row;     // among all rows of the call
  int rows;              // of its sequence that it takes, up to kRows
  int row;               // its first row within the sequence
  int blocks;            // of 64 tokens; 0: there is nothing to do
  int tokens;            // of its part
  int visible_first;     // tokens from the part's first that the sequence's first new token sees
  int split;
  int splits;  // of the sequence
  int heads;
};

template <int kRows>
__device__ Item make_item(const DecodeParams& p) {
  Item item = {};
  const int64_t n = blockIdx.z;
  const int64_t begin = p.cu_seqlens[n];
  const int64_t count = p.cu_seqlens[n + 1] - begin;
  const int64_t length = p.starts[n] + count;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRows;
  const int64_t split_tokens = split_of(p, length);
  const int64_t first = blockIdx.y * split_tokens;
  if (count <= 0 || row >= count * p.heads || first >= length) {
    return item;
  }
  const int64_t end = min(first + split_tokens, length);
  item.pages = p.page_table + n * p.pages_max + first / kPage;
  item.first_row = begin * p.heads + row;
  item.rows = static_cast<int>(min(count * p.heads - row, static_cast<int64_t>(kRows)));
  item.row = static_cast<int>(row);
  item.tokens = static_cast<int>(end - first);
  item.blocks = (item.tokens + kPage - 1) / kPage;
  item.visible_first = static_cast<int>(min(p.starts[n] + 1 - first, int64_t{1} << 30));
  item.heads = static_cast<int>(p.heads);
  item.split = static_cast<int>(blockIdx.y);
  item.splits = static_cast<int>((length + split_tokens - 1) / split_tokens);
  return item;
}

/// Shared memory of a CTA: queries, a ring of latent tiles, a tile of shared features, weights of
/// kWeights blocks.
template <int kRows, int kSlots, int kWeights>
struct Layout {
  static constexpr uint32_t kQueryChunk = kRows * 128u;
  static constexpr uint32_t kRing = 9 * kQueryChunk;
  static constexpr uint32_t kShared = kRing + kSlots * kTileBytes;
  static constexpr uint32_t kWeight = kShared + kTileBytes;
  static constexpr uint32_t kReference = kWeight + kWeights * kQueryChunk;  // [rows]
  static constexpr uint32_t kReduce = kReference + kRows * 4;               // [4 warps, rows]
  static constexpr uint32_t kFactor = kReduce + 4 * kRows * 4;  // [2, rows], by a block's parity
  static constexpr uint32_t kRaised = kFactor + 2 * kRows * 4;  // [2, 2 halves of the rows]
  static constexpr uint32_t kItem = kRaised + 16;
  static constexpr uint32_t kFull = kItem + sizeof(Item);  // [slots] a tile has arrived
  static constexpr uint32_t kSharedFull = kFull + kSlots * 8;
  static constexpr uint32_t kQueryFull = kSharedFull + 8;
  static constexpr uint32_t kWeightFull = kQueryFull + 8;    // [2], by a block's parity
  static constexpr uint32_t kWeightFree = kWeightFull + 16;  // [2]
  static constexpr uint32_t kBytes = kWeightFree + 16;
  static_assert(sizeof(Item) % 8 == 0 && kRows * kRowBytes <= kShared && kBytes <= 232448);
  static_assert(kSlots % 2 == 0 && kSlots >= kTiles);
};

template <typename L, int kSlots>
__device__ void init_barriers(uint32_t base) {
  for (int i = 0; i < kSlots; ++i) {
    barrier_init(base + L::kFull + i * 8, 1);
  }
  barrier_init(base + L::kSharedFull, 1);
  barrier_init(base + L::kQueryFull, 1);
  for (int i = 0; i < 2; ++i) {
    barrier_init(base + L::kWeightFull + i * 8, kGroup);
    barrier_init(base + L::kWeightFree + i * 8, 2 * kGroup);
  }
  barrier_init_done();
}

__device__ __forceinline__ float* floats(unsigned char* smem, uint32_t offset) {
  return reinterpret_cast<float*>(smem + offset);
}

/// Loads a tile of a page; one thread.
__device__ __forceinline__ void load_tile(uint32_t to, uint32_t full, const CUtensorMap* map,
                                          int tile, int page) {
  barrier_arrive_expecting(full, kTileBytes);
  load_box(to, map, full, tile * 64, 0, page);
}

/// What is loaded before the first product; one thread.
template <typename L, int kSlots>
__device__ void start_loads(const CUtensorMap* q_map, const CUtensorMap* pool_map, uint32_t base,
                            const Item& item) {
  barrier_arrive_expecting(base + L::kQueryFull, 9 * L::kQueryChunk);
  for (int c = 0; c < 9; ++c) {
    load_box(base + c * L::kQueryChunk, q_map, base + L::kQueryFull, c * 64,
             static_cast<int>(item.first_row));
  }
  for (int k = 0; k < kSlots && k / kTiles < item.blocks; ++k) {
    load_tile(base + L::kRing + k * kTileBytes, base + L::kFull + k * 8, pool_map, k % kTiles,
              item.pages[k / kTiles]);
  }
  load_tile(base + L::kShared, base + L::kSharedFull, pool_map, kTiles, item.pages[0]);
}

/// S^T += C Q^T for one tile of latents, 64 columns.
template <typename L, int kPart>
__device__ __forceinline__ void score_tile(uint32_t tile, uint32_t queries, int keep,
                                           float (&s)[kPart / 2]) {
  const uint64_t a = matrix_descriptor(tile);
  const uint64_t b = matrix_descriptor(queries);
  wgmma_begin();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    wgmma_ss<0, 0>(s, a + 2 * k, b + 2 * k, keep | k);
  }
}

/// Scores that a row does not see become -infinity. `row` is the thread's first within the CTA,
/// `token` its first within the part.
template <int kPart>
__device__ __forceinline__ void mask_block(const Item& item, int row, int token,
                                           float (&s)[kPart / 2]) {
#pragma unroll
  for (int j = 0; j < kPart / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int of_sequence = item.row + row + 8 * j + i;
      const int limit = min(item.visible_first + of_sequence / item.heads, item.tokens);
      s[4 * j + i] = token < limit ? s[4 * j + i] : kMinusInfinity;
      s[4 * j + 2 + i] = token + 8 < limit ? s[4 * j + 2 + i] : kMinusInfinity;
    }
  }
}

/// Scores in base 2 relative to their rows' references, masked; returns the thread's largest.
template <typename L, int kPart>
__device__ __forceinline__ float relative_scores(unsigned char* smem, float scale_log2,
                                                 const Item& item, int first, int block,
                                                 float (&s)[kPart / 2]) {
  const int t = threadIdx.x & (kGroup - 1);
  const int lane = t & 31;
  const float* reference = floats(smem, L::kReference) + first + 2 * (lane & 3);
#pragma unroll
  for (int j = 0; j < kPart / 8; ++j) {
    const float2 r = *reinterpret_cast<const float2*>(reference + 8 * j);
    s[4 * j] = fmaf(s[4 * j], scale_log2, -r.x);
    s[4 * j + 1] = fmaf(s[4 * j + 1], scale_log2, -r.y);
    s[4 * j + 2] = fmaf(s[4 * j + 2], scale_log2, -r.x);
    s[4 * j + 3] = fmaf(s[4 * j + 3], scale_log2, -r.y);
  }
  if ((block + 1) * kPage > min(item.visible_first, item.tokens)) {
    mask_block<kPart>(item, first + 2 * (lane & 3), block * kPage + (t >> 5) * 16 + (lane >> 2), s);
  }
  float top[2] = {s[0], s[1]};
#pragma unroll
  for (int j = 2; j < kPart / 2; ++j) {
    top[j & 1] = fmaxf(top[j & 1], s[j]);
  }
  return fmaxf(top[0], top[1]);
}

/// Raises the references of rows whose scores exceed them too far (in a part's first block: of
/// all), by whole numbers, so that factors are powers of 2 and no score is rounded again. The rows
/// are the warpgroup's kPart from `first` on; `factor` is that of row 0.
template <typename L, int kRows, int kPart>
__device__ __forceinline__ void raise_references(unsigned char* smem, float* factor, int first,
                                                 int barrier, bool start, float (&sum)[kPart / 4],
                                                 float (&s)[kPart / 2]) {
  const int t = threadIdx.x & (kGroup - 1);
  const int column = first + 2 * (t & 3);
  float* reduce = floats(smem, L::kReduce);
#pragma unroll
  for (int j = 0; j < kPart / 8; ++j) {
    float a = fmaxf(s[4 * j], s[4 * j + 2]);
    float b = fmaxf(s[4 * j + 1], s[4 * j + 3]);
#pragma unroll
    for (int o = 4; o < 32; o *= 2) {
      a = fmaxf(a, __shfl_xor_sync(0xFFFFFFFFu, a, o));
      b = fmaxf(b, __shfl_xor_sync(0xFFFFFFFFu, b, o));
    }
    if ((t & 31) < 4) {
      *reinterpret_cast<float2*>(reduce + (t >> 5) * kRows + column + 8 * j) = make_float2(a, b);
    }
  }
  group_sync(barrier, kGroup);
  if (t < kPart) {
    const int row = first + t;
    const float top = fmaxf(fmaxf(reduce[row], reduce[kRows + row]),
                            fmaxf(reduce[2 * kRows + row], reduce[3 * kRows + row]));
    const bool raise = start ? top > kMinusInfinity : top > kHeadroom;
    const float by = raise ? ceilf(top) : 0.0f;
    floats(smem, L::kReference)[row] += by;
    factor[row] = exp2_fast(-by);
    reduce[row] = by;
  }
  group_sync(barrier, kGroup);
#pragma unroll
  for (int j = 0; j < kPart / 8; ++j) {
    const float2 by = *reinterpret_cast<const float2*>(reduce + column + 8 * j);
    const float2 f = *reinterpret_cast<const float2*>(factor + column + 8 * j);
    s[4 * j] -= by.x;
    s[4 * j + 1] -= by.y;
    s[4 * j + 2] -= by.x;
    s[4 * j + 3] -= by.y;
    sum[2 * j] *= start ? 1.0f : f.x;
    sum[2 * j + 1] *= start ? 1.0f : f.y;
  }
}

/// 2^x rounded to bf16, in pairs of rows, and their sums over the thread's tokens.
template <int kPart>
__device__ __forceinline__ void make_weights(const float (&s)[kPart / 2], float (&sum)[kPart / 4],
                                             uint32_t (&weights)[kPart / 4]) {
#pragma unroll
  for (int j = 0; j < kPart / 4; ++j) {
    weights[j] = pack_bf16(exp2_fast(s[2 * j]), exp2_fast(s[2 * j + 1]));
    sum[j & ~1] += __uint_as_float(weights[j] << 16);
    sum[j | 1] += __uint_as_float(weights[j] & 0xFFFF0000u);
  }
}

/// P^T as rows of 64 tokens: the B of the second product.
template <int kPart>
__device__ __forceinline__ void store_weights(uint32_t to, const uint32_t (&weights)[kPart / 4]) {
  const int t = threadIdx.x & (kGroup - 1);
  const int lane = t & 31;
  const uint32_t row = (lane & 7) + (lane >> 4) * 8;
  const uint32_t unit = (t >> 5) * 2 + ((lane >> 3) & 1);
  to += row * 128 + ((unit ^ (lane & 7)) << 4);
#pragma unroll
  for (int j = 0; j < kPart / 16; ++j) {
    store_matrices_transposed(to + j * 16 * 128, weights[4 * j], weights[4 * j + 1],
                              weights[4 * j + 2], weights[4 * j + 3]);
  }
}

/// Rows of the last page after the sequence's end become zeros: there a weight of 0 meets what may
/// be NaN.
template <typename L, int kSlots>
__device__ void zero_tail(unsigned char* smem, int block, int valid, int threads) {
  for (int c = 0; c < kTiles; ++c) {
    unsigned char* tile = smem + L::kRing + (block * kTiles + c) % kSlots * kTileBytes;
    for (int i = valid * 8 + static_cast<int>(threadIdx.x); i < kPage * 8; i += threads) {
      *reinterpret_cast<uint4*>(tile + i * 16) = make_uint4(0, 0, 0, 0);
    }
  }
}

/// 1 / sum of each row, and the part's log-sum-exp. A warpgroup has kPart rows from `first` on;
/// `threads`, the CTA's first, have all.
template <typename L, int kRows, int kPart>
__device__ void finish_sums(unsigned char* smem, const DecodeParams& p, const Item& item, int first,
                            int barrier, int threads, float (&sum)[kPart / 4]) {
  const int t = threadIdx.x & (kGroup - 1);
  float* reduce = floats(smem, L::kReduce);
#pragma unroll
  for (int j = 0; j < kPart / 4; ++j) {
#pragma unroll
    for (int o = 4; o < 32; o *= 2) {
      sum[j] += __shfl_xor_sync(0xFFFFFFFFu, sum[j], o);
    }
    if ((t & 31) < 4) {
      reduce[(t >> 5) * kRows + first + 8 * (j / 2) + 2 * (t & 3) + j % 2] = sum[j];
    }
  }
  group_sync(barrier, threads);
  const int row = threadIdx.x;
  if (row < kRows) {
    const float all =
        (reduce[row] + reduce[kRows + row]) + (reduce[2 * kRows + row] + reduce[3 * kRows + row]);
    reduce[row] = all > 0.0f ? 1.0f / all : 0.0f;
    if (item.splits > 1 && row < item.rows) {
      p.lse[(item.first_row + row) * p.splits_max + item.split] =
          all > 0.0f ? floats(smem, L::kReference)[row] + log2f(all) : kMinusInfinity;
    }
  }
  group_sync(barrier, threads);
}

/// Multiplies the columns of O^T whose warpgroup raised references by their factors.
template <int kRows>
__device__ __forceinline__ void rescale(const float* factor, const int* raised, int lane,
                                        float (&o)[4][kRows / 2]) {
#pragma unroll
  for (int j = 0; j < kRows / 8; ++j) {
    if (raised[8 * j / (kRows / 2)] == 0) {
      continue;
    }
    const float2 f = *reinterpret_cast<const float2*>(factor + 8 * j + 2 * (lane & 3));
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      o[m][4 * j] *= f.x;
      o[m][4 * j + 1] *= f.y;
      o[m][4 * j + 2] *= f.x;
      o[m][4 * j + 3] *= f.y;
    }
  }
}

/// O^T / sum as rows in shared memory, where queries and tiles were. The thread's columns are
/// `column`, `column` + 8 and those 128, 256 and 384 further; rows kRowBytes apart are free of bank
/// conflicts.
template <int kRows>
__device__ __forceinline__ void stage_sums(unsigned char* smem, const float* inverse, int column,
                                           int lane, const float (&o)[4][kRows / 2]) {
  unsigned char* to = smem + 2 * (lane & 3) * kRowBytes + column * 4;
  inverse += 2 * (lane & 3);
#pragma unroll
  for (int j = 0; j < kRows / 8; ++j) {
    const float2 f = *reinterpret_cast<const float2*>(inverse + 8 * j);
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      float* even = reinterpret_cast<float*>(to + 8 * j * kRowBytes + m * 512);
      float* odd = reinterpret_cast<float*>(to + (8 * j + 1) * kRowBytes + m * 512);
      even[0] = o[m][4 * j] * f.x;
      odd[0] = o[m][4 * j + 1] * f.y;
      even[8] = o[m][4 * j + 2] * f.x;
      odd[8] = o[m][4 * j + 3] * f.y;
    }
    asm volatile("" ::: "memory");  // a few rows at a time: registers are short
  }
}

/// Staged rows to the result, or to the part's place when there are several; a warp a row.
__device__ void store_rows(const unsigned char* smem, const DecodeParams& p, const Item& item,
                           int warp, int lane) {
  for (int row = warp; row < item.rows; row += 8) {
    const int64_t to = item.first_row + row;
    const float4* from = reinterpret_cast<const float4*>(smem + row * kRowBytes) + lane;
    float4* part = reinterpret_cast<float4*>(p.part) + (to * p.splits_max + item.split) * 128;
    float4* out = item.splits > 1 ? part : static_cast<float4*>(p.out) + to * 128;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 v = from[32 * i];
      if (item.splits > 1 || p.out_float32 != 0) {
        out[32 * i + lane] = v;
      } else {
        static_cast<uint2*>(p.out)[to * 128 + 32 * i + lane] =
            make_uint2(pack_bf16(v.x, v.y), pack_bf16(v.z, v.w));
      }
    }
  }
}

/// O^T += C^T P^T for one block, every second tile of 64 latent columns: `group` 0 even ones, 1 odd
/// ones. Whoever has used a tile loads what comes next into its place.
template <typename L, int kRows, int kSlots>
__device__ __forceinline__ void sum_block(uint32_t base, uint32_t weights,
                                          const CUtensorMap* pool_map, const Item& item, int group,
                                          int barrier, int block, float (&o)[4][kRows / 2]) {
  const uint64_t b = matrix_descriptor(weights);
  const auto reload = [&](int m) {
    group_sync(barrier, kGroup);
    const int tile = block * kTiles + 2 * m + group;
    const int next = tile + kSlots;
    if ((threadIdx.x & (kGroup - 1)) == 0 && next / kTiles < item.blocks) {
      const int slot = tile % kSlots;
      load_tile(base + L::kRing + slot * kTileBytes, base + L::kFull + slot * 8, pool_map,
                next % kTiles, __ldg(item.pages + next / kTiles));
    }
  };
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    const int slot = (block * kTiles + 2 * m + group) % kSlots;
    const uint64_t a = matrix_descriptor(base + L::kRing + slot * kTileBytes);
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      wgmma_ss<1, 0>(o[m], a + 128 * k, b + 2 * k, block | k);
    }
    wgmma_commit();
    if (m > 1) {  // two tiles stay under way
      wgmma_wait<2>();
      reload(m - 2);
    }
  }
  wgmma_wait<1>();
  reload(2);
  wgmma_wait<0>();
  reload(3);
}

}  // namespace
}  // namespace triax::sequence
