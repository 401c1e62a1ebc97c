// Absorbed MLA decode for sm_90a: one CTA takes up to 96 rows (a row: a head of a new token) and
// one part of a sequence; a second kernel merges the parts.
#include <cuda.h>

#include "sequence/mla/mla_decode_sm90.cuh"
#include "sequence/mla/mla_decode_sm90.h"
#include "sequence/mla/mla_decode_sm90_narrow.cuh"
#include "sequence/mla/mla_decode_sm90_wide.cuh"

namespace triax::sequence {
namespace {

constexpr int kMergeThreads = 128;  // 4 latent columns each

/// Everything up to the first product; false: the CTA has nothing to do.
template <typename L, int kRows, int kSlots>
__device__ bool start(unsigned char* smem, uint32_t base, const CUtensorMap* q_map,
                      const CUtensorMap* pool_map, const DecodeParams& p) {
  Item& item = *reinterpret_cast<Item*>(smem + L::kItem);
  if (threadIdx.x == 0) {
    item = make_item<kRows>(p);
    if (item.blocks > 0) {
      init_barriers<L, kSlots>(base);
      start_loads<L, kSlots>(q_map, pool_map, base, item);
    }
  }
  if (threadIdx.x < kRows) {
    floats(smem, L::kReference)[threadIdx.x] = 0.0f;
  }
  __syncthreads();
  return item.blocks > 0;
}

__global__ void __launch_bounds__(kWideThreads, 1)
    mla_decode_wide(const __grid_constant__ CUtensorMap q_map,
                    const __grid_constant__ CUtensorMap pool_map,
                    const __grid_constant__ DecodeParams p) {
  extern __shared__ __align__(1024) unsigned char smem[];
  const uint32_t base = shared_address(smem);
  if (start<Wide, kWideRows, kWideSlots>(smem, base, &q_map, &pool_map, p)) {
    wide_attend(smem, base, &pool_map, p, *reinterpret_cast<const Item*>(smem + Wide::kItem));
  }
}

template <int kRows, int kSlots>
__global__ void __launch_bounds__(kNarrowThreads, 1)
    mla_decode_narrow(const __grid_constant__ CUtensorMap q_map,
                      const __grid_constant__ CUtensorMap pool_map,
                      const __grid_constant__ DecodeParams p) {
  using L = Layout<kRows, kSlots, 2>;
  extern __shared__ __align__(1024) unsigned char smem[];
  const uint32_t base = shared_address(smem);
  if (!start<L, kRows, kSlots>(smem, base, &q_map, &pool_map, p)) {
    return;
  }
  const Item& item = *reinterpret_cast<const Item*>(smem + L::kItem);
  const int group = static_cast<int>(threadIdx.x) / kGroup;
  if (group == 0) {  // 3 x 168 registers at the start: 88 + 2 x 208
    registers_shrink<88>();
    narrow_score_part<kRows, kSlots>(smem, base, &pool_map, p, item);
  } else {
    registers_grow<208>();
    narrow_sum_part<kRows, kSlots>(smem, base, &pool_map, p, item, group - 1);
  }
}

/// Merges a row's parts in their order; a CTA a row.
__global__ void __launch_bounds__(kMergeThreads)
    mla_decode_merge(const __grid_constant__ DecodeParams p) {
  const int64_t n = blockIdx.y;
  const int64_t begin = p.cu_seqlens[n];
  const int64_t count = p.cu_seqlens[n + 1] - begin;
  const int64_t length = p.starts[n] + count;
  const int64_t split_tokens = split_of(p, length);
  const int splits = static_cast<int>((length + split_tokens - 1) / split_tokens);
  if (count <= 0 || blockIdx.x >= count * p.heads || splits <= 1) {
    return;
  }
  const int64_t row = begin * p.heads + blockIdx.x;
  const float* lse = p.lse + row * p.splits_max;
  float top = kMinusInfinity;
  for (int s = 0; s < splits; ++s) {
    top = fmaxf(top, lse[s]);
  }
  const float4* part =
      reinterpret_cast<const float4*>(p.part) + row * p.splits_max * kMergeThreads + threadIdx.x;
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  float weights = 0.0f;
#pragma unroll 4
  for (int s = 0; s < splits; ++s) {
    const float w = exp2_fast(lse[s] - top);
    const float4 v = part[s * kMergeThreads];
    weights += w;
    sum = make_float4(fmaf(w, v.x, sum.x), fmaf(w, v.y, sum.y), fmaf(w, v.z, sum.z),
                      fmaf(w, v.w, sum.w));
  }
  const float f = 1.0f / weights;
  const int64_t to = row * kMergeThreads + threadIdx.x;
  if (p.out_float32 != 0) {
    static_cast<float4*>(p.out)[to] = make_float4(sum.x * f, sum.y * f, sum.z * f, sum.w * f);
  } else {
    static_cast<uint2*>(p.out)[to] =
        make_uint2(pack_bf16(sum.x * f, sum.y * f), pack_bf16(sum.z * f, sum.w * f));
  }
}

using Kernel = void (*)(CUtensorMap, CUtensorMap, DecodeParams);

cudaError_t launch_parts(Kernel kernel, int rows, int threads, uint32_t shared_bytes,
                         const MlaDecodeSm90& a, const DecodeParams& p, cudaStream_t stream) {
  CUtensorMap q_map;
  CUtensorMap pool_map;
  const int64_t width = kMlaSm90Width;
  cudaError_t error =
      encode_bf16_map(&q_map, a.q, {width, a.tokens * a.heads}, {width}, {64, rows});
  if (error == cudaSuccess) {
    error = encode_bf16_map(&pool_map, a.pool, {width, kPage, a.pages}, {width, a.page_stride},
                            {64, kPage, 1});
  }
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(shared_bytes));
  }
  if (error != cudaSuccess) {
    return error;
  }
  const int64_t groups = (a.tokens_max * a.heads + rows - 1) / rows;
  const dim3 grid(static_cast<unsigned>(groups), static_cast<unsigned>(p.splits_max),
                  static_cast<unsigned>(a.sequences));
  kernel<<<grid, static_cast<unsigned>(threads), shared_bytes, stream>>>(q_map, pool_map, p);
  return cudaGetLastError();
}

template <int kRows, int kSlots>
cudaError_t launch_narrow(const MlaDecodeSm90& a, const DecodeParams& p, cudaStream_t stream) {
  return launch_parts(mla_decode_narrow<kRows, kSlots>, kRows, kNarrowThreads,
                      Layout<kRows, kSlots, 2>::kBytes, a, p, stream);
}

/// Rows of a CTA: fewer when that many CTAs leave multiprocessors idle, or when the last group of
/// rows would be mostly empty. No result depends on it.
int choose_rows(const MlaDecodeSm90& a, int64_t splits_max) {
  if (a.rows > 0) {
    return a.rows;
  }
  constexpr int64_t kProcessors = 132;
  constexpr int kSizes[] = {96, 64, 32};
  constexpr int64_t kBlockCost[] = {36, 25, 22};  // of 64 tokens, relative
  int64_t best = 0;
  int rows = 0;
  for (int i = 0; i < 3; ++i) {
    const int64_t groups = (a.tokens_max * a.heads + kSizes[i] - 1) / kSizes[i];
    const int64_t waves = (groups * splits_max * a.sequences + kProcessors - 1) / kProcessors;
    if (rows == 0 || waves * kBlockCost[i] < best) {
      best = waves * kBlockCost[i];
      rows = kSizes[i];
    }
  }
  return rows;
}

DecodeParams make_params(const MlaDecodeSm90& a) {
  DecodeParams p = {};
  p.page_table = a.page_table;
  p.cu_seqlens = a.cu_seqlens;
  p.starts = a.starts;
  p.out = a.out;
  p.heads = a.heads;
  p.pages_max = a.pages_max;
  p.split_tokens = a.split_tokens;
  p.splits_max = mla_decode_splits_max(a.length_max, a.split_tokens);
  p.part = static_cast<float*>(a.scratch);
  p.lse = p.part + a.tokens * a.heads * p.splits_max * kMlaSm90Latent;
  p.scale_log2 = a.scale * 1.44269504088896340736f;
  p.out_float32 = a.out_float32;
  return p;
}

bool valid(const MlaDecodeSm90& a) {
  const auto aligned = [](const void* pointer) {
    return pointer != nullptr && reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
  };
  return (a.rows == 0 || a.rows == 96 || a.rows == 64 || a.rows == 32) && a.heads > 0 &&
         a.tokens > 0 && a.tokens_max > 0 && a.length_max > 0 && a.pages > 0 && a.sequences > 0 &&
         a.sequences < 65536 && a.split_tokens >= 0 && a.split_tokens % kPage == 0 &&
         a.page_stride % 8 == 0 && a.page_stride >= kPage * kMlaSm90Width && aligned(a.q) &&
         aligned(a.pool) && aligned(a.out) &&
         (aligned(a.scratch) || mla_decode_splits_max(a.length_max, a.split_tokens) == 1) &&
         mla_decode_splits_max(a.length_max, a.split_tokens) < 65536;
}

}  // namespace

extern "C" int64_t triax_cuda_mla_decode_sm90_scratch_bytes(int64_t tokens, int64_t heads,
                                                            int64_t length_max,
                                                            int64_t split_tokens) {
  const int64_t splits = mla_decode_splits_max(length_max, split_tokens);
  return splits <= 1 ? 0 : tokens * heads * splits * (kMlaSm90Latent + 1) * int64_t{4};
}

extern "C" int triax_cuda_mla_decode_sm90(const MlaDecodeSm90* args, void* stream) {
  const MlaDecodeSm90& a = *args;
  if (a.tokens == 0 || a.sequences == 0) {
    return cudaSuccess;
  }
  if (!valid(a)) {
    return cudaErrorInvalidValue;
  }
  const DecodeParams p = make_params(a);
  const auto queue = static_cast<cudaStream_t>(stream);
  cudaError_t error = cudaSuccess;
  switch (choose_rows(a, p.splits_max)) {
    case 96:
      error = launch_parts(mla_decode_wide, kWideRows, kWideThreads, Wide::kBytes, a, p, queue);
      break;
    case 64:
      error = launch_narrow<64, 14>(a, p, queue);
      break;
    default:
      error = launch_narrow<32, 20>(a, p, queue);
      break;
  }
  if (error == cudaSuccess && p.splits_max > 1) {
    const dim3 grid(static_cast<unsigned>(a.tokens_max * a.heads),
                    static_cast<unsigned>(a.sequences));
    mla_decode_merge<<<grid, kMergeThreads, 0, queue>>>(p);
    error = cudaGetLastError();
  }
  return error;
}

}  // namespace triax::sequence
