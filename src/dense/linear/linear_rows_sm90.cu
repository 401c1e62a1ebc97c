// Products with 5 to 64 rows. A block, or a cluster of blocks that cut the columns, takes an even
// share of a matrix's rows, up to 96 at a time. Four warps copy 256 bytes of each row and the same
// columns of all tokens into a ring of stages; of twelve others each multiplies one tile of 16 rows
// with half of a stage's columns, weights becoming bf16 in registers. Sums of halves and of a
// cluster's blocks are added in a fixed order at the end.
#include <cuda_runtime.h>

#include <algorithm>

#include "dense/linear/linear_mxfp4_sm90.cuh"
#include "dense/linear/linear_rows_sm90.h"
#include "device/cuda/barrier.cuh"
#include "device/cuda/block.cuh"
#include "device/cuda/overlap.cuh"

namespace triax::dense {
namespace {

using namespace sm90;

constexpr int kTileRows = 16;
constexpr int kTiles = 6;
constexpr int kHalves = 2;
constexpr int kWarps = kTiles * kHalves;
constexpr int kWorkers = 32 * kWarps;
constexpr int kCopiers = 128;  // threads that copy: a bulk copy of 256 bytes costs too much
constexpr int kThreads = kWorkers + kCopiers;
constexpr int kBlockRows = kTiles * kTileRows;
constexpr int kStepBytes = 256;             // of a weight row in a stage
constexpr int kRowBytes = kStepBytes + 32;  // four rows meet no bank twice
constexpr int kScaleRowBytes = 16;
constexpr int kStagesMax = 4;
constexpr int kBarrierBytes = 128;
constexpr int kSharedMax = 232448 - 1024;
constexpr int kClusterMax = 4;

struct Launch {
  LinearRowsSm90 args;
  int first_cluster[kLinearRowsPartsMax + 1];
  int stages;
  int cluster;  // blocks of one
};

/// Tokens of a launch, in tiles of eight.
template <int kTokenTiles>
struct Sizes {
  static constexpr int kTokens = 8 * kTokenTiles;
  static constexpr int kTokenBytes = 512 + 64;  // of a stage's columns, two rows meet no bank twice
  static constexpr int kStageBytes =
      kBlockRows * (kRowBytes + kScaleRowBytes) + kTokens * kTokenBytes;
  static constexpr int kSumStride = kTokens + 4;  // floats
  static constexpr int kSumBytes = kHalves * kBlockRows * kSumStride * 4;
};

struct Int8 {
  static constexpr int kBits = 8;
};
struct Bf16 {
  static constexpr int kBits = 16;
};

/// Columns of a stage.
template <typename Format>
constexpr int kStepCols = kStepBytes * 8 / Format::kBits;

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}

__device__ __forceinline__ float load_of_block(uint32_t address, int rank) {
  float value;
  asm volatile(
      "{\n.reg .u32 remote;\nmapa.shared::cluster.u32 remote, %1, %2;\n"
      "ld.shared::cluster.f32 %0, [remote];\n}"
      : "=f"(value)
      : "r"(address), "r"(rank)
      : "memory");
  return value;
}

// What a block works on: rows of a matrix, a range of its columns.
struct Share {
  int first, rows;  // of the cluster
  int block_rows;   // at a time
  int begin, end;   // columns
};

template <typename Format>
__device__ Share share_of(const Launch& p, int part, int rank) {
  const MatrixView& weight = p.args.parts[part].weight;
  const int64_t all = weight.rows;
  const int clusters = p.first_cluster[part + 1] - p.first_cluster[part];
  const int cluster = static_cast<int>(blockIdx.x) / p.cluster - p.first_cluster[part];
  Share s;
  s.first = static_cast<int>(all * cluster / clusters);
  s.rows = static_cast<int>(all * (cluster + 1) / clusters) - s.first;
  const int blocks = max(1, (s.rows + kBlockRows - 1) / kBlockRows);
  s.block_rows = (s.rows + blocks - 1) / blocks;
  const int groups = static_cast<int>(weight.cols) / kGroupColumns;
  s.begin = groups * rank / p.cluster * kGroupColumns;
  s.end = groups * (rank + 1) / p.cluster * kGroupColumns;
  return s;
}

/// Where a warp stands in the ring of stages.
struct Ring {
  uint32_t barriers;  // a full one for each stage, then an empty one
  uint32_t first;
  int stages;
  int stage_bytes;
  int stage = 0;
  uint32_t parity = 0;

  __device__ uint32_t full() const { return barriers + stage * 8; }
  __device__ uint32_t empty() const { return barriers + (kStagesMax + stage) * 8; }
  __device__ uint32_t address() const { return first + stage * stage_bytes; }
  __device__ void next() {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

/// `rows` rows of 16 << kShift bytes, or half of that, by all copiers.
template <int kShift>
__device__ __forceinline__ void copy_rows(uint32_t to, int to_row, const unsigned char* from,
                                          int64_t from_row, int rows, bool half) {
  const int shift = half ? kShift - 1 : kShift;
  for (int i = static_cast<int>(threadIdx.x) - kWorkers; i < rows << shift; i += kCopiers) {
    const int row = i >> shift;
    const int piece = (i - (row << shift)) * 16;
    cuda::copy_async<16>(to + static_cast<uint32_t>(row * to_row + piece),
                         from + row * from_row + piece);
  }
}

/// Weights and scales of rows [base, base + rows) and columns [col, col + cols).
template <typename Format>
__device__ __forceinline__ void copy_weights(const MatrixView& weight, const Ring& ring, int base,
                                             int rows, int col, int cols) {
  const int64_t bytes = weight.cols * Format::kBits / 8;
  const bool half = cols < kStepCols<Format>;
  copy_rows<4>(
      ring.address(), kRowBytes,
      static_cast<const unsigned char*>(weight.data) + base * bytes + col * Format::kBits / 8,
      bytes, rows, half);
  if constexpr (Format::kBits == 8) {
    const int64_t scale_bytes = weight.cols / 16;
    const auto* scales =
        static_cast<const unsigned char*>(weight.scales) + base * scale_bytes + col / 16;
    const uint32_t to = ring.address() + kBlockRows * kRowBytes;
    const int shift = half ? 0 : 1;
    for (int i = static_cast<int>(threadIdx.x) - kWorkers; i < rows << shift; i += kCopiers) {
      const int row = i >> shift;
      const int group = i - (row << shift);
      cuda::copy_async<8>(to + static_cast<uint32_t>(row * kScaleRowBytes + group * 8),
                          scales + row * scale_bytes + group * 8);
    }
  }
}

/// The same columns of all tokens.
template <typename Format, int kTokenTiles>
__device__ __forceinline__ void copy_tokens(const LinearRowsPartSm90& part, const Ring& ring,
                                            int tokens, int col, int cols) {
  constexpr int kShift = Format::kBits == 8 ? 5 : 4;
  copy_rows<kShift>(ring.address() + kBlockRows * (kRowBytes + kScaleRowBytes),
                    Sizes<kTokenTiles>::kTokenBytes,
                    static_cast<const unsigned char*>(part.in) + 2 * col, 2 * part.in_stride,
                    tokens, cols < kStepCols<Format>);
}

/// The warps that copy. Tokens come from the kernel in front, weights do not: the first stages get
/// theirs before it has ended.
template <typename Format, int kTokenTiles>
__device__ __forceinline__ void copy_share(const LinearRowsPartSm90& part, const Share& share,
                                           Ring ring, int tokens) {
  constexpr int kCols = kStepCols<Format>;
  const Ring start = ring;
  const int steps = (share.end - share.begin + kCols - 1) / kCols;
  const int early = share.rows > 0 ? min(start.stages, steps) : 0;
  for (int n = 0; n < early; ++n) {
    const int col = share.begin + n * kCols;
    copy_weights<Format>(part.weight, ring, share.first, min(share.block_rows, share.rows), col,
                         min(kCols, share.end - col));
    ring.next();
  }
  cuda::wait_for_previous();
  ring = start;
  int filled = 0;
  for (int base = 0; base < share.rows; base += share.block_rows) {
    const int rows = min(share.block_rows, share.rows - base);
    for (int col = share.begin; col < share.end; col += kCols, ++filled) {
      const int cols = min(kCols, share.end - col);
      if (filled >= ring.stages) {
        cuda::barrier_wait(ring.empty(), ring.parity ^ 1);
      }
      if (filled >= early) {
        copy_weights<Format>(part.weight, ring, share.first + base, rows, col, cols);
      }
      copy_tokens<Format, kTokenTiles>(part, ring, tokens, col, cols);
      cuda::barrier_arrive_after_copies(ring.full());
      ring.next();
    }
  }
}

// Bytes 2 h and 2 h + 1 of a word of int8 as two bf16. With u = v's lower seven bits and s its
// sign, v = (128 + u) - (128 + 128 s), and both terms are a byte below 0x43.
template <int kHalf>
__device__ __forceinline__ uint32_t unpack_int8(uint32_t word) {
  const uint32_t bytes = __byte_perm(word, 0x43434343u, kHalf == 0 ? 0x4140 : 0x4342);
  const uint32_t value = bytes & 0xFF7FFF7Fu;
  const uint32_t offset = bytes & 0xFF80FF80u;
  uint32_t pair;
  asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(pair) : "r"(value), "r"(offset));
  return pair;
}

__device__ __forceinline__ uint2 shared8(const unsigned char* from) {
  return *reinterpret_cast<const uint2*>(from);
}
__device__ __forceinline__ uint4 shared16(const unsigned char* from) {
  return *reinterpret_cast<const uint4*>(from);
}

/// sums += a tile's rows times tokens over the `blocks` blocks of 32 columns (of int8) in half a
/// stage. `upper` is this lane's row and place in it, `tokens` its token's.
template <int kTokenTiles>
__device__ __forceinline__ void multiply(Int8, const unsigned char* upper,
                                         const unsigned char* scales, const unsigned char* tokens,
                                         float (&sums)[kTokenTiles][4]) {
#pragma unroll 2
  for (int block = 0; block < 4; ++block) {
    const uint2 u = shared8(upper + block * 32);
    const uint2 l = shared8(upper + block * 32 + 8 * kRowBytes);
    const float us = __uint_as_float(*reinterpret_cast<const uint16_t*>(scales + 2 * block) << 16);
    const float ls = __uint_as_float(
        *reinterpret_cast<const uint16_t*>(scales + 2 * block + 8 * kScaleRowBytes) << 16);
    const uint32_t a[8] = {unpack_int8<0>(u.x), unpack_int8<0>(l.x), unpack_int8<1>(u.x),
                           unpack_int8<1>(l.x), unpack_int8<0>(u.y), unpack_int8<0>(l.y),
                           unpack_int8<1>(u.y), unpack_int8<1>(l.y)};
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
      const uint4 b = shared16(tokens + n * 8 * Sizes<kTokenTiles>::kTokenBytes + block * 64);
      float c[4] = {};
      mma_bf16(c, a[0], a[1], a[2], a[3], b.x, b.y);
      mma_bf16(c, a[4], a[5], a[6], a[7], b.z, b.w);
      sums[n][0] += us * c[0];
      sums[n][1] += us * c[1];
      sums[n][2] += ls * c[2];
      sums[n][3] += ls * c[3];
    }
  }
}

template <int kTokenTiles>
__device__ __forceinline__ void multiply(Bf16, const unsigned char* upper, const unsigned char*,
                                         const unsigned char* tokens,
                                         float (&sums)[kTokenTiles][4]) {
#pragma unroll
  for (int block = 0; block < 2; ++block) {
    const uint4 u = shared16(upper + block * 64);
    const uint4 l = shared16(upper + block * 64 + 8 * kRowBytes);
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
      const uint4 b = shared16(tokens + n * 8 * Sizes<kTokenTiles>::kTokenBytes + block * 64);
      mma_bf16(sums[n], u.x, l.x, u.y, l.y, b.x, b.y);
      mma_bf16(sums[n], u.z, l.z, u.w, l.w, b.z, b.w);
    }
  }
}

/// This warp's part of a block of rows: its tile, its half of each stage's columns.
template <typename Format, int kTokenTiles>
__device__ __forceinline__ void multiply_rows(const Share& share, int rows, Ring& ring,
                                              const unsigned char* stages,
                                              float (&sums)[kTokenTiles][4]) {
  constexpr int kCols = kStepCols<Format>;
  constexpr int kHalfBytes = kStepBytes / kHalves;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int tile = warp % kTiles;
  const int half = warp / kTiles;
  const int g = static_cast<int>(threadIdx.x) % 32 / 4;
  const int t = static_cast<int>(threadIdx.x) % 4;
  const int row = tile * kTileRows + g;
  const int lane_bytes = Format::kBits == 8 ? 8 : 16;  // of 32 columns, four lanes each
  const int weight_at = row * kRowBytes + half * kHalfBytes + t * lane_bytes;
  const int scale_at = kBlockRows * kRowBytes + row * kScaleRowBytes + half * 8;
  const int token_at = kBlockRows * (kRowBytes + kScaleRowBytes) +
                       g * Sizes<kTokenTiles>::kTokenBytes + half * kCols + t * 16;
  for (int col = share.begin; col < share.end; col += kCols) {
    cuda::barrier_wait(ring.full(), ring.parity);
    const unsigned char* stage = stages + ring.stage * ring.stage_bytes;
    if (tile * kTileRows < rows && col + half * (kCols / kHalves) < share.end) {
      multiply<kTokenTiles>(Format{}, stage + weight_at, stage + scale_at, stage + token_at, sums);
    }
    cuda::barrier_arrive(ring.empty());
    ring.next();
  }
}

/// Adds the sums of the cluster's blocks and of the halves, ascending, and stores: each block some
/// of the rows. All workers of the cluster's blocks.
template <int kTokenTiles>
__device__ void store_rows(const LinearRowsPartSm90& part, const float* sums, int first, int rows,
                           int tokens, int cluster, int rank) {
  using S = Sizes<kTokenTiles>;
  const int begin = rows * rank / cluster;
  const int count = rows * (rank + 1) / cluster - begin;
  const uint32_t base = cuda::shared_address(sums);
  for (int i = threadIdx.x; i < count * tokens; i += kWorkers) {
    const int token = i / count;
    const int row = begin + i - token * count;
    float total = 0.0f;
    for (int block = 0; block < cluster; ++block) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        const int at = (half * kBlockRows + row) * S::kSumStride + token;
        total +=
            cluster == 1 ? sums[at] : load_of_block(base + static_cast<uint32_t>(at) * 4, block);
      }
    }
    if (part.add != nullptr) {
      total += __ldcg(part.add + token * part.add_stride + first + row);
    }
    part.out[token * part.out_stride + first + row] = total;
  }
}

__device__ __forceinline__ void sync_workers() {
  asm volatile("bar.sync 1, %0;" ::"n"(kWorkers) : "memory");
}

/// A barrier of all workers of the cluster; the copying warps take part, too, when they are done: a
/// cluster's rows are one block of rows.
__device__ __forceinline__ void sync_blocks(int cluster) {
  if (cluster == 1) {
    sync_workers();
  } else {
    cluster_sync();
  }
}

template <typename Format, int kTokenTiles>
__device__ __forceinline__ void run_part(const Launch& p, int index, unsigned char* memory) {
  using S = Sizes<kTokenTiles>;
  const LinearRowsPartSm90& part = p.args.parts[index];
  const int rank = p.cluster == 1 ? 0 : static_cast<int>(cluster_rank());
  const Share share = share_of<Format>(p, index, rank);
  const int tokens = static_cast<int>(p.args.tokens);
  unsigned char* stages = memory + kBarrierBytes;
  auto* sums = reinterpret_cast<float*>(stages + p.stages * S::kStageBytes);
  Ring ring = {cuda::shared_address(memory), cuda::shared_address(stages), p.stages,
               S::kStageBytes};
  if (threadIdx.x >= kWorkers) {
    copy_share<Format, kTokenTiles>(part, share, ring, tokens);
    if (p.cluster > 1 && share.rows > 0) {
      cluster_sync();
      cluster_sync();
    }
    return;
  }
  cuda::wait_for_previous();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int base = 0; base < share.rows; base += share.block_rows) {
    const int rows = min(share.block_rows, share.rows - base);
    float sum[kTokenTiles][4] = {};
    multiply_rows<Format, kTokenTiles>(share, rows, ring, stages, sum);
    float* to =
        sums + (warp / kTiles * kBlockRows + warp % kTiles * kTileRows + lane / 4) * S::kSumStride +
        lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
      *reinterpret_cast<float2*>(to + 8 * n) = make_float2(sum[n][0], sum[n][1]);
      *reinterpret_cast<float2*>(to + 8 * S::kSumStride + 8 * n) =
          make_float2(sum[n][2], sum[n][3]);
    }
    sync_blocks(p.cluster);
    store_rows<kTokenTiles>(part, sums, share.first + base, rows, tokens, p.cluster, rank);
    sync_blocks(p.cluster);
  }
}

template <int kTokenTiles>
__global__ void __launch_bounds__(kThreads, 1) linear_rows_sm90(const __grid_constant__ Launch p) {
  extern __shared__ __align__(128) unsigned char memory[];
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStagesMax; ++i) {
      cuda::barrier_init(cuda::shared_address(memory) + i * 8, kCopiers);
      cuda::barrier_init(cuda::shared_address(memory) + (kStagesMax + i) * 8, 32 * kWarps);
    }
    cuda::barrier_init_done();
  }
  __syncthreads();
  int part = 0;
  while (static_cast<int>(blockIdx.x) / p.cluster >= p.first_cluster[part + 1]) {
    ++part;
  }
  if (p.args.parts[part].weight.format == MatrixFormat::kInt8) {
    run_part<Int8, kTokenTiles>(p, part, memory);
  } else {
    run_part<Bf16, kTokenTiles>(p, part, memory);
  }
}

/// Clusters of each part by its bytes, one at least; false where there are too few.
bool deal_clusters(const LinearRowsSm90& args, int clusters,
                   int (&first)[kLinearRowsPartsMax + 1]) {
  double total = 0.0;
  for (int i = 0; i < args.count; ++i) {
    total += static_cast<double>(args.parts[i].weight.bytes());
  }
  int count[kLinearRowsPartsMax] = {};
  int largest = 0;
  int left = clusters;
  for (int i = 0; i < args.count; ++i) {
    const double share = static_cast<double>(args.parts[i].weight.bytes()) / total;
    count[i] = std::max(1, static_cast<int>(share * clusters + 0.5));
    left -= count[i];
    largest = count[i] > count[largest] ? i : largest;
  }
  count[largest] += left;
  first[0] = 0;
  for (int i = 0; i < kLinearRowsPartsMax; ++i) {
    first[i + 1] = first[i] + count[i];
  }
  return count[largest] > 0;
}

/// Whether blocks should cut the columns between them: where rows are few, tokens cost more than
/// the weights, and a block reads those of its columns alone.
bool wants_clusters(const LinearRowsSm90& args, int blocks) {
  int64_t rows = 0;
  int64_t groups = kClusterMax;
  for (int i = 0; i < args.count; ++i) {
    rows += args.parts[i].weight.rows;
    groups = std::min(groups, args.parts[i].weight.cols / kGroupColumns);
  }
  return rows < int64_t{32} * blocks && groups == kClusterMax;
}

/// Whether every cluster has one block of rows.
bool one_block_each(const Launch& launch) {
  for (int i = 0; i < launch.args.count; ++i) {
    const int clusters = launch.first_cluster[i + 1] - launch.first_cluster[i];
    if (launch.args.parts[i].weight.rows > static_cast<int64_t>(clusters) * kBlockRows) {
      return false;
    }
  }
  return true;
}

template <int kTokenTiles>
cudaError_t launch(const LinearRowsSm90& args, cudaStream_t stream) {
  using S = Sizes<kTokenTiles>;
  Launch launch{args, {}, 0, 1};
  launch.stages =
      std::min(kStagesMax, (kSharedMax - kBarrierBytes - S::kSumBytes) / S::kStageBytes);
  const int bytes = kBarrierBytes + launch.stages * S::kStageBytes + S::kSumBytes;
  int device = 0;
  int blocks = 0;
  cudaError_t error = cudaGetDevice(&device);
  const auto then = [&](auto&& next) { error = error == cudaSuccess ? next() : error; };
  then([&] { return cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, device); });
  then([&] {
    return cudaFuncSetAttribute(linear_rows_sm90<kTokenTiles>,
                                cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  });
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {kClusterMax, 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks / kClusterMax * kClusterMax));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = static_cast<size_t>(bytes);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 1;
  if (wants_clusters(args, blocks)) {
    int clusters = 0;
    then([&] {
      return cudaOccupancyMaxActiveClusters(&clusters, linear_rows_sm90<kTokenTiles>, &config);
    });
    clusters = std::min(clusters, blocks / kClusterMax);
    if (deal_clusters(args, clusters, launch.first_cluster) && one_block_each(launch)) {
      launch.cluster = kClusterMax;
    }
  }
  if (error != cudaSuccess) {
    return error;
  }
  if (launch.cluster == 1) {
    attributes[0].val.clusterDim = {1, 1, 1};
    if (!deal_clusters(args, blocks, launch.first_cluster)) {
      return cudaErrorNotSupported;
    }
  }
  config.gridDim = dim3(static_cast<unsigned>(launch.first_cluster[args.count] * launch.cluster));
  config.numAttrs = args.overlap ? 2 : 1;
  return cudaLaunchKernelEx(&config, linear_rows_sm90<kTokenTiles>, launch);
}

/// Whether copies can take the part's rows as they lie.
bool is_aligned(const LinearRowsPartSm90& part) {
  const auto address = [](const void* p) { return reinterpret_cast<uintptr_t>(p); };
  return address(part.weight.data) % 16 == 0 && address(part.weight.scales) % 8 == 0 &&
         address(part.in) % 16 == 0 && part.in_stride % 8 == 0;
}

}  // namespace

bool linear_rows_sm90_supports(const MatrixView& weight, int64_t tokens) {
  const bool known = weight.format == MatrixFormat::kBf16 || weight.format == MatrixFormat::kInt8;
  return known && weight.rows >= 0 && weight.rows < 1 << 30 && weight.cols > 0 &&
         weight.cols % kGroupColumns == 0 && weight.cols < 1 << 20 && tokens >= 0 &&
         tokens <= kLinearRowsTokensMax;
}

extern "C" int triax_cuda_linear_rows_sm90(const LinearRowsSm90* args, void* stream) {
  if (args->count < 0 || args->count > kLinearRowsPartsMax) {
    return cudaErrorNotSupported;
  }
  LinearRowsSm90 call = *args;
  call.count = 0;
  for (int i = 0; i < args->count; ++i) {
    if (!linear_rows_sm90_supports(args->parts[i].weight, args->tokens) ||
        !is_aligned(args->parts[i])) {
      return cudaErrorNotSupported;
    }
    if (args->parts[i].weight.rows > 0) {
      call.parts[call.count++] = args->parts[i];
    }
  }
  if (args->tokens == 0 || call.count == 0) {
    return cudaSuccess;
  }
  auto* queue = static_cast<cudaStream_t>(stream);
  if (args->tokens <= 8) {
    return launch<1>(call, queue);
  }
  if (args->tokens <= 16) {
    return launch<2>(call, queue);
  }
  return args->tokens <= 32 ? launch<4>(call, queue) : launch<8>(call, queue);
}

}  // namespace triax::dense
