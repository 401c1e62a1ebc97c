// The slice kernels of Attention Residuals: eight blocks of a cluster each own an eighth of the
// columns of a token, hold them of all sources in registers, and exchange partial dot products
// through each other's shared memory. One pass over the sources for any number of queries.
#include <algorithm>

#include "depth/attn_res/attn_res_lanes.cuh"

namespace triax::depth::gpu {
namespace {

constexpr int kThreadsMax = 224;  // four columns each: 7168 in all
constexpr int kQueriesMax = kAttnResQueriesMax;
constexpr int kSourcesOfGroup = 8;  // a group's dot products with four queries: one a lane
constexpr int kWarpsMax = kThreadsMax / 32;

/// kBatch queries are multiplied at a time: 1 in a mix, 4 in a bank.
template <int kGroups, int kBatch>
struct SliceShared {
  static constexpr int kSources = kGroups * kSourcesOfGroup;
  static constexpr int kQueries = kBatch == 1 ? 1 : kQueriesMax;
  /// Of one token: dot products [query][source], then squares [source].
  static constexpr int kValues = (kQueries + 1) * kSources;
  float partial[kWarpsMax][kValues];
  float all[2][kClusterBlocks][kValues];  // from each block, by turns
  float weights[kQueries][kSources];
  float sum[kQueries];
  float squares[kClusterBlocks];  // of the mix, for its norm
  Exchange scores, norm;
  float warp_squares[kWarpsMax];
};

/// The thread's four columns of every source, as loaded and as floats.
template <typename T, int kGroups>
struct RawColumns {
  Quad<T> v[kGroups * kSourcesOfGroup];
};

template <int kGroups>
struct Columns {
  float4 v[kGroups * kSourcesOfGroup];
};

template <typename T, int kGroups>
__device__ __forceinline__ RawColumns<T, kGroups> load_columns(const AttnResSourcesCuda& sources,
                                                               int64_t token, int64_t quad,
                                                               bool active) {
  RawColumns<T, kGroups> raw = {};
#pragma unroll
  for (int i = 0; i < kGroups * kSourcesOfGroup; ++i) {
    if (i < sources.count && active) {
      raw.v[i] =
          load_quad<T>(static_cast<const T*>(sources.rows[i]) + token * sources.strides[i], quad);
    }
  }
  return raw;
}

template <typename T, int kGroups>
__device__ __forceinline__ Columns<kGroups> to_floats(const RawColumns<T, kGroups>& raw) {
  Columns<kGroups> columns;
#pragma unroll
  for (int i = 0; i < kGroups * kSourcesOfGroup; ++i) {
    columns.v[i] = raw.v[i].floats();
  }
  return columns;
}

/// The last source takes in the last layer's output; what is mixed is what is stored.
template <typename T, int kGroups>
__device__ __forceinline__ void add_delta(const SliceArgs& args, int64_t token, int64_t quad,
                                          Columns<kGroups>& columns) {
  const auto* delta = static_cast<const T*>(args.delta) + token * args.delta_stride;
  const int last = args.sources.count - 1;
  auto* row = const_cast<T*>(static_cast<const T*>(args.sources.rows[last])) +
              token * args.sources.strides[last];
  const float4 change = load_quad<T>(delta, quad).floats();
  float4 sum = columns.v[0];
#pragma unroll
  for (int i = 1; i < kGroups * kSourcesOfGroup; ++i) {
    sum = i == last ? columns.v[i] : sum;
  }
  sum = Quad<T>::of(add4(sum, change)).floats();
  store_quad<T>(row, quad, sum);
#pragma unroll
  for (int i = 0; i < kGroups * kSourcesOfGroup; ++i) {
    columns.v[i] = i == last ? sum : columns.v[i];
  }
}

/// The warps' dot products and squares into s.partial. `queries` [padded queries][threads] in
/// shared memory.
template <int kGroups, int kBatch>
__device__ __forceinline__ void partial_sums(const Columns<kGroups>& columns, const float4* queries,
                                             int padded, SliceShared<kGroups, kBatch>& s) {
  constexpr int kSources = kGroups * kSourcesOfGroup;
  const int lane = threadIdx.x % 32;
  float* const partial = s.partial[threadIdx.x / 32];
  for (int q = 0; q < padded; q += kBatch) {
    float4 query[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      query[i] = queries[(q + i) * blockDim.x + threadIdx.x];
    }
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      constexpr int kDots = kBatch * kSourcesOfGroup;
      float dots[kDots];
#pragma unroll
      for (int i = 0; i < kDots; ++i) {
        dots[i] = dot4(query[i / kSourcesOfGroup],
                       columns.v[g * kSourcesOfGroup + i % kSourcesOfGroup], 0.0f);
      }
      float sum = transpose_sum<kDots>(dots);
#pragma unroll
      for (int mask = kDots; mask < 32; mask *= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, mask);
      }
      if (lane < kDots) {
        partial[(q + lane / kSourcesOfGroup) * kSources + g * kSourcesOfGroup +
                lane % kSourcesOfGroup] = sum;
      }
    }
  }
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    float squares[kSourcesOfGroup];
#pragma unroll
    for (int i = 0; i < kSourcesOfGroup; ++i) {
      const float4 v = columns.v[g * kSourcesOfGroup + i];
      squares[i] = dot4(v, v, 0.0f);
    }
    float sum = transpose_sum<8>(squares);
    sum += __shfl_xor_sync(0xffffffffu, sum, 8);
    sum += __shfl_xor_sync(0xffffffffu, sum, 16);
    if (lane < kSourcesOfGroup) {
      partial[padded * kSources + g * kSourcesOfGroup + lane] = sum;
    }
  }
}

/// s.partial of all blocks to s.weights and s.sum; the maximum and sum to memory for a bank.
template <int kGroups, int kBatch>
__device__ __forceinline__ void soften(const SliceArgs& args, int64_t token, int64_t query,
                                       int queries, int padded, uint32_t rank, int64_t step,
                                       SliceShared<kGroups, kBatch>& s) {
  constexpr int kSources = kGroups * kSourcesOfGroup;
  const int warps = blockDim.x / 32;
  const int turn = static_cast<int>(step % 2);
  if (threadIdx.x == 0) {
    s.scores.expect(step, (padded + 1) * kSources);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < (padded + 1) * kSources; i += blockDim.x) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarpsMax; ++w) {
      sum += w < warps ? s.partial[w][i] : 0.0f;
    }
    s.scores.send(step, &s.all[turn][rank][i], sum);
  }
  s.scores.wait(step);
  const int dots = padded * kSources;
  for (int i = threadIdx.x; i < (dots + 31) / 32 * 32; i += blockDim.x) {  // whole warps
    const int source = i % kSources;
    float dot = 0.0f;
    float squares = 0.0f;
#pragma unroll
    for (int block = 0; block < kClusterBlocks; ++block) {
      dot += s.all[turn][block][min(i, dots - 1)];
      squares += s.all[turn][block][dots + source];
    }
    const float score = source < args.sources.count
                            ? dot * rsqrtf(squares / static_cast<float>(args.dim) + args.eps)
                            : -INFINITY;
    float max = score;
#pragma unroll
    for (int mask = kSources / 2; mask > 0; mask /= 2) {
      max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, mask));
    }
    const float weight = expf(score - max);
    float sum = weight;
#pragma unroll
    for (int mask = kSources / 2; mask > 0; mask /= 2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, mask);
    }
    const int q = i / kSources;
    if (i >= dots) {
      break;
    }
    s.weights[q][source] = weight;
    s.sum[q] = sum;
    if (source == 0 && rank == 0 && q < queries && args.max_out != nullptr) {
      args.max_out[(query + q) * args.tokens + token] = max;
      args.sum_out[(query + q) * args.tokens + token] = sum;
    }
  }
  __syncthreads();
}

template <int kGroups, int kBatch>
__device__ __forceinline__ float4 mixed(const Columns<kGroups>& columns,
                                        const SliceShared<kGroups, kBatch>& s, int q) {
  float4 acc = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < kGroups * kSourcesOfGroup; ++i) {
    acc = fma4(s.weights[q][i], columns.v[i], acc);
  }
  return acc;
}

/// 1 / sqrt(mean square + eps) of the token's mix, from every block's columns.
template <int kGroups, int kBatch>
__device__ __forceinline__ float norm_factor(const SliceArgs& args, float4 x, uint32_t rank,
                                             SliceShared<kGroups, kBatch>& s) {
  const float warp = warp_sum(dot4(x, x, 0.0f));
  if (threadIdx.x % 32 == 0) {
    s.warp_squares[threadIdx.x / 32] = warp;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    float sum = 0.0f;
    for (int w = 0; w < static_cast<int>(blockDim.x) / 32; ++w) {
      sum += s.warp_squares[w];
    }
    s.norm.expect(0, 1);
    s.norm.send(0, &s.squares[rank], sum);
  }
  s.norm.wait(0);
  float total = 0.0f;
#pragma unroll
  for (int block = 0; block < kClusterBlocks; ++block) {
    total += s.squares[block];
  }
  return rsqrtf(total / static_cast<float>(args.dim) + args.norm_eps);
}

/// The block's share of what a token leaves: one normalised mix, or Q unnormalised ones.
template <int kGroups, int kBatch>
__device__ __forceinline__ void write_token(const SliceArgs& args, const Columns<kGroups>& columns,
                                            int64_t token, int64_t query, int queries, int64_t quad,
                                            bool active, uint32_t rank,
                                            SliceShared<kGroups, kBatch>& s) {
  if (args.max_out != nullptr) {
    for (int q = 0; q < queries && active; ++q) {
      void* row = row_of(args.out, (query + q) * args.tokens + token, args.dim, args.out_type);
      store_quad_as(row, quad, args.out_type, mixed(columns, s, q));
    }
    return;
  }
  const float inverse = 1.0f / s.sum[0];
  float4 x = mixed(columns, s, 0);
  x = {x.x * inverse, x.y * inverse, x.z * inverse, x.w * inverse};
  if (args.norm_weight != nullptr) {
    const float factor = norm_factor(args, x, rank, s);
    if (active) {
      x = scale4(x, factor, reinterpret_cast<const float4*>(args.norm_weight)[quad]);
    }
  }
  if (active) {
    store_quad_as(row_of(args.out, token, args.out_stride, args.out_type), quad, args.out_type, x);
  }
}

/// args.tokens_of_cluster tokens, up to args.queries_of_cluster queries.
/// Grid      (8 * token groups, query groups), clusters of 8
template <typename T, int kGroups, int kBatch>
__global__ void __launch_bounds__(kThreadsMax, 2)
    attn_res_slices(const __grid_constant__ SliceArgs args) {
  constexpr bool kAhead = kGroups == 1 && kBatch > 1;  // registers for the next token's columns
  extern __shared__ float4 query_slice[];
  __shared__ SliceShared<kGroups, kBatch> s;
  const uint32_t rank = cluster_rank();
  if (threadIdx.x == 0) {
    s.scores.init();
    s.norm.init();
  }
  cluster_arrive();
  const int64_t quads = args.dim / 4 / kClusterBlocks;
  const bool active = threadIdx.x < quads;
  const int64_t quad = active ? rank * quads + threadIdx.x : 0;
  const int64_t query = int64_t{blockIdx.y} * args.queries_of_cluster;
  const int queries = static_cast<int>(min(args.query_count - query, args.queries_of_cluster));
  const int padded = (queries + kBatch - 1) / kBatch * kBatch;
  const int64_t first = blockIdx.x / kClusterBlocks * args.tokens_of_cluster;
  const int64_t end = min(first + args.tokens_of_cluster, args.tokens);
  RawColumns<T, kGroups> next;
  if constexpr (kAhead) {
    next = load_columns<T, kGroups>(args.sources, first, quad, active);
  }
  for (int q = 0; q < padded; ++q) {
    const int64_t row = query + min(q, queries - 1);
    cuda::copy_async_or_zero(
        cuda::shared_address(&query_slice[q * blockDim.x + threadIdx.x]),
        reinterpret_cast<const float4*>(args.queries) + row * (args.dim / 4) + quad,
        q < queries && active);
  }
  asm volatile("cp.async.wait_all;" ::: "memory");  // a thread reads what it copied
  cluster_wait();
  for (int64_t token = first; token < end; ++token) {
    if constexpr (!kAhead) {
      next = load_columns<T, kGroups>(args.sources, token, quad, active);
    }
    Columns<kGroups> columns = to_floats(next);
    if (kAhead && token + 1 < end) {
      next = load_columns<T, kGroups>(args.sources, token + 1, quad, active);
    }
    if (args.delta != nullptr && active) {
      add_delta<T, kGroups>(args, token, quad, columns);
    }
    partial_sums(columns, query_slice, padded, s);
    soften(args, token, query, queries, padded, rank, token - first, s);
    write_token(args, columns, token, query, queries, quad, active, rank, s);
  }
}

template <typename T, int kGroups, int kBatch>
cudaError_t launch(const SliceArgs& args, cudaStream_t stream) {
  const auto threads = static_cast<unsigned>((args.dim / 4 / kClusterBlocks + 31) / 32 * 32);
  const int64_t padded = (args.queries_of_cluster + kBatch - 1) / kBatch * kBatch;
  const auto shared = static_cast<unsigned>(padded * threads * sizeof(float4));
  return launch_cluster(attn_res_slices<T, kGroups, kBatch>, args, threads, shared, stream);
}

template <typename T, int kBatch>
cudaError_t launch_groups(const SliceArgs& args, cudaStream_t stream) {
  return args.sources.count <= kSourcesOfGroup ? launch<T, 1, kBatch>(args, stream)
                                               : launch<T, 2, kBatch>(args, stream);
}

template <typename T>
cudaError_t launch_type(const SliceArgs& args, cudaStream_t stream) {
  return args.max_out == nullptr ? launch_groups<T, 1>(args, stream)
                                 : launch_groups<T, 4>(args, stream);
}

}  // namespace

cudaError_t launch_slices(const SliceArgs& args, cudaStream_t stream) {
  return args.sources.type == DType::kBf16 ? launch_type<__nv_bfloat16>(args, stream)
                                           : launch_type<float>(args, stream);
}

}  // namespace triax::depth::gpu

extern "C" int triax_cuda_attn_res_bank(const triax::depth::AttnResBankCuda* args, void* stream) {
  using namespace triax::depth;
  if (args->tokens == 0 || args->dim == 0 || args->query_count == 0) {
    return cudaSuccess;
  }
  if (!gpu::sources_valid(args->sources, args->dim) || args->query_count < 0 ||
      args->query_count > gpu::kQueriesMax || args->tokens < 0 || !args->queries || !args->acc ||
      !args->max || !args->sum || !gpu::is_float(args->acc_type)) {
    return cudaErrorInvalidValue;
  }
  gpu::SliceArgs slices;
  slices.tokens = args->tokens;
  slices.dim = args->dim;
  slices.query_count = args->query_count;
  // Few tokens: several clusters share one, a group of queries each. Many: a cluster keeps its
  // queries in shared memory for several tokens.
  const int64_t split = args->tokens <= 5 ? 6 : args->tokens <= 10 ? 3 : args->tokens <= 16 ? 2 : 1;
  slices.queries_of_cluster = std::max<int64_t>(4, (args->query_count + split - 1) / split);
  slices.tokens_of_cluster = std::clamp<int64_t>(args->tokens / 32, 1, 16);
  slices.sources = args->sources;
  slices.queries = args->queries;
  slices.eps = args->eps;
  slices.out = args->acc;
  slices.out_type = args->acc_type;
  slices.max_out = args->max;
  slices.sum_out = args->sum;
  return gpu::launch_slices(slices, static_cast<cudaStream_t>(stream));
}
