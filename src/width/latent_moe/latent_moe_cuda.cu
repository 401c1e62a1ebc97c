// Mixture of experts on the GPU: a stable counting sort of the routes, products of the groups, and
// the weighted sum in the order of ids.
#include "dense/linear/products.cuh"
#include "device/cuda/block.cuh"
#include "width/latent_moe/latent_moe_cuda.h"

namespace triax::width {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / cuda::kWarp;
constexpr int64_t kChunk = 1024;  // routes that one warp sorts
constexpr int kScanThreads = 1024;
static_assert(kGroupTileLarge == dense::LargeTile::kTokens);

/// Parts of the scratch of group_experts.
struct SortScratch {
  int32_t* counts;  // [chunks, E]: of a chunk; later of all chunks before it
  int32_t* totals;  // [E]
};

int64_t chunks_of(int64_t routes) { return cuda::blocks_for(routes, kChunk); }

__device__ int32_t expert_of(const GroupExpertsCuda& args, int64_t route) {
  return args.ids[route / args.count * args.ids_stride + route % args.count];
}

/// Routes of each expert in one chunk.
__global__ void count_routes(GroupExpertsCuda args, SortScratch scratch) {
  extern __shared__ int32_t counts[];
  const int64_t experts = args.groups.experts;
  for (int64_t e = threadIdx.x; e < experts; e += kThreads) {
    counts[e] = 0;
  }
  __syncthreads();
  const int64_t begin = blockIdx.x * kChunk;
  const int64_t end = min(begin + kChunk, args.groups.routes);
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    atomicAdd(&counts[expert_of(args, i)], 1);
  }
  __syncthreads();
  for (int64_t e = threadIdx.x; e < experts; e += kThreads) {
    scratch.counts[blockIdx.x * experts + e] = counts[e];
  }
}

/// The sum of `value` over the threads before this one. A block of kScanThreads.
__device__ int64_t sum_before(int64_t value) {
  __shared__ int64_t sums[kScanThreads];
  const int i = threadIdx.x;
  sums[i] = value;
  __syncthreads();
  for (int offset = 1; offset < kScanThreads; offset *= 2) {
    const int64_t other = i >= offset ? sums[i - offset] : 0;
    __syncthreads();
    sums[i] += other;
    __syncthreads();
  }
  const int64_t before = sums[i] - value;
  __syncthreads();
  return before;
}

/// One block: counts to sums over earlier chunks, then offsets of groups and of their tiles.
__global__ void __launch_bounds__(kScanThreads)
    place_groups(ExpertGroupsCuda groups, SortScratch scratch, int64_t chunks) {
  for (int64_t e = threadIdx.x; e < groups.experts; e += kScanThreads) {
    int32_t total = 0;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      int32_t& entry = scratch.counts[chunk * groups.experts + e];
      const int32_t count = entry;
      entry = total;
      total += count;
    }
    scratch.totals[e] = total;
  }
  __syncthreads();
  const int64_t share = (groups.experts + kScanThreads - 1) / kScanThreads;
  const int64_t begin = min(threadIdx.x * share, groups.experts);
  const int64_t end = min(begin + share, groups.experts);
  int64_t rows = 0;
  int64_t tiles = 0;
  for (int64_t e = begin; e < end; ++e) {
    rows += scratch.totals[e];
    tiles += (scratch.totals[e] + groups.tile - 1) / groups.tile;
  }
  rows = sum_before(rows);
  tiles = sum_before(tiles);
  for (int64_t e = begin; e < end; ++e) {
    groups.offsets[e] = rows;
    groups.tile_offsets[e] = tiles;
    rows += scratch.totals[e];
    tiles += (scratch.totals[e] + groups.tile - 1) / groups.tile;
    if (e == groups.experts - 1) {
      groups.offsets[e + 1] = rows;
      groups.tile_offsets[e + 1] = tiles;
    }
  }
}

/// A warp hands out the grouped rows of one chunk, 32 routes at a time in their order.
__global__ void place_routes(GroupExpertsCuda args, SortScratch scratch) {
  extern __shared__ int32_t next[];
  const int64_t experts = args.groups.experts;
  const int lane = threadIdx.x;
  for (int64_t e = lane; e < experts; e += cuda::kWarp) {
    next[e] = scratch.counts[blockIdx.x * experts + e];
  }
  __syncwarp();
  const int64_t begin = blockIdx.x * kChunk;
  const int64_t end = min(begin + kChunk, args.groups.routes);
  for (int64_t i = begin; i < end; i += cuda::kWarp) {
    const int64_t route = i + lane;
    const int32_t expert = route < end ? expert_of(args, route) : -1;
    const unsigned equal = __match_any_sync(0xffffffffU, expert);
    const int before = __popc(equal & ((1U << lane) - 1U));
    const int32_t first = expert >= 0 ? next[expert] : 0;
    __syncwarp();
    if (expert >= 0) {
      if (before == 0) {
        next[expert] = first + __popc(equal);
      }
      const int64_t row = args.groups.offsets[expert] + first + before;
      args.groups.tokens[row] = route / args.count;
      args.groups.rows[route] = row;
    }
    __syncwarp();
  }
}

/// A tile of one group: grouped rows [first, first + count) of `expert`.
struct GroupTile {
  int64_t expert;
  int64_t first;
  int64_t count;
};

__device__ GroupTile tile_of(const ExpertGroupsCuda& groups, int64_t index) {
  const int64_t expert = cuda::group_of(groups.tile_offsets, groups.experts, index);
  const int64_t first =
      groups.offsets[expert] + (index - groups.tile_offsets[expert]) * groups.tile;
  return {expert, first, min(groups.offsets[expert + 1] - first, groups.tile)};
}

__device__ const float* input_row(const GroupedProductCuda& args, int64_t row) {
  return args.in + (args.in_rows != nullptr ? args.in_rows[row] : row) * args.in_stride;
}

/// Whether this launch, of one format, is the expert's.
template <MatrixFormat kFormat>
__device__ bool has_format(const GroupedProductCuda& args, int64_t expert) {
  return args.formats == nullptr || args.formats[expert] == kFormat;
}

/// `shape` with the data of one expert.
__device__ dense::DeviceWeights weights_of(const GroupedProductCuda& args,
                                           dense::DeviceWeights shape, int64_t expert) {
  shape.data = static_cast<const uint8_t*>(args.data[expert]);
  shape.scales =
      args.scales != nullptr ? static_cast<const uint8_t*>(args.scales[expert]) : nullptr;
  return shape;
}

template <MatrixFormat kFormat, bool kWide>
__global__ void __launch_bounds__(dense::LargeTile::kThreads)
    grouped_tiles(GroupedProductCuda args, dense::DeviceWeights shape) {
  if (blockIdx.x >= args.groups.tile_offsets[args.groups.experts]) {
    return;
  }
  const GroupTile group = tile_of(args.groups, blockIdx.x);
  if (!has_format<kFormat>(args, group.expert)) {
    return;
  }
  const int own = threadIdx.x % dense::LargeTile::kTokens;
  const dense::Tile tile = {own < group.count ? input_row(args, group.first + own) : nullptr,
                            static_cast<int64_t>(blockIdx.y) * dense::LargeTile::kRows,
                            args.out + group.first * args.out_stride, args.out_stride, group.count};
  dense::tile_product<kFormat, kWide, dense::LargeTile>(weights_of(args, shape, group.expert),
                                                        tile);
}

constexpr int kRows = 2;  // of the weights, for each warp of grouped_stream

/// kTokens >= group.count tokens by one warp.
template <MatrixFormat kFormat, bool kWide, int kTokens>
__device__ void stream_group(const GroupedProductCuda& args, const dense::DeviceWeights& weight,
                             const GroupTile& group, int64_t row) {
  const float* x[kTokens];
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    x[t] = input_row(args, group.first + (t < group.count ? t : group.count - 1));
  }
  float sums[kTokens][kRows];
  dense::warp_product<kFormat, kWide>(weight, row, x, sums);
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (threadIdx.x % cuda::kWarp == 0 && t < group.count && row + r < weight.rows) {
        args.out[(group.first + t) * args.out_stride + row + r] = sums[t][r];
      }
    }
  }
}

template <MatrixFormat kFormat, bool kWide>
__global__ void __launch_bounds__(kThreads)
    grouped_stream(GroupedProductCuda args, dense::DeviceWeights shape) {
  const int64_t row =
      (static_cast<int64_t>(blockIdx.y) * kWarps + threadIdx.x / cuda::kWarp) * kRows;
  if (blockIdx.x >= args.groups.tile_offsets[args.groups.experts] || row >= shape.rows) {
    return;
  }
  const GroupTile group = tile_of(args.groups, blockIdx.x);
  if (!has_format<kFormat>(args, group.expert)) {
    return;
  }
  const dense::DeviceWeights weight = weights_of(args, shape, group.expert);
  if (group.count == 1) {
    stream_group<kFormat, kWide, 1>(args, weight, group, row);
  } else if (group.count <= 4) {
    stream_group<kFormat, kWide, 4>(args, weight, group, row);
  } else {
    stream_group<kFormat, kWide, kGroupTileSmall>(args, weight, group, row);
  }
}

template <MatrixFormat kFormat, bool kWide>
void launch_product(const GroupedProductCuda& args, cudaStream_t stream) {
  MatrixView view;
  view.format = kFormat;
  view.rows = args.rows;
  view.cols = args.cols;
  const dense::DeviceWeights shape = dense::device_weights(view);
  // Every group ends in one tile that may be incomplete.
  const int64_t routes = args.groups.routes;
  const int64_t partial = routes < args.groups.experts ? routes : args.groups.experts;
  const auto tiles = static_cast<unsigned>(routes / args.groups.tile + partial);
  if (args.groups.tile == kGroupTileLarge) {
    const dim3 grid(tiles,
                    static_cast<unsigned>(cuda::blocks_for(args.rows, dense::LargeTile::kRows)));
    grouped_tiles<kFormat, kWide><<<grid, dense::LargeTile::kThreads, 0, stream>>>(args, shape);
  } else {
    const dim3 grid(tiles, static_cast<unsigned>(cuda::blocks_for(args.rows, kWarps * kRows)));
    grouped_stream<kFormat, kWide><<<grid, kThreads, 0, stream>>>(args, shape);
  }
}

__global__ void sum_experts_rows(SumExpertsCuda args) {
  const int64_t t = blockIdx.x;
  const int64_t d = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (d >= args.size) {
    return;
  }
  float sum = 0.0f;
  for (int64_t j = 0; j < args.count; ++j) {
    const int64_t row = args.rows[t * args.count + j];
    sum = fmaf(args.weights[t * args.weights_stride + j], args.in[row * args.in_stride + d], sum);
  }
  args.out[t * args.out_stride + d] = sum;
}

}  // namespace

int64_t triax_cuda_group_experts_scratch_bytes(int64_t routes, int64_t experts) {
  return (chunks_of(routes) + 1) * experts * static_cast<int64_t>(sizeof(int32_t));
}

int triax_cuda_group_experts(const GroupExpertsCuda* args, void* stream) {
  const int64_t experts = args->groups.experts;
  if (experts > kGroupExpertsMax) {
    return cudaErrorNotSupported;
  }
  if (experts == 0) {
    return cudaSuccess;
  }
  const int64_t chunks = chunks_of(args->groups.routes);
  const auto blocks = static_cast<unsigned>(chunks);
  const size_t shared_bytes = static_cast<size_t>(experts) * sizeof(int32_t);
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  SortScratch scratch = {static_cast<int32_t*>(args->scratch), nullptr};
  scratch.totals = scratch.counts + chunks * experts;
  if (blocks > 0) {
    count_routes<<<blocks, kThreads, shared_bytes, cuda_stream>>>(*args, scratch);
  }
  place_groups<<<1, kScanThreads, 0, cuda_stream>>>(args->groups, scratch, chunks);
  if (blocks > 0) {
    place_routes<<<blocks, cuda::kWarp, shared_bytes, cuda_stream>>>(*args, scratch);
  }
  return cudaGetLastError();
}

int triax_cuda_grouped_product(const GroupedProductCuda* args, void* stream) {
  if (args->groups.routes == 0 || args->rows == 0) {
    return cudaSuccess;
  }
  const bool wide = args->aligned && args->cols % dense::kWeightGroup == 0 &&
                    dense::wide_rows(args->in, args->in_stride, args->cols);
  constexpr MatrixFormat kFormats[] = {MatrixFormat::kF32, MatrixFormat::kF16, MatrixFormat::kBf16,
                                       MatrixFormat::kMxfp4, MatrixFormat::kInt8};
  for (const MatrixFormat format : kFormats) {
    if (args->formats == nullptr && format != args->format) {
      continue;
    }
    dense::with_format(format, [&]<MatrixFormat kFormat>() {
      if (wide) {
        launch_product<kFormat, true>(*args, static_cast<cudaStream_t>(stream));
      } else {
        launch_product<kFormat, false>(*args, static_cast<cudaStream_t>(stream));
      }
    });
  }
  return cudaGetLastError();
}

int triax_cuda_sum_experts(const SumExpertsCuda* args, void* stream) {
  if (args->tokens > 0 && args->size > 0) {
    const dim3 grid(static_cast<unsigned>(args->tokens),
                    static_cast<unsigned>(cuda::blocks_for(args->size, kThreads)));
    sum_experts_rows<<<grid, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(*args);
  }
  return cudaGetLastError();
}

}  // namespace triax::width
