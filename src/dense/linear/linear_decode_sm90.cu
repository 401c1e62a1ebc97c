// Products with few rows. A block belongs to one matrix and takes an even share of its rows, 16 at
// a time (a tile). One warp copies tiles, wide ones in chunks of columns, by as few bulk copies as
// there can be: each costs some 66 clocks, whatever its size. Two sets of six warps take the copies
// in turn; a warp multiplies some of a copy's groups of 128 columns. The first copies are on their
// way before the kernel in front has ended, so that memory never idles.
#include <cuda_runtime.h>

#include <algorithm>

#include "dense/linear/linear_decode_input_sm90.cuh"
#include "device/cuda/barrier.cuh"

namespace triax::dense {
namespace {

using namespace sm90;

constexpr int kTileRows = 16;
constexpr int kTileBytes = 40960;  // a tile of more is cut into
constexpr int kChunkBytes = 2048;  // chunks of so much of a row, which lie
constexpr int kRowPad = 64;        // apart: two rows meet no bank twice then
constexpr int kDepthMax = 2;       // stages of a set
constexpr int kDeepTiles = 3;      // a block of more has both
constexpr int kRoundTilesMax = 8;  // whose sums are added up and stored together
constexpr int kRoundBytes = 4096;  // of such sums
constexpr int kBarrierBytes = 128;
constexpr int kSharedMax = 232448 - 1024;

/// How a matrix is cut. Made on the host: a division costs a block a hundred clocks.
struct Cut {
  int groups;        // of 128 columns in a row
  int bytes;         // of a row
  int scale_bytes;   // of a row
  int chunks;        // of a tile
  int chunk_groups;  // the last may have fewer
  int stride;        // from row to row in a stage
  int align;         // rows: where scales are 16-byte aligned
  int round_tiles;   // whose sums are added up and stored together
  int block_units;   // `align` rows each: of every block of the part,
  int more_units;    // and one more of the first so many

  __host__ __device__ int stage_bytes() const { return kTileRows * (stride + scale_bytes); }
  __host__ __device__ int partials() const { return chunks * kSetWarps; }
};

/// What the kernel gets: the call, which blocks serve which part, how shared memory is cut.
struct Launch {
  LinearDecodeSm90 args;
  Cut cuts[kLinearDecodePartsMax];
  int first_block[kLinearDecodePartsMax + 1];
  int depth_log;
  int stage_bytes;
  int sum_bytes;  // of one round
};

// A block's rows of one matrix.
struct Share {
  Cut cut;
  const unsigned char* data;  // of its first row
  const unsigned char* scales;
  int first, rows;
  int tiles;

  __device__ int groups_of(int chunk) const {
    return min(cut.chunk_groups, cut.groups - chunk * cut.chunk_groups);
  }
};

__device__ __forceinline__ Share share_of(const Launch& p, int part) {
  const MatrixView& weight = p.args.parts[part].weight;
  const int block = static_cast<int>(blockIdx.x) - p.first_block[part];
  Share s;
  s.cut = p.cuts[part];
  const int units = s.cut.block_units + (block < s.cut.more_units ? 1 : 0);
  s.first = (s.cut.block_units * block + min(block, s.cut.more_units)) * s.cut.align;
  s.rows = max(0, min(units * s.cut.align, static_cast<int>(weight.rows) - s.first));
  s.tiles = (s.rows + kTileRows - 1) / kTileRows;
  s.data =
      static_cast<const unsigned char*>(weight.data) + static_cast<int64_t>(s.first) * s.cut.bytes;
  s.scales = static_cast<const unsigned char*>(weight.scales) +
             static_cast<int64_t>(s.first) * s.cut.scale_bytes;
  return s;
}

/// The stages: 1 << depth_log of each set, used in turn. Barriers: a full one for each, then an
/// empty one.
struct Stages {
  uint32_t barriers;  // shared addresses
  uint32_t first;
  int depth_log;  // 0 or 1
  int bytes;

  __device__ int turn(int use) const { return use & depth_log; }
  __device__ int slot(int set, int use) const { return set * kDepthMax + turn(use); }
  __device__ uint32_t full(int slot) const { return barriers + slot * 8; }
  __device__ uint32_t empty(int slot) const { return barriers + (kSets * kDepthMax + slot) * 8; }
  __device__ int place(int set, int use) const { return ((set << depth_log) + turn(use)) * bytes; }
  __device__ uint32_t parity(int use) const { return static_cast<uint32_t>(use >> depth_log) & 1u; }
};

/// Scales of rows that are no whole 16 bytes together: the last of a matrix.
template <typename Format>
__device__ __noinline__ void copy_scales(const Share& share, uint32_t to, int tile, int rows) {
  const int64_t first = static_cast<int64_t>(tile) * kTileRows * share.cut.scale_bytes;
  const int bytes = rows * share.cut.scale_bytes;
  for (int i = static_cast<int>(threadIdx.x) % 32 * Format::kScaleBytes; i < bytes;
       i += 32 * Format::kScaleBytes) {
    cuda::copy_async<Format::kScaleBytes>(to + static_cast<uint32_t>(i), share.scales + first + i);
  }
}

/// One chunk of one tile into a stage, and the scales of the whole tile. A whole warp.
template <typename Format>
__device__ __forceinline__ void copy_chunk(const Share& share, uint32_t to, uint32_t full, int tile,
                                           int chunk) {
  const Cut& cut = share.cut;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int rows = min(kTileRows, share.rows - tile * kTileRows);
  const auto row_bytes = static_cast<uint32_t>(share.groups_of(chunk) * Format::kBytes);
  const auto scale_bytes = static_cast<uint32_t>(rows * cut.scale_bytes);
  const bool whole = scale_bytes % 16 == 0;
  const uint32_t scales = to + static_cast<uint32_t>(kTileRows * cut.stride);
  const unsigned char* from = share.data + static_cast<int64_t>(tile) * kTileRows * cut.bytes +
                              chunk * cut.chunk_groups * Format::kBytes;
  if (lane == 0) {
    cuda::barrier_arrive_expecting(
        full, static_cast<uint32_t>(rows) * row_bytes + (whole ? scale_bytes : 0u));
    if (cut.chunks == 1) {
      cuda::copy_bulk(to, from, static_cast<uint32_t>(rows) * row_bytes, full);
    }
    if (whole && scale_bytes > 0) {
      cuda::copy_bulk(scales,
                      share.scales + static_cast<int64_t>(tile) * kTileRows * cut.scale_bytes,
                      scale_bytes, full);
    }
  }
  __syncwarp();
  if (cut.chunks > 1 && lane < rows) {
    cuda::copy_bulk(to + static_cast<uint32_t>(lane * cut.stride),
                    from + static_cast<int64_t>(lane) * cut.bytes, row_bytes, full);
  }
  if constexpr (Format::kScaleBytes > 0) {
    if (!whole) {
      copy_scales<Format>(share, scales, tile, rows);
    }
  }
  cuda::barrier_arrive_after_copies(full);
}

/// The warp that copies.
template <typename Format>
__device__ __forceinline__ void copy_share(const Share& share, const Stages& stages) {
  const int early = kSets << stages.depth_log;
  int n = 0;
  for (int tile = 0; tile < share.tiles; ++tile) {
    for (int chunk = 0; chunk < share.cut.chunks; ++chunk, ++n) {
      const int set = n % kSets;
      const int use = n / kSets;
      if (n == early) {
        cuda::wait_for_previous();
      }
      const int slot = stages.slot(set, use);
      if (n >= early) {
        cuda::barrier_wait(stages.empty(slot), stages.parity(use) ^ 1);
      }
      copy_chunk<Format>(share, stages.first + static_cast<uint32_t>(stages.place(set, use)),
                         stages.full(slot), tile, chunk);
    }
  }
  if (n <= early) {
    cuda::wait_for_previous();
  }
}

// Adds the partial sums of a round's rows, ascending, and stores. All workers.
template <int kTokens>
__device__ void store_round(const LinearDecodeSm90& args, const DecodePartSm90& part,
                            const Share& share, const float* sums, int first_tile) {
  constexpr int kStep = kTileRows * kTokens;
  const int base = first_tile * kTileRows;
  const int rows = min(share.cut.round_tiles * kTileRows, share.rows - base);
  const int tokens = static_cast<int>(args.tokens);
  for (int i = threadIdx.x; i < rows * tokens; i += kWorkers) {
    const int token = tokens == 1 ? 0 : i / rows;
    const int row = i - token * rows;
    const float* from =
        sums + row / kTileRows * share.cut.partials() * kStep + token * kTileRows + row % kTileRows;
    const int64_t at = share.first + base + row;
    const float add = part.add != nullptr ? __ldcg(part.add + token * part.add_stride + at) : 0.0f;
    float total = 0.0f;
    for (int chunk = 0; chunk < share.cut.chunks; ++chunk) {
      float values[kSetWarps];
#pragma unroll
      for (int w = 0; w < kSetWarps; ++w) {
        values[w] = from[(chunk * kSetWarps + w) * kStep];
      }
#pragma unroll
      for (int w = 0; w < kSetWarps; ++w) {
        total += values[w];
      }
    }
    part.out[token * part.out_stride + at] = part.add != nullptr ? total + add : total;
  }
}

/// The warps that multiply.
template <typename Format, int kTokens>
__device__ __forceinline__ void multiply_share(const LinearDecodeSm90& args,
                                               const DecodePartSm90& part, const Share& share,
                                               const Stages& stages, const unsigned char* memory,
                                               float* sums, int sum_floats,
                                               const unsigned char* planes) {
  constexpr int kStep = kTileRows * kTokens;
  const Cut& cut = share.cut;
  const int cols = cut.groups * kGroupColumns;
  const int tokens = static_cast<int>(args.tokens);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int set = warp / kSetWarps;
  const int own = warp % kSetWarps;
  const int row = static_cast<int>(threadIdx.x) % 32 / 4;
  Format products;
  int tile = 0;
  int chunk = set;
  while (chunk >= cut.chunks) {
    chunk -= cut.chunks;
    ++tile;
  }
  int use = 0;
  int buffer = 0;
  for (int base = 0; base < share.tiles; base += share.cut.round_tiles) {
    const int end = min(share.tiles, base + share.cut.round_tiles);
    float* round = sums + buffer * sum_floats;
    while (tile < end) {
      const int slot = stages.slot(set, use);
      const int groups = share.groups_of(chunk);
      cuda::barrier_wait(stages.full(slot), stages.parity(use));
      const unsigned char* stage = memory + stages.place(set, use);
      const unsigned char* data = stage + row * cut.stride;
      const unsigned char* scales = stage + kTileRows * cut.stride + row * cut.scale_bytes +
                                    chunk * cut.chunk_groups * Format::kScaleBytes;
#pragma unroll 2
      for (int group = own; group < groups; group += kSetWarps) {
        const unsigned char* at = data + group * Format::kBytes;
        const unsigned char* scales_at = scales + group * Format::kScaleBytes;
        products.multiply({at, at + 8 * cut.stride, scales_at, scales_at + 8 * cut.scale_bytes},
                          planes, cols, tokens, chunk * cut.chunk_groups + group);
      }
      cuda::barrier_arrive(stages.empty(slot));
      products.finish(round + ((tile - base) * cut.partials() + chunk * kSetWarps + own) * kStep,
                      tokens);
      ++use;
      chunk += kSets;
      while (chunk >= cut.chunks) {
        chunk -= cut.chunks;
        ++tile;
      }
    }
    sync_workers();
    store_round<kTokens>(args, part, share, round, base);
    buffer ^= 1;
  }
}

template <MatrixFormat kFormat, int kTokens>
__device__ __forceinline__ void run_part(const Launch& p, int index, unsigned char* memory) {
  using Format = Products<kFormat, kTokens>;
  const DecodePartSm90& part = p.args.parts[index];
  const Share share = share_of(p, index);
  unsigned char* first = memory + kBarrierBytes;
  auto* sums = reinterpret_cast<float*>(first + (kSets << p.depth_log) * p.stage_bytes);
  unsigned char* planes = first + (kSets << p.depth_log) * p.stage_bytes + 2 * p.sum_bytes;
  const Stages stages = {cuda::shared_address(memory), cuda::shared_address(first), p.depth_log,
                         p.stage_bytes};
  if (threadIdx.x >= kWorkers) {
    copy_share<Format>(share, stages);
    return;
  }
  const int cols = share.cut.groups * kGroupColumns;
  if (p.args.tokens == 1 && cols <= 8 * kWorkers &&
      part.in.kind == DecodeInputSm90::Kind::kNormed) {
    prepare_one<kFormat, kTokens>(p.args, part.in, cols, planes);
  } else {
    cuda::wait_for_previous();
    prepare_input<kFormat, kTokens>(p.args, part.in, cols, planes);
  }
  sync_workers();
  multiply_share<Format, kTokens>(p.args, part, share, stages, first, sums, p.sum_bytes / 4,
                                  planes);
}

template <int kTokens>
__global__ void __launch_bounds__(kThreads, 2)
    linear_decode_sm90(const __grid_constant__ Launch p) {
  extern __shared__ __align__(128) unsigned char memory[];
  cuda::let_next_begin();
  if (threadIdx.x == 0) {
    constexpr int kSlots = kSets * kDepthMax;
    for (int i = 0; i < kSlots; ++i) {
      cuda::barrier_init(cuda::shared_address(memory) + i * 8, 1 + 32);
      cuda::barrier_init(cuda::shared_address(memory) + (kSlots + i) * 8, 32 * kSetWarps);
    }
    cuda::barrier_init_done();
  }
  __syncthreads();
  int part = 0;
  while (static_cast<int>(blockIdx.x) >= p.first_block[part + 1]) {
    ++part;
  }
  switch (p.args.parts[part].weight.format) {
    case MatrixFormat::kBf16:
      run_part<MatrixFormat::kBf16, kTokens>(p, part, memory);
      break;
    case MatrixFormat::kInt8:
      run_part<MatrixFormat::kInt8, kTokens>(p, part, memory);
      break;
    default:
      run_part<MatrixFormat::kMxfp4, kTokens>(p, part, memory);
      break;
  }
}

/// Bytes of a part's tokens.
int input_bytes(const MatrixView& weight, int64_t tokens) {
  const int cols = static_cast<int>(weight.cols);
  const auto count = static_cast<int>(tokens);
  if (weight.format == MatrixFormat::kInt8) {
    using Format = Products<MatrixFormat::kInt8, 2>;
    return count * (2 * Format::plane_bytes(cols) + Format::scale_bytes(cols));
  }
  return count * 2 * Bf16Tokens<2>::plane_bytes(cols);
}

int group_bytes(MatrixFormat format) {
  return format == MatrixFormat::kBf16   ? Products<MatrixFormat::kBf16, 2>::kBytes
         : format == MatrixFormat::kInt8 ? Products<MatrixFormat::kInt8, 2>::kBytes
                                         : Products<MatrixFormat::kMxfp4, 2>::kBytes;
}

int group_scale_bytes(MatrixFormat format) {
  return format == MatrixFormat::kBf16   ? 0
         : format == MatrixFormat::kInt8 ? Products<MatrixFormat::kInt8, 2>::kScaleBytes
                                         : Products<MatrixFormat::kMxfp4, 2>::kScaleBytes;
}

/// All but how rows are dealt.
Cut cut_of(const MatrixView& weight) {
  const int bytes = group_bytes(weight.format);
  Cut c = {};
  c.groups = static_cast<int>(weight.cols) / kGroupColumns;
  c.bytes = c.groups * bytes;
  c.scale_bytes = c.groups * group_scale_bytes(weight.format);
  c.chunks = kTileRows * c.bytes <= kTileBytes ? 1 : (c.bytes + kChunkBytes - 1) / kChunkBytes;
  c.chunk_groups = (c.groups + c.chunks - 1) / c.chunks;
  c.stride = c.chunks == 1 ? c.bytes : c.chunk_groups * bytes + kRowPad;
  c.align = c.scale_bytes % 16 == 0 ? 1 : c.scale_bytes % 8 == 0 ? 2 : 4;
  return c;
}

int tile_sum_bytes(const MatrixView& weight, int64_t tokens) {
  return cut_of(weight).partials() * kTileRows * (tokens <= 2 ? 2 : 4) * 4;
}

/// Rows for `blocks` blocks, rounds for sums of `sum_bytes` a round.
Cut dealt(const MatrixView& weight, int64_t tokens, int blocks, int sum_bytes) {
  Cut c = cut_of(weight);
  const int units = (static_cast<int>(weight.rows) + c.align - 1) / c.align;
  c.block_units = units / blocks;
  c.more_units = units % blocks;
  c.round_tiles = std::min(kRoundTilesMax, sum_bytes / tile_sum_bytes(weight, tokens));
  return c;
}

/// How shared memory is cut for `tokens` tokens.
struct Room {
  int stage_bytes = 0;
  int sum_bytes = 0;
  int input_bytes = 0;

  void add(const MatrixView& weight, int64_t tokens) {
    const Cut cut = cut_of(weight);
    stage_bytes = std::max(stage_bytes, (cut.stage_bytes() + 127) / 128 * 128);
    sum_bytes = std::max({sum_bytes, kRoundBytes, tile_sum_bytes(weight, tokens)});
    input_bytes = std::max(input_bytes, triax::dense::input_bytes(weight, tokens));
  }
  int bytes(int depth) const {
    return kBarrierBytes + kSets * depth * stage_bytes + 2 * sum_bytes + input_bytes;
  }
  bool fits(int depth) const { return bytes(depth) <= kSharedMax; }
};

Room room_of(const LinearDecodeSm90& args, int64_t tokens) {
  Room room;
  for (int i = 0; i < args.count; ++i) {
    room.add(args.parts[i].weight, tokens);
  }
  return room;
}

/// Blocks of each part by its bytes, one at least; false where there are more parts than blocks.
bool deal_blocks(const LinearDecodeSm90& args, int blocks,
                 int (&first)[kLinearDecodePartsMax + 1]) {
  double total = 0.0;
  for (int i = 0; i < args.count; ++i) {
    total += static_cast<double>(args.parts[i].weight.bytes());
  }
  int count[kLinearDecodePartsMax] = {};
  int largest = 0;
  int left = blocks;
  for (int i = 0; i < args.count; ++i) {
    const double share = static_cast<double>(args.parts[i].weight.bytes()) / total;
    count[i] = std::max(1, static_cast<int>(share * blocks + 0.5));
    left -= count[i];
    largest = count[i] > count[largest] ? i : largest;
  }
  count[largest] += left;
  first[0] = 0;
  for (int i = 0; i < kLinearDecodePartsMax; ++i) {
    first[i + 1] = first[i] + count[i];
  }
  return count[largest] > 0;
}

cudaError_t multiprocessors(int* count) {
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  return error != cudaSuccess
             ? error
             : cudaDeviceGetAttribute(count, cudaDevAttrMultiProcessorCount, device);
}

template <int kTokens>
cudaError_t launch(const Launch& launch, int blocks, int bytes, cudaStream_t stream) {
  const cudaError_t error = cudaFuncSetAttribute(
      linear_decode_sm90<kTokens>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) {
    return error;
  }
  return cuda::launch_overlapping(linear_decode_sm90<kTokens>, dim3(static_cast<unsigned>(blocks)),
                                  kThreads, bytes, stream, launch.args.overlap, launch);
}

/// The call for `count` tokens from `first`.
LinearDecodeSm90 tokens_of(const LinearDecodeSm90& args, int64_t first, int64_t count) {
  LinearDecodeSm90 call = args;
  call.tokens = count;
  for (int i = 0; i < args.count; ++i) {
    DecodePartSm90& part = call.parts[i];
    part.in.a += first * part.in.a_stride;
    part.in.b = part.in.b != nullptr ? part.in.b + first * part.in.b_stride : nullptr;
    part.out += first * part.out_stride;
    part.add = part.add != nullptr ? part.add + first * part.add_stride : nullptr;
  }
  const int64_t cols = args.parts[0].weight.cols;
  call.sum = args.sum != nullptr ? args.sum + first * cols : nullptr;
  call.x = args.x != nullptr ? args.x + first * cols : nullptr;
  return call;
}

/// Two stages a set where blocks have several tiles; else room for the next kernel is worth more.
bool has_many_tiles(const LinearDecodeSm90& args, int blocks) {
  int64_t rows = 0;
  for (int i = 0; i < args.count; ++i) {
    rows += args.parts[i].weight.rows;
  }
  return rows > int64_t{kDeepTiles} * kTileRows * blocks;
}

/// As many launches as the tokens of wide matrices need: one, mostly.
cudaError_t launch_all(const LinearDecodeSm90& args, cudaStream_t stream) {
  int64_t fit = args.tokens;
  while (fit > 1 && !room_of(args, fit).fits(1)) {
    --fit;
  }
  const Room room = room_of(args, fit);
  int blocks = 0;
  if (const cudaError_t error = multiprocessors(&blocks); error != cudaSuccess) {
    return error;
  }
  const int depth = has_many_tiles(args, blocks) && room.fits(kDepthMax) ? kDepthMax : 1;
  for (int64_t first = 0; first < args.tokens; first += fit) {
    Launch part{tokens_of(args, first, std::min(fit, args.tokens - first)),
                {},
                {},
                depth - 1,
                room.stage_bytes,
                room.sum_bytes};
    if (!deal_blocks(part.args, blocks, part.first_block)) {
      return cudaErrorNotSupported;
    }
    for (int i = 0; i < args.count; ++i) {
      part.cuts[i] = dealt(args.parts[i].weight, part.args.tokens,
                           part.first_block[i + 1] - part.first_block[i], room.sum_bytes);
    }
    const cudaError_t error = part.args.tokens <= 2
                                  ? launch<2>(part, blocks, room.bytes(depth), stream)
                                  : launch<4>(part, blocks, room.bytes(depth), stream);
    if (error != cudaSuccess) {
      return error;
    }
  }
  return cudaSuccess;
}

/// Whether copies can take the part's rows as they lie.
bool is_aligned(const DecodePartSm90& part) {
  const auto address = [](const void* p) { return reinterpret_cast<uintptr_t>(p); };
  return (address(part.weight.data) | address(part.weight.scales) | address(part.in.a) |
          address(part.in.b) | address(part.in.norm_weight)) %
                 16 ==
             0 &&
         (part.in.a_stride | part.in.b_stride) % 4 == 0;
}

}  // namespace

bool linear_decode_sm90_supports(const MatrixView& weight, int64_t tokens) {
  const bool known = weight.format == MatrixFormat::kBf16 || weight.format == MatrixFormat::kInt8 ||
                     weight.format == MatrixFormat::kMxfp4;
  if (!known || weight.rows < 0 || weight.rows >= 1 << 30 || weight.cols <= 0 ||
      weight.cols % kGroupColumns != 0 || weight.cols >= 1 << 17 || tokens < 0 ||
      tokens > kLinearDecodeTokensMax) {
    return false;
  }
  Room room;
  room.add(weight, 1);
  return room.fits(1);
}

extern "C" int triax_cuda_linear_decode_sm90(const LinearDecodeSm90* args, void* stream) {
  const auto by_products =
      reinterpret_cast<uintptr_t>(args->sum) | reinterpret_cast<uintptr_t>(args->x);
  if (args->count < 0 || args->count > kLinearDecodePartsMax || by_products % 16 != 0) {
    return cudaErrorNotSupported;
  }
  LinearDecodeSm90 call = *args;
  call.count = 0;
  for (int i = 0; i < args->count; ++i) {
    if (!linear_decode_sm90_supports(args->parts[i].weight, args->tokens) ||
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
  return launch_all(call, static_cast<cudaStream_t>(stream));
}

}  // namespace triax::dense
