// The products around absorbed attention for few tokens: a block reads one head's weights once for
// all of them, everything that a thread needs of them asked for at once.
#include <cuda_bf16.h>

#include "device/cuda/block.cuh"
#include "sequence/mla/mla_absorb_cuda.h"

namespace triax::sequence {
namespace {

constexpr int kThreads = 512;
constexpr int kNope = 128;
constexpr int kShared = 64;
constexpr int kLatent = 512;
constexpr int kValue = 128;
constexpr int kHalves = 2;  // blocks of a head
constexpr int kTokens = kMlaAbsorbTokensMax;

__device__ float rounded(float x) { return __bfloat162float(__float2bfloat16(x)); }

__device__ const __nv_bfloat16* head_weights(const MlaAbsorbCuda& args, int64_t head) {
  return static_cast<const __nv_bfloat16*>(args.kv_b) + head * (kNope + kValue) * kLatent;
}

/// A thread has two latent columns and a quarter of the summed ones.
__global__ void __launch_bounds__(kThreads) absorb_queries(MlaAbsorbCuda args) {
  constexpr int kColumns = kLatent / kHalves;
  constexpr int kQuarters = kThreads / (kColumns / 2);
  constexpr int kSummed = kNope / kQuarters;
  __shared__ float q[kTokens][kNope];
  __shared__ float sums[kQuarters][kTokens][kColumns];
  const int64_t head = blockIdx.x;
  const int half = static_cast<int>(blockIdx.y);
  const int tokens = static_cast<int>(args.tokens);
  const int quarter = static_cast<int>(threadIdx.x) / (kColumns / 2);
  const int column = 2 * (static_cast<int>(threadIdx.x) % (kColumns / 2));
  const __nv_bfloat16* from = head_weights(args, head) +
                              static_cast<int64_t>(quarter * kSummed) * kLatent + half * kColumns +
                              column;
  __nv_bfloat162 weights[kSummed];
#pragma unroll
  for (int c = 0; c < kSummed; ++c) {
    weights[c] = *reinterpret_cast<const __nv_bfloat162*>(from + c * kLatent);
  }
  const auto* queries = static_cast<const float*>(args.q) + head * args.q_head;
  auto* out = static_cast<__nv_bfloat16*>(args.latent_q) + head * (kLatent + kShared);
  const int64_t out_token = args.heads * (kLatent + kShared);
  for (int i = threadIdx.x; i < tokens * kNope; i += kThreads) {
    q[i / kNope][i % kNope] = rounded(queries[i / kNope * args.q_token + i % kNope]);
  }
  for (int i = threadIdx.x; half == 0 && i < tokens * kShared; i += kThreads) {
    const int t = i / kShared;
    out[t * out_token + kLatent + i % kShared] =
        __float2bfloat16(queries[t * args.q_token + kNope + i % kShared]);
  }
  __syncthreads();
  for (int t = 0; t < tokens; ++t) {
    float2 sum = {0.0f, 0.0f};
#pragma unroll
    for (int c = 0; c < kSummed; ++c) {
      const float2 w = __bfloat1622float2(weights[c]);
      const float x = q[t][quarter * kSummed + c];
      sum = {fmaf(x, w.x, sum.x), fmaf(x, w.y, sum.y)};
    }
    *reinterpret_cast<float2*>(&sums[quarter][t][column]) = sum;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < tokens * kColumns; i += kThreads) {
    const int t = i / kColumns;
    const int c = i % kColumns;
    const float sum = (sums[0][t][c] + sums[1][t][c]) + (sums[2][t][c] + sums[3][t][c]);
    out[t * out_token + half * kColumns + c] = __float2bfloat16(sum);
  }
}

/// Eight bf16 products.
__device__ float dot8(const uint4& a, const uint4& b, float sum) {
  const auto* x = reinterpret_cast<const __nv_bfloat162*>(&a);
  const auto* y = reinterpret_cast<const __nv_bfloat162*>(&b);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 u = __bfloat1622float2(x[i]);
    const float2 v = __bfloat1622float2(y[i]);
    sum = fmaf(u.y, v.y, fmaf(u.x, v.x, sum));
  }
  return sum;
}

/// A warp has four values of a head, a lane 16 of the summed columns.
__global__ void __launch_bounds__(kThreads) expand_values(MlaAbsorbCuda args) {
  constexpr int kWarps = kThreads / cuda::kWarp;
  constexpr int kRows = kValue / kHalves / kWarps;
  const int64_t head = blockIdx.x;
  const int lane = static_cast<int>(threadIdx.x) % cuda::kWarp;
  const int row = static_cast<int>(blockIdx.y) * (kValue / kHalves) +
                  static_cast<int>(threadIdx.x) / cuda::kWarp * kRows;
  const auto* from = reinterpret_cast<const uint4*>(head_weights(args, head) +
                                                    static_cast<int64_t>(kNope + row) * kLatent);
  constexpr int kOctets = kLatent / 8;
  uint4 weights[kRows][2];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    weights[r][0] = from[r * kOctets + lane];
    weights[r][1] = from[r * kOctets + cuda::kWarp + lane];
  }
  for (int64_t t = 0; t < args.tokens; ++t) {
    const auto* sums = reinterpret_cast<const uint4*>(
        static_cast<const __nv_bfloat16*>(args.latent_sums) + (t * args.heads + head) * kLatent);
    const uint4 x[2] = {sums[lane], sums[cuda::kWarp + lane]};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float sum = cuda::warp_sum(dot8(weights[r][1], x[1], dot8(weights[r][0], x[0], 0.0f)));
      if (lane == r) {
        args.out[t * args.out_token + head * args.out_head + row + r] = sum;
      }
    }
  }
}

dim3 grid_of(const MlaAbsorbCuda& args) { return {static_cast<unsigned>(args.heads), kHalves}; }

}  // namespace

int triax_cuda_mla_absorb_queries(const MlaAbsorbCuda* args, void* stream) {
  if (args->tokens > kMlaAbsorbTokensMax) {
    return cudaErrorNotSupported;
  }
  if (args->tokens > 0 && args->heads > 0) {
    absorb_queries<<<grid_of(*args), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(*args);
  }
  return cudaGetLastError();
}

int triax_cuda_mla_expand_values(const MlaAbsorbCuda* args, void* stream) {
  if (args->tokens > kMlaAbsorbTokensMax) {
    return cudaErrorNotSupported;
  }
  if (args->tokens > 0 && args->heads > 0) {
    expand_values<<<grid_of(*args), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(*args);
  }
  return cudaGetLastError();
}

}  // namespace triax::sequence
