// MLA prefill for sm_90a: a CTA takes 128 new tokens of one head. Warpgroup 0 brings tiles of 128
// keys and values through the copy engine, two ahead; warpgroups 1 and 2 take 64 tokens each and
// compute the scores of a tile while the weights of the one before are summed and exponentials run.
#include <cuda.h>

#include "sequence/mla/mla_prefill_sm90.h"
#include "sequence/mla/mla_sm90.cuh"

namespace triax::sequence {
namespace {

using namespace sm90;

constexpr int kTile = 128;  // new tokens of a CTA, and keys of a step
constexpr int kThreads = 384;
constexpr int kGroup = 128;
constexpr int kStages = 2;
constexpr int kHeads = 8;  // that CTAs of one time share: enough to balance, few enough for the L2
constexpr uint32_t kChunk = kTile * 128u;  // 128 rows of 64 columns
constexpr uint32_t kQueryBytes = 3 * kChunk;
constexpr uint32_t kKeyBytes = 3 * kChunk;
constexpr uint32_t kValueBytes = 2 * kChunk;
constexpr float kMinusInfinity = -__builtin_huge_valf();

// Shared memory of a CTA.
constexpr uint32_t kKeys = kQueryBytes;
constexpr uint32_t kValues = kKeys + kStages * kKeyBytes;
constexpr uint32_t kBarriers = kValues + kStages * kValueBytes;
constexpr uint32_t kQueryFull = kBarriers;
constexpr uint32_t kKeyFull = kQueryFull + 8;
constexpr uint32_t kValueFull = kKeyFull + kStages * 8;
constexpr uint32_t kKeyFree = kValueFull + kStages * 8;
constexpr uint32_t kValueFree = kKeyFree + kStages * 8;
constexpr uint32_t kSharedBytes = kValueFree + kStages * 8;

struct PrefillParams {
  const int64_t* cu_seqlens;
  const int64_t* kv_cu_seqlens;
  void* out;
  int64_t heads;
  float scale_log2;
  int out_float32;
};

struct Maps {
  CUtensorMap q, k_nope, shared, v;
};

/// What one CTA computes; 0 tiles: nothing.
struct Item {
  int64_t q_first;   // its first new token in q
  int64_t kv_first;  // its sequence's first token in the keys
  int head;
  int rows;      // its new tokens
  int position;  // of its first one in the sequence
  int keys;      // that its last one sees
  int tiles;
};

__device__ __forceinline__ Item make_item(const PrefillParams& p) {
  Item item = {};
  const int64_t n = blockIdx.z;
  const int64_t q_begin = p.cu_seqlens[n];
  const int64_t count = p.cu_seqlens[n + 1] - q_begin;
  // Later tokens see more keys: of some heads they go first, so that the last CTAs are short.
  const int tiles = gridDim.x / static_cast<int>(p.heads);
  const int chunk = blockIdx.x / (kHeads * tiles);
  const int rest = blockIdx.x % (kHeads * tiles);
  const int heads = min(kHeads, static_cast<int>(p.heads) - chunk * kHeads);
  const int64_t first = static_cast<int64_t>(tiles - 1 - rest / heads) * kTile;
  if (first >= count) {
    return item;
  }
  item.head = chunk * kHeads + rest % heads;
  item.kv_first = p.kv_cu_seqlens[n];
  const int64_t start = p.kv_cu_seqlens[n + 1] - item.kv_first - count;
  item.q_first = q_begin + first;
  item.rows = static_cast<int>(min(count - first, static_cast<int64_t>(kTile)));
  item.position = static_cast<int>(start + first);
  item.keys = item.position + item.rows;
  item.tiles = (item.keys + kTile - 1) / kTile;
  return item;
}

/// One thread: queries, then keys and values of every tile, the last first.
__device__ void load_tiles(uint32_t base, const Maps& maps, const Item& item) {
  const int head = item.head;
  barrier_arrive_expecting(base + kQueryFull, kQueryBytes);
  for (int c = 0; c < 3; ++c) {
    load_box(base + c * kChunk, &maps.q, base + kQueryFull, c * 64, head,
             static_cast<int>(item.q_first));
  }
#pragma unroll 1
  for (int i = 0; i < item.tiles; ++i) {
    const int stage = i % kStages;
    const int use = i / kStages;
    const int token = static_cast<int>(item.kv_first) + (item.tiles - 1 - i) * kTile;
    const uint32_t keys = base + kKeys + stage * kKeyBytes;
    const uint32_t values = base + kValues + stage * kValueBytes;
    if (use > 0) {
      barrier_wait(base + kKeyFree + stage * 8, (use - 1) & 1);
    }
    const uint32_t key_full = base + kKeyFull + stage * 8;
    barrier_arrive_expecting(key_full, kKeyBytes);
    load_box(keys, &maps.k_nope, key_full, 0, head, token);
    load_box(keys + kChunk, &maps.k_nope, key_full, 64, head, token);
    load_box(keys + 2 * kChunk, &maps.shared, key_full, 0, token);
    if (use > 0) {
      barrier_wait(base + kValueFree + stage * 8, (use - 1) & 1);
    }
    const uint32_t value_full = base + kValueFull + stage * 8;
    barrier_arrive_expecting(value_full, kValueBytes);
    load_box(values, &maps.v, value_full, 0, head, token);
    load_box(values + kChunk, &maps.v, value_full, 64, head, token);
  }
}

/// S = Q K^T of 64 rows and one tile: 12 products.
__device__ __forceinline__ void score_tile(uint32_t queries, uint32_t keys, float (&s)[64]) {
#pragma unroll
  for (int c = 0; c < 3; ++c) {
    const uint64_t a = matrix_descriptor(queries + c * kChunk);
    const uint64_t b = matrix_descriptor(keys + c * kChunk);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      wgmma_ss<0, 0>(s, a + 2 * k, b + 2 * k, c | k);
    }
  }
  wgmma_commit();
}

/// O += P V: 8 products, P from registers.
__device__ __forceinline__ void sum_tile(const uint32_t (&weights)[8][4], uint32_t values, int keep,
                                         float (&o)[64]) {
  const uint64_t b = matrix_descriptor(values, 1024, kChunk);
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    wgmma_rs<1>(o, weights[k], b + 128 * k, keep | k);
  }
  wgmma_commit();
}

/// Running maxima and sums of a thread's two rows.
struct Rows {
  float top[2];  // of raw scores
  float sum[2];  // of this thread's columns
};

/// Scores of keys that a row does not see become -infinity. `row` is the position of the thread's
/// first row, relative to the tile's first key.
__device__ __forceinline__ void mask_tile(int row, int lane, float (&s)[64]) {
#pragma unroll
  for (int j = 0; j < 16; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int key = 8 * j + 2 * (lane & 3) + i;
      s[4 * j + i] = key <= row ? s[4 * j + i] : kMinusInfinity;
      s[4 * j + 2 + i] = key <= row + 8 ? s[4 * j + 2 + i] : kMinusInfinity;
    }
  }
}

/// s becomes 2^(scale s - scale top), not yet rounded; `factor` is what earlier sums shrink by.
__device__ __forceinline__ void soft_tile(float scale_log2, Rows& rows, float (&factor)[2],
                                          float (&s)[64]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float top[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      top[j] = fmaxf(s[4 * j + 2 * i], s[4 * j + 2 * i + 1]);
    }
#pragma unroll
    for (int j = 4; j < 16; ++j) {
      top[j & 3] = fmaxf(top[j & 3], fmaxf(s[4 * j + 2 * i], s[4 * j + 2 * i + 1]));
    }
    float all = fmaxf(fmaxf(top[0], top[1]), fmaxf(top[2], top[3]));
    all = fmaxf(all, __shfl_xor_sync(0xFFFFFFFFu, all, 1));
    all = fmaxf(all, __shfl_xor_sync(0xFFFFFFFFu, all, 2));
    all = fmaxf(all, rows.top[i]);
    const float reference = all == kMinusInfinity ? 0.0f : all * scale_log2;
    factor[i] = exp2_fast(fmaf(rows.top[i], scale_log2, -reference));
    rows.top[i] = all;
    float sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int j = 0; j < 16; ++j) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        float& x = s[4 * j + 2 * i + k];
        x = exp2_fast(fmaf(x, scale_log2, -reference));
        sum[k] += x;
      }
    }
    rows.sum[i] = fmaf(rows.sum[i], factor[i], sum[0] + sum[1]);
  }
}

__device__ __forceinline__ void pack_weights(const float (&s)[64], uint32_t (&weights)[8][4]) {
#pragma unroll
  for (int k = 0; k < 8; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      weights[k][i] = pack_bf16(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
    }
  }
}

__device__ __forceinline__ void scale_rows(const float (&factor)[2], float (&o)[64]) {
#pragma unroll
  for (int j = 0; j < 16; ++j) {
    o[4 * j] *= factor[0];
    o[4 * j + 1] *= factor[0];
    o[4 * j + 2] *= factor[1];
    o[4 * j + 3] *= factor[1];
  }
}

/// Values after the last key that is seen become zeros: there a weight of 0 meets what may be NaN.
/// Both warpgroups write the same zeros, each before its own products.
__device__ void zero_tail(unsigned char* values, int valid, int group) {
  const int t = threadIdx.x & (kGroup - 1);
  for (int c = 0; c < 2; ++c) {
    for (int i = valid * 8 + t; i < kTile * 8; i += kGroup) {
      *reinterpret_cast<uint4*>(values + c * kChunk + i * 16) = make_uint4(0, 0, 0, 0);
    }
  }
  fence_async_proxy();
  group_sync(1 + group, kGroup);
}

__device__ void store_rows(const PrefillParams& p, const Item& item, int row, int lane,
                           const Rows& rows, const float (&o)[64]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float sum = rows.sum[i];
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
    const float f = 1.0f / sum;
    if (row + 8 * i < item.rows) {
      const int64_t to =
          ((item.q_first + row + 8 * i) * p.heads + item.head) * kMlaSm90Value + 2 * (lane & 3);
#pragma unroll
      for (int j = 0; j < 16; ++j) {
        const float a = o[4 * j + 2 * i] * f;
        const float b = o[4 * j + 2 * i + 1] * f;
        if (p.out_float32 != 0) {
          *reinterpret_cast<float2*>(static_cast<float*>(p.out) + to + 8 * j) = make_float2(a, b);
        } else {
          *reinterpret_cast<uint32_t*>(static_cast<__nv_bfloat16*>(p.out) + to + 8 * j) =
              pack_bf16(a, b);
        }
      }
    }
  }
}

/// The rows of the first values that lie behind the sequence's end, to zero: 0 times NaN is NaN.
__device__ __forceinline__ void clear_tail(unsigned char* smem, uint32_t base, const Item& item,
                                           int group) {
  if (item.keys % kTile != 0) {
    barrier_wait(base + kValueFull, 0);
    zero_tail(smem + kValues, item.keys % kTile, group);
  }
}

/// Warpgroups 1 and 2, 64 new tokens each.
template <bool kTurns>
__device__ void attend(unsigned char* smem, uint32_t base, const PrefillParams& p, const Item& item,
                       int group) {
  const int t = threadIdx.x & (kGroup - 1);
  const int lane = t & 31;
  const int row = group * 64 + (t >> 5) * 16 + (lane >> 2);
  const uint32_t queries = base + group * 64 * 128;
  const int last = item.tiles - 1;
  float s[64], o[64], factor[2];
  uint32_t weights[8][4];
  Rows rows = {{kMinusInfinity, kMinusInfinity}, {0.0f, 0.0f}};
  const auto soften = [&](int tile) {
    if (tile * kTile + kTile - 1 > item.position + group * 64) {
      mask_tile(item.position + row - tile * kTile, lane, s);
    }
    soft_tile(p.scale_log2, rows, factor, s);
  };
  barrier_wait(base + kQueryFull, 0);
  barrier_wait(base + kKeyFull, 0);
  wgmma_begin();
  score_tile(queries, base + kKeys, s);
  wgmma_wait<0>();
  pin(s);
  barrier_arrive(base + kKeyFree);
  soften(last);
  pack_weights(s, weights);
  clear_tail(smem, base, item, group);
#pragma unroll 1
  for (int i = 1; i < item.tiles; ++i) {
    const int stage = i % kStages;
    const int before = (i - 1) % kStages;
    barrier_wait(base + kKeyFull + stage * 8, (i / kStages) & 1);
    if (kTurns) {
      group_sync(3 + group, 2 * kGroup);
    }
    wgmma_begin();
    score_tile(queries, base + kKeys + stage * kKeyBytes, s);
    barrier_wait(base + kValueFull + before * 8, ((i - 1) / kStages) & 1);
    wgmma_begin();
    sum_tile(weights, base + kValues + before * kValueBytes, i - 1, o);
    if (kTurns) {
      group_arrive(4 - group, 2 * kGroup);
    }
    wgmma_wait<1>();
    pin(s);
    barrier_arrive(base + kKeyFree + stage * 8);
    soften(last - i);
    wgmma_wait<0>();
    pin(o);
    barrier_arrive(base + kValueFree + before * 8);
    scale_rows(factor, o);
    pack_weights(s, weights);
  }
  const int stage = last % kStages;
  barrier_wait(base + kValueFull + stage * 8, (last / kStages) & 1);
  wgmma_begin();
  sum_tile(weights, base + kValues + stage * kValueBytes, last, o);
  wgmma_wait<0>();
  pin(o);
  store_rows(p, item, row, lane, rows, o);
}

template <bool kTurns>
__global__ void __launch_bounds__(kThreads, 1)
    mla_prefill_tiles(const __grid_constant__ Maps maps, const __grid_constant__ PrefillParams p) {
  extern __shared__ __align__(1024) unsigned char smem[];
  const uint32_t base = shared_address(smem);
  const Item item = make_item(p);
  if (item.tiles == 0) {
    return;
  }
  const int t = threadIdx.x;
  if (t == 0) {
    barrier_init(base + kQueryFull, 1);
    for (int i = 0; i < kStages; ++i) {
      barrier_init(base + kKeyFull + i * 8, 1);
      barrier_init(base + kValueFull + i * 8, 1);
      barrier_init(base + kKeyFree + i * 8, 2 * kGroup);
      barrier_init(base + kValueFree + i * 8, 2 * kGroup);
    }
    barrier_init_done();
    fence_async_proxy();
  }
  __syncthreads();
  if (t < kGroup) {
    registers_shrink<24>();
    if (t == 0) {
      load_tiles(base, maps, item);
    }
  } else {
    registers_grow<240>();
    const int group = t / kGroup - 1;
    if (kTurns && group == 1) {
      group_arrive(3, 2 * kGroup);
    }
    attend<kTurns>(smem, base, p, item, group);
    if (kTurns && group == 0) {
      group_sync(3, 2 * kGroup);
    }
  }
}

bool valid(const MlaPrefillSm90& a) {
  const auto aligned = [](const void* pointer) {
    return pointer != nullptr && reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
  };
  return a.heads > 0 && a.heads < 65536 && a.tokens > 0 && a.kv_tokens >= a.tokens &&
         a.tokens_max > 0 && a.sequences > 0 && a.sequences < 65536 && a.kv_token % 8 == 0 &&
         a.kv_head % 8 == 0 && a.shared_token % 8 == 0 && aligned(a.q) && aligned(a.k_nope) &&
         aligned(a.shared) && aligned(a.v) && aligned(a.out);
}

cudaError_t encode_maps(const MlaPrefillSm90& a, Maps* maps) {
  const int64_t width = kMlaSm90Nope + 64;
  cudaError_t error = encode_bf16_map(&maps->q, a.q, {width, a.heads, a.tokens},
                                      {width, width * a.heads}, {64, 1, kTile});
  if (error == cudaSuccess) {
    error = encode_bf16_map(&maps->k_nope, a.k_nope, {kMlaSm90Nope, a.heads, a.kv_tokens},
                            {a.kv_head, a.kv_token}, {64, 1, kTile});
  }
  if (error == cudaSuccess) {
    error = encode_bf16_map(&maps->v, a.v, {kMlaSm90Value, a.heads, a.kv_tokens},
                            {a.kv_head, a.kv_token}, {64, 1, kTile});
  }
  if (error == cudaSuccess) {
    error =
        encode_bf16_map(&maps->shared, a.shared, {64, a.kv_tokens}, {a.shared_token}, {64, kTile});
  }
  return error;
}

template <bool kTurns>
cudaError_t launch_tiles(const MlaPrefillSm90& a, cudaStream_t stream) {
  Maps maps;
  cudaError_t error = encode_maps(a, &maps);
  const auto kernel = mla_prefill_tiles<kTurns>;
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(kSharedBytes));
  }
  if (error != cudaSuccess) {
    return error;
  }
  const PrefillParams p = {
      a.cu_seqlens, a.kv_cu_seqlens, a.out, a.heads, a.scale * 1.44269504088896340736f,
      a.out_float32};
  const dim3 grid(static_cast<unsigned>((a.tokens_max + kTile - 1) / kTile * a.heads), 1,
                  static_cast<unsigned>(a.sequences));
  kernel<<<grid, kThreads, kSharedBytes, stream>>>(maps, p);
  return cudaGetLastError();
}

}  // namespace

extern "C" int triax_cuda_mla_prefill_sm90(const MlaPrefillSm90* args, void* stream) {
  if (args->tokens == 0 || args->sequences == 0) {
    return cudaSuccess;
  }
  if (!valid(*args)) {
    return cudaErrorInvalidValue;
  }
  return launch_tiles<true>(*args, static_cast<cudaStream_t>(stream));
}

}  // namespace triax::sequence
