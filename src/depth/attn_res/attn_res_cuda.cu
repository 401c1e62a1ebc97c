// Attention Residuals on the GPU: a block scores all sources of one token for some queries, then
// sums them; the sources come from the caches the second time.
#include "depth/attn_res/attn_res_cuda.h"
#include "device/cuda/block.cuh"

namespace triax::depth {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / cuda::kWarp;
constexpr int kQueries = 8;      // of one block
constexpr int kFewSources = 32;  // what block residuals have; less travels with each launch then

/// A bank's arguments with room for kMax sources.
template <int kMax>
struct BankArgs {
  int64_t count;
  const float* data[kMax];
  int64_t stride[kMax];
  const float* queries;
  int64_t query_stride;
  int64_t query_count;
  float eps;
  float* acc;
  int64_t acc_query;
  int64_t acc_token;
  float* max;
  int64_t max_query;
  float* sum;
  int64_t sum_query;
  int64_t size;
};

template <int kMax>
BankArgs<kMax> bank_args(const AttnResBankPlain& from) {
  BankArgs<kMax> args = {};
  args.count = from.sources.count;
  for (int64_t i = 0; i < args.count; ++i) {
    args.data[i] = from.sources.data[i];
    args.stride[i] = from.sources.stride[i];
  }
  args.queries = from.queries;
  args.query_stride = from.query_stride;
  args.query_count = from.query_count;
  args.eps = from.eps;
  args.acc = from.acc;
  args.acc_query = from.acc_query;
  args.acc_token = from.acc_token;
  args.max = from.max;
  args.max_query = from.max_query;
  args.sum = from.sum;
  args.sum_query = from.sum_query;
  args.size = from.size;
  return args;
}

/// Scores of one source for kCount queries, by one warp.
///   s = sum_d query[d] v[d] / sqrt(mean(v^2) + eps)
template <int kMax, int kCount>
__device__ void score_source(const BankArgs<kMax>& args, const float* v, int64_t first_query,
                             float (&scores)[kCount]) {
  float squares = 0.0f;
  const float* queries[kCount];
#pragma unroll
  for (int q = 0; q < kCount; ++q) {
    queries[q] = args.queries + min(first_query + q, args.query_count - 1) * args.query_stride;
    scores[q] = 0.0f;
  }
#pragma unroll(kCount == 1 ? 8 : 2)
  for (int64_t d = threadIdx.x % cuda::kWarp; d < args.size; d += cuda::kWarp) {
    const float x = v[d];
    squares = fmaf(x, x, squares);
#pragma unroll
    for (int q = 0; q < kCount; ++q) {
      scores[q] = fmaf(queries[q][d], x, scores[q]);
    }
  }
  const float mean = cuda::warp_sum(squares) / static_cast<float>(args.size);
  const float norm = sqrtf(mean + args.eps);
#pragma unroll
  for (int q = 0; q < kCount; ++q) {
    scores[q] = cuda::warp_sum(scores[q]) / norm;
  }
}

/// scores to exp(score - max), by one warp; gives max and sum.
__device__ void exponentiate(float* scores, int64_t count, float* max_out, float* sum_out) {
  const int lane = threadIdx.x % cuda::kWarp;
  float max = -INFINITY;
  for (int64_t i = lane; i < count; i += cuda::kWarp) {
    max = fmaxf(max, scores[i]);
  }
  max = cuda::warp_max(max);
  float sum = 0.0f;
  for (int64_t i = lane; i < count; i += cuda::kWarp) {
    scores[i] = expf(scores[i] - max);
    sum += scores[i];
  }
  *max_out = max;
  *sum_out = cuda::warp_sum(sum);
}

/// kCount queries of one token. kNormalized: acc is divided by its sum, max and sum are not
/// written.
template <int kMax, int kCount, bool kNormalized>
__global__ void __launch_bounds__(kThreads)
    attn_res_tokens(const __grid_constant__ BankArgs<kMax> args) {
  __shared__ float weights[kCount][kMax];
  __shared__ float sums[kCount];
  const int64_t t = blockIdx.x;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kCount;
  const int warp = threadIdx.x / cuda::kWarp;
  const bool leader = threadIdx.x % cuda::kWarp == 0;
  for (int64_t i = warp; i < args.count; i += kWarps) {
    float scores[kCount];
    score_source(args, args.data[i] + t * args.stride[i], first, scores);
#pragma unroll
    for (int q = 0; leader && q < kCount; ++q) {
      weights[q][i] = scores[q];
    }
  }
  __syncthreads();
  if (warp < kCount && first + warp < args.query_count) {
    float max;
    float sum;
    exponentiate(weights[warp], args.count, &max, &sum);
    if (leader) {
      sums[warp] = sum;
    }
    if (leader && !kNormalized) {
      args.max[(first + warp) * args.max_query + t] = max;
      args.sum[(first + warp) * args.sum_query + t] = sum;
    }
  }
  __syncthreads();
  for (int64_t d = threadIdx.x; d < args.size; d += kThreads) {
    float acc[kCount] = {};
#pragma unroll 4
    for (int64_t i = 0; i < args.count; ++i) {
      const float v = args.data[i][t * args.stride[i] + d];
#pragma unroll
      for (int q = 0; q < kCount; ++q) {
        acc[q] = fmaf(weights[q][i], v, acc[q]);
      }
    }
#pragma unroll
    for (int q = 0; q < kCount; ++q) {
      if (first + q < args.query_count) {
        args.acc[(first + q) * args.acc_query + t * args.acc_token + d] =
            kNormalized ? acc[q] / sums[q] : acc[q];
      }
    }
  }
}

template <int kCount, bool kNormalized>
int launch_tokens(const AttnResBankPlain& args, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(args.tokens),
                  static_cast<unsigned>(cuda::blocks_for(args.query_count, kCount)));
  if (args.sources.count <= kFewSources) {
    attn_res_tokens<kFewSources, kCount, kNormalized>
        <<<grid, kThreads, 0, stream>>>(bank_args<kFewSources>(args));
  } else if (args.sources.count <= kAttnResCudaSourcesMax) {
    constexpr int kMax = static_cast<int>(kAttnResCudaSourcesMax);
    attn_res_tokens<kMax, kCount, kNormalized>
        <<<grid, kThreads, 0, stream>>>(bank_args<kMax>(args));
  } else {
    return cudaErrorNotSupported;
  }
  return cudaGetLastError();
}

__global__ void __launch_bounds__(kThreads) attn_res_merge(AttnResMergeCuda args) {
  const int64_t t = blockIdx.x;
  const float* v = args.partial + t * args.partial_stride;
  float dot = 0.0f;
  float squares = 0.0f;
  for (int64_t d = threadIdx.x; d < args.size; d += kThreads) {
    dot = fmaf(args.query[d], v[d], dot);
    squares = fmaf(v[d], v[d], squares);
  }
  dot = cuda::block_sum<kThreads>(dot);
  squares = cuda::block_sum<kThreads>(squares);
  const float score = dot / sqrtf(squares / static_cast<float>(args.size) + args.eps);
  const float max = fmaxf(args.max[t], score);
  const float banked = expf(args.max[t] - max);
  const float weight = expf(score - max);
  const float sum = fmaf(banked, args.sum[t], weight);
  const float* acc = args.acc + t * args.acc_stride;
  float* out = args.out + t * args.out_stride;
  for (int64_t d = threadIdx.x; d < args.size; d += kThreads) {
    out[d] = fmaf(banked, acc[d], weight * v[d]) / sum;
  }
}

}  // namespace

int triax_cuda_attn_res(const AttnResCuda* args, void* stream) {
  if (args->tokens == 0 || args->size == 0) {
    return cudaSuccess;
  }
  AttnResBankPlain one = {};
  one.sources = args->sources;
  one.queries = args->query;
  one.query_count = 1;
  one.eps = args->eps;
  one.acc = args->out;
  one.acc_token = args->out_stride;
  one.tokens = args->tokens;
  one.size = args->size;
  return launch_tokens<1, true>(one, static_cast<cudaStream_t>(stream));
}

int triax_cuda_attn_res_bank_plain(const AttnResBankPlain* args, void* stream) {
  if (args->tokens == 0 || args->size == 0 || args->query_count == 0) {
    return cudaSuccess;
  }
  return launch_tokens<kQueries, false>(*args, static_cast<cudaStream_t>(stream));
}

int triax_cuda_attn_res_merge(const AttnResMergeCuda* args, void* stream) {
  if (args->tokens > 0 && args->size > 0) {
    attn_res_merge<<<static_cast<unsigned>(args->tokens), kThreads, 0,
                     static_cast<cudaStream_t>(stream)>>>(*args);
  }
  return cudaGetLastError();
}

}  // namespace triax::depth
