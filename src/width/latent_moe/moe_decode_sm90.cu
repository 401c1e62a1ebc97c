// Routed experts for a few tokens: one persistent block a multiprocessor streams packed weights
// through a ring of bulk copies, unpacks them in registers and multiplies on tensor cores.
//
// The work is two lists of tiles of 16 rows, expert by expert: gate and up with the activation (8
// rows of each, so that one thread holds both halves), then down. A block takes a contiguous share
// of each list. One warp copies, running ahead over the end of the first list, so that the grid's
// barrier between the lists costs no bandwidth; 15 warps multiply, taking parts of 512 columns in
// turn over all tiles, so that all stay busy whatever the width; 4 warps add up the parts of a tile
// in their order, give its stage back and store.
//
// A barrier's parity tells a phase only from its neighbours. Hence three rules: a warp that
// multiplies skips at most as many tiles as the ring has stages (Lane::warps); before it waits for
// a stage's weights it waits for the sums of the stage's tile before; a stage's sums are always
// added by the same warp.
#include <cuda_runtime.h>

#include <algorithm>

#include "width/latent_moe/moe_decode_plan_sm90.cuh"
#include "width/latent_moe/moe_decode_sm90.h"
#include "width/latent_moe/moe_mxfp4_sm90.cuh"
#include "width/latent_moe/moe_wgmma_sm90.cuh"

namespace triax::width {
namespace {

using namespace sm90;
using namespace sm90::decode;

__device__ __forceinline__ void copy_bulk(uint32_t to, const void* from, int bytes,
                                          uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

__device__ __forceinline__ void barrier_expect(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void barrier_arrive_many(uint32_t barrier, uint32_t count) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(count)
               : "memory");
}

// One thread's work: a tile's weights and scales are two or four contiguous pieces.
__device__ void copy_tiles(const Params& p, const Plan& plan, const Shared& s) {
  const MoeExpertsSm90& w = p.args.weights;
  Cursor c;
  enter_phase(plan, s, c);
  Ring ring;
  int key = -1;
  const uint8_t *data0 = nullptr, *data1 = nullptr, *scales0 = nullptr, *scales1 = nullptr;
  while (c.phase < 2) {
    if (key != c.phase * static_cast<int>(kMoeDecodeExpertsMax) + c.slot) {
      key = c.phase * static_cast<int>(kMoeDecodeExpertsMax) + c.slot;
      const int e = s.visited[c.slot];
      data0 = c.phase == 0 ? w.gate[e] : w.down[e];
      data1 = c.phase == 0 ? w.up[e] : data0;
      scales0 = c.phase == 0 ? w.gate_scales[e] : w.down_scales[e];
      scales1 = c.phase == 0 ? w.up_scales[e] : scales0;
    }
    const int columns = c.phase == 0 ? plan.columns[0] : plan.columns[1];
    const int rows = kTileRows / 2;
    const int data_bytes = rows * (columns / 2);
    const int scale_bytes = rows * (columns / 32);
    const int64_t upper = c.phase == 0 ? c.tile : 2 * c.tile;  // in halves of a tile
    const int64_t lower = c.phase == 0 ? c.tile : 2 * c.tile + 1;
    const uint32_t full = s.full + 8 * ring.stage;
    const uint32_t to = shared_address(s.ring + ring.stage * p.layout.stage_bytes);
    barrier_wait(s.empty + 8 * ring.stage, ring.parity ^ 1);
    barrier_expect(full, 2 * (data_bytes + scale_bytes));
    copy_bulk(to, data0 + upper * data_bytes, data_bytes, full);
    copy_bulk(to + data_bytes, data1 + lower * data_bytes, data_bytes, full);
    copy_bulk(to + 2 * data_bytes, scales0 + upper * scale_bytes, scale_bytes, full);
    copy_bulk(to + 2 * data_bytes + scale_bytes, scales1 + lower * scale_bytes, scale_bytes, full);
    ring.next(p.layout.stages);
    advance(plan, s, c);
  }
}

// Brings the activations of a pass into shared memory as two bf16 planes, columns permuted.
__device__ void load_tokens(const Params& p, const Plan& plan, const Shared& s, const Cursor& c) {
  const int columns = c.phase == 0 ? plan.columns[0] : plan.columns[1];
  const int octets = columns / 8;
  const int k = static_cast<int>(p.args.routes);
  const int count = pass_tokens(s, c);
  for (int i = threadIdx.x; i < count * octets; i += kMultiplyThreads) {
    const int token = i / octets;
    const int octet = i - token * octets;
    const int route = pass_route(s, c, token);
    const float* from = c.phase == 0 ? p.args.in + (route / k) * p.args.in_stride
                                     : p.hidden + static_cast<int64_t>(route) * columns;
    const float4 a = __ldcg(reinterpret_cast<const float4*>(from) + 2 * octet);
    const float4 b = __ldcg(reinterpret_cast<const float4*>(from) + 2 * octet + 1);
    const float high[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    float low[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      low[j] = high[j] - __bfloat162float(__float2bfloat16_rn(high[j]));
    }
    unsigned char* to = s.tokens + 2 * token * plane_bytes(columns) +
                        octet / 16 * (kGroupColumns * 2) + octet_position(octet % 16) * 16;
    *reinterpret_cast<uint4*>(to) = permuted_octet(high);
    *reinterpret_cast<uint4*>(to + plane_bytes(columns)) = permuted_octet(low);
  }
}

// sum += 16 rows of one word (8 columns of each of the four lanes' blocks) by the 8 planes.
__device__ __forceinline__ void multiply_word(uint32_t upper, uint32_t lower, uint32_t upper_scale,
                                              uint32_t lower_scale, const unsigned char* tokens,
                                              float (&sum)[4]) {
  const uint4 b = *reinterpret_cast<const uint4*>(tokens);
  uint32_t a[4];
  unpack_mxfp4_half<0>(upper, upper_scale, a[0], a[2]);
  unpack_mxfp4_half<0>(lower, lower_scale, a[1], a[3]);
  mma_bf16(sum, a[0], a[1], a[2], a[3], b.x, b.y);
  unpack_mxfp4_half<1>(upper, upper_scale, a[0], a[2]);
  unpack_mxfp4_half<1>(lower, lower_scale, a[1], a[3]);
  mma_bf16(sum, a[0], a[1], a[2], a[3], b.z, b.w);
}

__device__ __forceinline__ uint4 load_quad(const unsigned char* from) {
  return *reinterpret_cast<const uint4*>(from);
}

// Where this lane's operands lie, the same for all tiles of one width and one set of tokens.
struct Lane {
  int columns, parts, part;  // part: columns of one
  int warps;                 // that take parts in turn
  int weights;               // from a stage's begin
  int scales;
  const unsigned char* tokens;

  // Lanes of absent planes read a present one: what they make is not stored.
  __device__ Lane(const Shared& s, int columns_, int planes, int stages)
      : columns(columns_),
        parts(parts_of(columns_)),
        part(part_columns(columns_)),
        warps(min(kMultiplyWarps, parts * stages)) {
    const int g = threadIdx.x % 32 / 4;
    const int t = threadIdx.x % 4;
    weights = g * (columns / 2) + t * 16;
    scales = kTileRows * (columns / 2) + g * (columns / 32) + t;
    tokens = s.tokens + min(g, planes - 1) * plane_bytes(columns) + t * 16;
  }
};

// sum0, sum1 += two groups; without the second, the first's weights are read again, times zero.
__device__ __forceinline__ void multiply_pair(const unsigned char* weights,
                                              const unsigned char* scales,
                                              const unsigned char* tokens, int lower, bool second,
                                              float (&sum0)[4], float (&sum1)[4]) {
  const int half = second ? 1 : 0;
  const uint4 upper0 = load_quad(weights);
  const uint4 lower0 = load_quad(weights + 16 * lower);
  const uint4 upper1 = load_quad(weights + 64 * half);
  const uint4 lower1 = load_quad(weights + 16 * lower + 64 * half);
  const uint32_t upper_scale0 = mxfp4_multiplier(scales[0]);
  const uint32_t lower_scale0 = mxfp4_multiplier(scales[lower]);
  uint32_t upper_scale1 = mxfp4_multiplier(scales[4 * half]);
  uint32_t lower_scale1 = mxfp4_multiplier(scales[lower + 4 * half]);
  if (!second) {
    upper_scale1 = lower_scale1 = 0;
  }
  const unsigned char* tokens1 = tokens + kGroupColumns * 2 * half;
  multiply_word(upper0.x, lower0.x, upper_scale0, lower_scale0, tokens, sum0);
  multiply_word(upper1.x, lower1.x, upper_scale1, lower_scale1, tokens1, sum1);
  multiply_word(upper0.y, lower0.y, upper_scale0, lower_scale0, tokens + 64, sum0);
  multiply_word(upper1.y, lower1.y, upper_scale1, lower_scale1, tokens1 + 64, sum1);
  multiply_word(upper0.z, lower0.z, upper_scale0, lower_scale0, tokens + 128, sum0);
  multiply_word(upper1.z, lower1.z, upper_scale1, lower_scale1, tokens1 + 128, sum1);
  multiply_word(upper0.w, lower0.w, upper_scale0, lower_scale0, tokens + 192, sum0);
  multiply_word(upper1.w, lower1.w, upper_scale1, lower_scale1, tokens1 + 192, sum1);
}

// One warp, one tile, one part: products to the stage's sums.
__device__ __forceinline__ void multiply_part(const Params& p, const Shared& s, const Lane& lane,
                                              int part, const Ring& ring) {
  const int columns = lane.columns - part * lane.part;  // from here to the end
  const int lower = lane.columns / 4;                   // scale bytes of 8 rows
  unsigned char* stage = s.ring + ring.stage * p.layout.stage_bytes;
  const unsigned char* weights = stage + lane.weights + part * (lane.part / 2);
  const unsigned char* scales = stage + lane.scales + part * (lane.part / 32);
  const unsigned char* tokens = lane.tokens + part * (lane.part * 2);
  float sum0[4] = {};
  float sum1[4] = {};
  barrier_wait(s.ready + 8 * ring.stage, ring.parity ^ 1);
  barrier_wait(s.full + 8 * ring.stage, ring.parity);
  multiply_pair(weights, scales, tokens, lower, columns > kGroupColumns, sum0, sum1);
  if (lane.part > kPairColumns && columns > kPairColumns) {
    multiply_pair(weights + kPairColumns / 2, scales + kPairColumns / 32, tokens + kPairColumns * 2,
                  lower, columns > kPairColumns + kGroupColumns, sum0, sum1);
  }
  float* to = reinterpret_cast<float*>(stage + p.layout.sums) + part * kPartSums +
              threadIdx.x % 4 * kTileRows + threadIdx.x % 32 / 4;
  to[0] = (sum0[0] + sum1[0]) + (sum0[1] + sum1[1]);
  to[8] = (sum0[2] + sum1[2]) + (sum0[3] + sum1[3]);
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    barrier_arrive_many(s.ready + 8 * ring.stage,
                        part == 0 ? 1 + p.layout.parts_max - lane.parts : 1);
  }
}

__device__ __forceinline__ void wait_for_grid(const unsigned long long* counter,
                                              unsigned long long target) {
  unsigned long long seen;
  do {
    asm volatile("ld.acquire.gpu.u64 %0, [%1];" : "=l"(seen) : "l"(counter) : "memory");
  } while (seen < target);
}

__device__ void multiply_tiles(const Params& p, const Plan& plan, const Shared& s) {
  Cursor c;
  enter_phase(plan, s, c);
  Ring ring;
  int part = 0;  // the next of this warp, counted from the tile's first
  int phase = -1;
  int loaded = -1;
  Lane lane(s, plan.columns[0], 1, p.layout.stages);
  while (c.phase < 2) {
    const int wanted = c.slot * 64 + c.pass;
    if (wanted != loaded || c.phase != phase) {
      if (c.phase == 1 && phase < 1 && threadIdx.x == 0) {
        wait_for_grid(p.barriers[0], s.targets[0]);
      }
      asm volatile("bar.sync 1, %0;" ::"n"(kMultiplyThreads) : "memory");
      load_tokens(p, plan, s, c);
      asm volatile("bar.sync 1, %0;" ::"n"(kMultiplyThreads) : "memory");
      lane = Lane(s, c.phase == 0 ? plan.columns[0] : plan.columns[1], 2 * pass_tokens(s, c),
                  p.layout.stages);
      if (c.phase != phase) {
        const int warp = threadIdx.x / 32;
        part = warp < lane.warps ? warp : 1 << 30;
      }
      loaded = wanted;
      phase = c.phase;
    }
    for (; part < lane.parts; part += lane.warps) {
      multiply_part(p, s, lane, part, ring);
    }
    part -= lane.parts;
    ring.next(p.layout.stages);
    advance(plan, s, c);
  }
}

// Adds a tile's parts, ascending; stores hidden values (a lane: one of 8 f, one token) or partial
// ones (a lane: one row, two tokens).
__device__ void add_tile(const Params& p, const Plan& plan, const Shared& s, const Cursor& c,
                         const Ring& ring) {
  constexpr float kScale = static_cast<float>(1ull << -kWeightExponent);
  const int lane = threadIdx.x % 32;
  const int columns = c.phase == 0 ? plan.columns[0] : plan.columns[1];
  const int first = c.phase == 0 ? lane / 8 * kTileRows + lane % 8 : lane;
  const int other = first + (c.phase == 0 ? 8 : 32);
  const auto* from =
      reinterpret_cast<const float*>(s.ring + ring.stage * p.layout.stage_bytes + p.layout.sums);
  float a = 0.0f;
  float b = 0.0f;
  barrier_wait(s.ready + 8 * ring.stage, ring.parity);
#pragma unroll 4
  for (int part = 0; part < parts_of(columns); ++part) {
    a += from[part * kPartSums + first];
    b += from[part * kPartSums + other];
  }
  __syncwarp();
  if (lane == 0) {
    barrier_arrive(s.empty + 8 * ring.stage);
  }
  const int count = pass_tokens(s, c);
  if (c.phase == 0) {
    if (lane / 8 < count) {
      float* to = p.hidden + static_cast<int64_t>(pass_route(s, c, lane / 8)) * plan.columns[1];
      to[c.tile * 8 + lane % 8] = activate(p.args.activation, a * kScale, b * kScale);
    }
    return;
  }
  const int row = c.tile * kTileRows + lane % kTileRows;
  const int token = lane / kTileRows;
  if (token < count) {
    p.partial[static_cast<int64_t>(pass_route(s, c, token)) * plan.columns[0] + row] = a * kScale;
  }
  if (token + 2 < count) {
    p.partial[static_cast<int64_t>(pass_route(s, c, token + 2)) * plan.columns[0] + row] =
        b * kScale;
  }
}

__device__ void add_tiles(const Params& p, const Plan& plan, const Shared& s) {
  const int warp = threadIdx.x / 32 - kMultiplyWarps;
  Cursor c;
  enter_phase(plan, s, c);
  Ring ring;
  for (int phase = 0; phase < 2; ++phase) {
    while (c.phase == phase) {
      if (ring.stage % kAddWarps == warp) {
        add_tile(p, plan, s, c, ring);
      }
      ring.next(p.layout.stages);
      advance(plan, s, c);
    }
    asm volatile("bar.sync 2, %0;" ::"n"(kAddWarps * 32) : "memory");
    if (threadIdx.x == kMultiplyThreads) {
      __threadfence();
      atomicAdd(p.barriers[phase], 1ull);
    }
  }
}

// out[t] = sum of its routes' partial values, in the order of ids.
__device__ void combine(const Params& p) {
  constexpr int kAtOnce = 8;
  const int quads = static_cast<int>(p.args.weights.width) / 4;
  const int k = static_cast<int>(p.args.routes);
  const int count = static_cast<int>(p.args.tokens) * quads;
  for (int i = blockIdx.x * kThreads + threadIdx.x; i < count; i += gridDim.x * kThreads) {
    const int t = i / quads;
    const int quad = i - t * quads;
    const auto* from =
        reinterpret_cast<const float4*>(p.partial) + static_cast<int64_t>(t) * k * quads + quad;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int first = 0; first < k; first += kAtOnce) {
      float4 y[kAtOnce];
      float weight[kAtOnce];
      bool present[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int route = min(first + j, k - 1);
        y[j] = __ldcg(from + static_cast<int64_t>(route) * quads);
        weight[j] = p.args.route_weights[t * p.args.route_weights_stride + route];
        present[j] = first + j < k && route_expert(p, t * k + route) >= 0;
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (present[j]) {
          sum.x += weight[j] * y[j].x;
          sum.y += weight[j] * y[j].y;
          sum.z += weight[j] * y[j].z;
          sum.w += weight[j] * y[j].w;
        }
      }
    }
    float* out = p.args.out + t * p.args.out_stride + 4 * quad;
    out[0] = sum.x;
    out[1] = sum.y;
    out[2] = sum.z;
    out[3] = sum.w;
  }
}

__device__ void init_barriers(const Params& p, const Shared& s) {
  for (int i = 0; i < p.layout.stages; ++i) {
    barrier_init(s.full + 8 * i, 1);
    barrier_init(s.ready + 8 * i, static_cast<uint32_t>(p.layout.parts_max));
    barrier_init(s.empty + 8 * i, 1);
  }
  // A launch adds an arrival a block; before this block's own, less than that has been added.
  for (int i = 0; i < 2; ++i) {
    const unsigned long long seen = *static_cast<volatile unsigned long long*>(p.barriers[i]);
    s.targets[i] = (seen / gridDim.x + 1) * gridDim.x;
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    moe_decode_mxfp4_sm90(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) unsigned char memory[];
  const Shared s(memory, p.layout);
  if (threadIdx.x == 0) {
    init_barriers(p, s);
  }
  const Plan plan = make_plan(p, s, group_routes(p, s));
  fence_tensor_reads();  // group_routes used the ring, which bulk copies write from here on
  __syncthreads();
  const int warp = threadIdx.x / 32;
  if (warp < kMultiplyWarps) {
    multiply_tiles(p, plan, s);
  } else if (warp < kMultiplyWarps + kAddWarps) {
    add_tiles(p, plan, s);
  } else if (threadIdx.x % 32 == 0) {
    copy_tiles(p, plan, s);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    wait_for_grid(p.barriers[1], s.targets[1]);
  }
  __syncthreads();
  combine(p);
}

int aligned128(int bytes) { return (bytes + 127) / 128 * 128; }

// As many stages as fit.
Layout make_layout(int64_t width, int64_t hidden) {
  const int columns = static_cast<int>(std::max(width, hidden));
  Layout layout{};
  layout.parts_max =
      std::max(parts_of(static_cast<int>(width)), parts_of(static_cast<int>(hidden)));
  layout.sums = aligned128(tile_bytes(columns));
  layout.stage_bytes = layout.sums + aligned128(layout.parts_max * kPartSums * 4);
  const int tokens = aligned128(2 * kTileTokens * plane_bytes(columns));
  const int lists = aligned128(kListBytes);
  const int room = kSharedMax - tokens - lists - kBarriersBytes;
  layout.stages = std::min(kStagesMax, room / layout.stage_bytes);
  layout.tokens = std::max(layout.stages * layout.stage_bytes, 16384);  // group_routes needs that
  layout.lists = layout.tokens + tokens;
  layout.barriers = layout.lists + lists;
  layout.bytes = layout.barriers + kBarriersBytes;
  return layout;
}

int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

bool moe_decode_sm90_supports(const MoeExpertsSm90& w, int64_t tokens, int64_t routes) {
  return tokens >= 0 && tokens <= kMoeDecodeTokensMax && w.experts > 0 &&
         w.experts <= kMoeDecodeExpertsMax && routes > 0 &&
         tokens * routes <= kMoeDecodeRoutesMax && w.width > 0 && w.hidden > 0 &&
         w.width % 128 == 0 && w.hidden % 128 == 0 && w.width <= 8192 && w.hidden <= 8192 &&
         make_layout(w.width, w.hidden).stages >= 4;
}

extern "C" int64_t triax_cuda_moe_decode_sm90_scratch_bytes(int64_t tokens, int64_t routes,
                                                            int64_t width, int64_t hidden) {
  return kBarrierBytes + aligned(tokens * routes * hidden * 4) + tokens * routes * width * 4;
}

extern "C" int triax_cuda_moe_decode_sm90(const MoeDecodeSm90* args, void* stream) {
  const MoeExpertsSm90& w = args->weights;
  if (!moe_decode_sm90_supports(w, args->tokens, args->routes)) {
    return cudaErrorNotSupported;
  }
  if (args->tokens == 0) {
    return cudaSuccess;
  }
  auto* base = static_cast<unsigned char*>(args->scratch);
  Params p{*args, make_layout(w.width, w.hidden), {}, nullptr, nullptr};
  p.barriers[0] = reinterpret_cast<unsigned long long*>(base);
  p.barriers[1] = reinterpret_cast<unsigned long long*>(base + kBarrierBytes / 2);
  p.hidden = reinterpret_cast<float*>(base + kBarrierBytes);
  p.partial = reinterpret_cast<float*>(base + kBarrierBytes +
                                       aligned(args->tokens * args->routes * w.hidden * 4));
  const int bytes = p.layout.bytes;
  cudaError_t error = cudaFuncSetAttribute(moe_decode_mxfp4_sm90,
                                           cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  int device = 0;
  int processors = 0;
  if (error == cudaSuccess) {
    error = cudaGetDevice(&device);
  }
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  }
  if (error != cudaSuccess) {
    return error;
  }
  // One block fits a multiprocessor, so all of them come to run whatever else does, and the
  // barrier needs no cooperative launch.
  moe_decode_mxfp4_sm90<<<static_cast<unsigned>(processors), kThreads, bytes,
                          static_cast<cudaStream_t>(stream)>>>(p);
  return cudaGetLastError();
}

}  // namespace triax::width
