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

#include "device/cuda/barrier.cuh"
#include "device/cuda/overlap.cuh"
#include "width/latent_moe/moe_decode_plan_sm90.cuh"
#include "width/latent_moe/moe_decode_routes_sm90.cuh"
#include "width/latent_moe/moe_decode_sm90.h"
#include "width/latent_moe/moe_mxfp4_sm90.cuh"

namespace triax::width {
namespace {

using namespace sm90;
using namespace sm90::decode;

// One thread's work: a tile's weights and scales are two or four contiguous pieces.
__device__ void copy_tiles(const Params& p, const Plan& plan, const Shared& s) {
  const MoeExpertsSm90& w = p.args.weights;
  Job job;
  Ring ring;
  for (enter_phase(plan, s, job); job.phase < 2; next_job(plan, s, job)) {
    const bool first = job.phase == 0;
    const int e = s.visited[job.slot];
    const int columns = first ? plan.columns[0] : plan.columns[1];
    const int data_bytes = kTileRows / 2 * (columns / 2);  // of half a tile
    const int scale_bytes = kTileRows / 2 * (columns / 32);
    const int step = first ? 1 : 2;  // halves of a tile in one matrix
    const uint8_t* data0 = first ? w.gate[e] : w.down[e];
    const uint8_t* data1 = first ? w.up[e] : data0 + data_bytes;
    const uint8_t* scales0 = first ? w.gate_scales[e] : w.down_scales[e];
    const uint8_t* scales1 = first ? w.up_scales[e] : scales0 + scale_bytes;
    for (int tile = job.begin; tile < job.end; ++tile) {
      const int64_t at = static_cast<int64_t>(tile) * step;
      const uint32_t full = s.full + 8 * ring.stage;
      const uint32_t to = shared_address(s.ring + ring.stage * p.layout.stage_bytes);
      barrier_wait(s.empty + 8 * ring.stage, ring.parity ^ 1);
      barrier_arrive_expecting(full, 2 * (data_bytes + scale_bytes));
      copy_bulk(to, data0 + at * data_bytes, data_bytes, full);
      copy_bulk(to + data_bytes, data1 + at * data_bytes, data_bytes, full);
      copy_bulk(to + 2 * data_bytes, scales0 + at * scale_bytes, scale_bytes, full);
      copy_bulk(to + 2 * data_bytes + scale_bytes, scales1 + at * scale_bytes, scale_bytes, full);
      ring.advance(1, p.layout.stages);
    }
  }
}

// Eight columns of float32 as two bf16 planes, in the order of permuted_octet.
__device__ __forceinline__ void split_octet(const float* from, unsigned char* high_to,
                                            unsigned char* low_to) {
  const float4 a = __ldcg(reinterpret_cast<const float4*>(from));
  const float4 b = __ldcg(reinterpret_cast<const float4*>(from) + 1);
  const float high[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
  float low[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    low[j] = high[j] - __bfloat162float(__float2bfloat16_rn(high[j]));
  }
  *reinterpret_cast<uint4*>(high_to) = permuted_octet(high);
  *reinterpret_cast<uint4*>(low_to) = permuted_octet(low);
}

// Brings eight columns of a row of `in` into shared memory as two bf16 planes, columns permuted.
__device__ __forceinline__ void copy_input(const Params& p, int token, int octet,
                                           unsigned char* to) {
  const int columns = static_cast<int>(p.args.weights.width);
  const int at = octet / 16 * (kGroupColumns * 2) + octet_position(octet % 16) * 16;
  split_octet(p.args.in + token * p.args.in_stride + 8 * octet, to + at,
              to + plane_bytes(columns) + at);
}

// The same for the activations of a route, which lie in memory as planes.
__device__ __forceinline__ void copy_hidden(const Params& p, int route, int octet,
                                            unsigned char* to) {
  const int columns = static_cast<int>(p.args.weights.hidden);
  const auto* from =
      reinterpret_cast<const uint4*>(p.hidden + static_cast<int64_t>(route) * 4 * columns) + octet;
  reinterpret_cast<uint4*>(to)[octet] = __ldcg(from);
  reinterpret_cast<uint4*>(to + plane_bytes(columns))[octet] = __ldcg(from + columns / 8);
}

// Brings a set of tokens into shared memory.
__device__ void load_tokens(const Params& p, const Plan& plan, const Shared& s,
                            const TokenSet& set) {
  const int octets = (set.phase == 0 ? plan.columns[0] : plan.columns[1]) / 8;
  const int begin = s.begin[set.slot] + set.first;
  const int count = min(s.begin[set.slot + 1] - begin, p.layout.slots);
#pragma unroll 2
  for (int i = threadIdx.x; i < count * octets; i += kMultiplyThreads) {
    const int token = i / octets;
    const int octet = i - token * octets;
    const int route = s.routes[begin + token];
    unsigned char* to = s.tokens + token * p.layout.token_bytes;
    if (set.phase == 0) {
      copy_input(p, route / static_cast<int>(p.args.routes), octet, to);
    } else {
      copy_hidden(p, route, octet, to);
    }
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

// Where this lane's operands lie, the same for all tiles of a job.
struct Lane {
  int columns, parts, part;  // part: columns of one
  int warps;                 // that take parts in turn
  int reciprocal;            // 2^16 / parts, rounded up
  int weights;               // from a stage's begin
  int scales;
  const unsigned char* tokens;

  __device__ Lane(const Params& p, const Plan& plan, const Shared& s, const Job& job)
      : columns(job.phase == 0 ? plan.columns[0] : plan.columns[1]),
        parts(parts_of(columns)),
        part(part_columns(columns)),
        warps(min(kMultiplyWarps, parts * p.layout.stages)),
        reciprocal((65536 + parts - 1) / parts) {
    const int g = lane_id() / 4;
    const int t = lane_id() % 4;
    weights = g * (columns / 2) + t * 16;
    scales = kTileRows * (columns / 2) + g * (columns / 32) + t;
    // Lanes of absent planes read a present one: what they make is not stored.
    const int plane = min(g, 2 * job_tokens(s, job) - 1);
    const bool resident = p.layout.resident && job.phase == 0;
    const int token = resident ? job_route(s, job, plane / 2) / static_cast<int>(p.args.routes)
                               : job.pass * kTileTokens % p.layout.slots + plane / 2;
    tokens = s.tokens + token * p.layout.token_bytes + plane % 2 * plane_bytes(columns) + t * 16;
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
  barrier_arrive_many(s.ready + 8 * ring.stage,
                      part == 0 ? 1 + p.layout.parts_max - lane.parts : 1);
}

__device__ __forceinline__ void wait_for_grid(const unsigned long long* counter,
                                              unsigned long long target) {
  unsigned long long seen;
  do {
    asm volatile("ld.acquire.gpu.u64 %0, [%1];" : "=l"(seen) : "l"(counter) : "memory");
  } while (seen < target);
}

// A warp's parts of a job's tiles. `part` is its next, counted from the first part of the job's
// first tile, and then from that of the next job.
__device__ __forceinline__ void multiply_job(const Params& p, const Shared& s, const Job& job,
                                             const Lane& lane, int& part, Ring& ring) {
  for (int tile = job.begin;;) {
    int skip = part * lane.reciprocal >> 16;  // tiles
    const bool ends = tile + skip >= job.end;
    skip = ends ? job.end - tile : skip;
    part -= skip * lane.parts;
    ring.advance(skip, p.layout.stages);
    if (ends) {
      return;
    }
    tile += skip;
    multiply_part(p, s, lane, part, ring);
    part += lane.warps;
  }
}

__device__ void multiply_tiles(const Params& p, const Plan& plan, const Shared& s) {
  const int warp = threadIdx.x / 32;
  Ring ring;
  int phase = -1;
  int part = 0;
  TokenSet loaded;
  Job job;
  for (enter_phase(plan, s, job); job.phase < 2; next_job(plan, s, job)) {
    if (job.phase == 1 && phase < 1 && threadIdx.x == 0) {
      wait_for_grid(p.barriers[0], s.targets[0]);
    }
    const TokenSet wanted(job, p.layout.slots);
    if (!(wanted == loaded) && (!p.layout.resident || job.phase == 1)) {
      asm volatile("bar.sync 1, %0;" ::"n"(kMultiplyThreads) : "memory");
      load_tokens(p, plan, s, wanted);
      asm volatile("bar.sync 1, %0;" ::"n"(kMultiplyThreads) : "memory");
      loaded = wanted;
    }
    const Lane lane(p, plan, s, job);
    if (job.phase != phase) {
      part = warp;
      phase = job.phase;
    }
    if (warp < lane.warps) {
      multiply_job(p, s, job, lane, part, ring);
    } else {
      for (int left = job.end - job.begin; left > 0; left -= p.layout.stages) {
        ring.advance(min(left, p.layout.stages), p.layout.stages);
      }
    }
  }
}

// Activation number `column` of 8 of a tile, as its two planes in the order of permuted_octet.
__device__ __forceinline__ void store_hidden(const Params& p, int route, int tile, int column,
                                             float value) {
  const int64_t plane = 2 * p.args.weights.hidden;  // bytes
  unsigned char* to = p.hidden + route * 2 * plane + tile / 16 * (kGroupColumns * 2) +
                      octet_position(tile % 16) * 16 + column % 4 * 4 + column / 4 * 2;
  const __nv_bfloat16 high = __float2bfloat16_rn(value);
  *reinterpret_cast<__nv_bfloat16*>(to) = high;
  *reinterpret_cast<__nv_bfloat16*>(to + plane) =
      __float2bfloat16_rn(value - __bfloat162float(high));
}

// Adds a tile's parts, ascending; stores hidden values (a lane: one of 8 f, one token) or partial
// ones (a lane: one row, two tokens).
__device__ void add_tile(const Params& p, const Plan& plan, const Shared& s, const Job& job,
                         int tile, const Ring& ring) {
  constexpr float kScale = static_cast<float>(1ull << -kWeightExponent);
  const int lane = threadIdx.x % 32;
  const int columns = job.phase == 0 ? plan.columns[0] : plan.columns[1];
  const int first = job.phase == 0 ? lane / 8 * kTileRows + lane % 8 : lane;
  const int other = first + (job.phase == 0 ? 8 : 32);
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
  barrier_arrive(s.empty + 8 * ring.stage);
  const int count = job_tokens(s, job);
  if (job.phase == 0) {
    if (lane / 8 < count) {
      store_hidden(p, job_route(s, job, lane / 8), tile, lane % 8,
                   activate(p.args.activation, a * kScale, b * kScale));
    }
    return;
  }
  const int row = tile * kTileRows + lane % kTileRows;
  const int token = lane / kTileRows;
  if (token < count) {
    p.partial[static_cast<int64_t>(job_route(s, job, token)) * plan.columns[0] + row] = a * kScale;
  }
  if (token + 2 < count) {
    p.partial[static_cast<int64_t>(job_route(s, job, token + 2)) * plan.columns[0] + row] =
        b * kScale;
  }
}

__device__ void add_tiles(const Params& p, const Plan& plan, const Shared& s) {
  const int warp = threadIdx.x / 32 - kMultiplyWarps;
  Ring ring;
  Job job;
  enter_phase(plan, s, job);
  for (int phase = 0; phase < 2; ++phase) {
    for (; job.phase == phase; next_job(plan, s, job)) {
      for (int tile = job.begin; tile < job.end; ++tile) {
        if (ring.stage % kAddWarps == warp) {
          add_tile(p, plan, s, job, tile, ring);
        }
        ring.advance(1, p.layout.stages);
      }
    }
    asm volatile("bar.sync 2, %0;" ::"n"(kAddWarps * 32) : "memory");
    if (threadIdx.x == kMultiplyThreads) {
      __threadfence();
      atomicAdd(p.barriers[phase], 1ull);
    }
  }
}

__device__ void init_barriers(const Params& p, const Shared& s) {
  for (int i = 0; i < p.layout.stages; ++i) {
    barrier_init(s.full + 8 * i, 1);
    barrier_init(s.ready + 8 * i, static_cast<uint32_t>(32 * p.layout.parts_max));
    barrier_init(s.empty + 8 * i, 32);
  }
  barrier_init(s.listed, 32);
  fence_async_proxy();  // bulk copies complete on them
}

// The tables of addresses and the router's bias come near before the routes are known.
__device__ __forceinline__ void warm_tables(const MoeDecodeSm90& args) {
  const MoeExpertsSm90& w = args.weights;
  const uint8_t* const* tables[6] = {w.gate,      w.up,   w.gate_scales,
                                     w.up_scales, w.down, w.down_scales};
  const auto warm = [&](const void* begin, int64_t bytes) {
    const int64_t at = lane_id() * 128;
    if (at < bytes) {
      asm volatile("prefetch.global.L1 [%0];" ::"l"(static_cast<const char*>(begin) + at));
    }
  };
  constexpr int64_t kExperts = 512;  // 32 lines of a table
  if (w.experts <= kExperts) {
#pragma unroll
    for (const auto* table : tables) {
      warm(table, w.experts * 8);
    }
  }
  if (args.routes_from == MoeRoutes::kLogits) {
    warm(args.choice.bias, w.experts * 4);
  }
}

// Lists by the first warps, while the others bring all tokens.
__device__ void start_few(const Params& p, const Shared& s, const unsigned long long (&seen)[2]) {
  const int tokens = static_cast<int>(p.args.tokens);
  const int warp = threadIdx.x / 32;
  if (warp < tokens) {
    take_routes(p, s, warp);
    asm volatile("bar.sync 3, %0;" ::"r"(tokens * 32) : "memory");
    if (warp == 0) {
      group_few_routes(s, tokens * static_cast<int>(p.args.routes));
      if (threadIdx.x == 0) {
        set_targets(s, seen);
      }
      barrier_arrive(s.listed);
    }
  } else if (warp < kMultiplyWarps) {
    const int octets = static_cast<int>(p.args.weights.width) / 8;
#pragma unroll 2
    for (int i = threadIdx.x - tokens * 32; i < tokens * octets;
         i += kMultiplyThreads - tokens * 32) {
      const int token = i / octets;
      copy_input(p, token, i - token * octets, s.tokens + token * p.layout.token_bytes);
    }
  }
  barrier_wait(s.listed, 0);
  if (warp < kMultiplyWarps) {
    asm volatile("bar.sync 1, %0;" ::"n"(kMultiplyThreads) : "memory");
  }
}

__device__ void start_many(const Params& p, const Shared& s, const unsigned long long (&seen)[2]) {
  if (threadIdx.x == 0) {
    set_targets(s, seen);
  }
  for (int t = threadIdx.x / 32; t < p.args.tokens; t += kThreads / 32) {
    take_routes(p, s, t);
  }
  __syncthreads();
  group_routes(p, s);
  fence_async_proxy();  // group_routes used the ring, which bulk copies write from here on
  __syncthreads();
}

__global__ void __launch_bounds__(kThreads, 1)
    moe_decode_mxfp4_sm90(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) unsigned char memory[];
  const Shared s(memory, p.layout);
  if (threadIdx.x == 0) {
    init_barriers(p, s);
  }
  const int warp = threadIdx.x / 32;
  if (warp == kThreads / 32 - 1) {
    warm_tables(p.args);
  }
  cuda::wait_for_previous();
  unsigned long long seen[2] = {};
  if (threadIdx.x == 0) {
    seen[0] = *static_cast<const volatile unsigned long long*>(p.barriers[0]);
    seen[1] = *static_cast<const volatile unsigned long long*>(p.barriers[1]);
  }
  __syncthreads();
  if (p.layout.resident) {
    start_few(p, s, seen);
  } else {
    start_many(p, s, seen);
  }
  const Plan plan = make_plan(p, s);
  if (warp < kMultiplyWarps) {
    multiply_tiles(p, plan, s);
  } else if (warp < kMultiplyWarps + kAddWarps) {
    add_tiles(p, plan, s);
  } else if (lane_id() == 0) {
    copy_tiles(p, plan, s);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    wait_for_grid(p.barriers[1], s.targets[1]);
  }
  __syncthreads();
  combine(p, s);
}

int aligned128(int bytes) { return (bytes + 127) / 128 * 128; }

constexpr int kStagesGood = 6;  // that must be left for a second pass's tokens

// As many stages as fit.
Layout make_layout(int64_t width, int64_t hidden, int64_t tokens, int64_t routes) {
  const int columns = static_cast<int>(std::max(width, hidden));
  Layout layout{};
  layout.parts_max =
      std::max(parts_of(static_cast<int>(width)), parts_of(static_cast<int>(hidden)));
  layout.sums = aligned128(tile_bytes(columns));
  layout.stage_bytes = layout.sums + aligned128(layout.parts_max * kPartSums * 4);
  layout.resident = tokens <= kTileTokens && tokens * routes <= 32;
  layout.token_bytes = aligned128(2 * plane_bytes(columns));
  const int lists = aligned128(kListBytes);
  const auto stages = [&](int slots) {
    const int room = kSharedMax - slots * layout.token_bytes - lists - kBarriersBytes;
    return std::min(kStagesMax, room / layout.stage_bytes);
  };
  const int taken = static_cast<int>(std::min<int64_t>(std::max<int64_t>(tokens, 1), kTileTokens));
  layout.slots =
      tokens > kTileTokens && stages(2 * kTileTokens) >= kStagesGood ? 2 * kTileTokens : taken;
  layout.stages = stages(layout.slots);
  layout.tokens = std::max(layout.stages * layout.stage_bytes, kGroupingBytes);
  layout.lists = layout.tokens + layout.slots * layout.token_bytes;
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
         make_layout(w.width, w.hidden, kTileTokens, routes).stages >= 4;
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
  Params p{*args, make_layout(w.width, w.hidden, args->tokens, args->routes), {}, nullptr, nullptr};
  p.barriers[0] = reinterpret_cast<unsigned long long*>(base);
  p.barriers[1] = reinterpret_cast<unsigned long long*>(base + kBarrierBytes / 2);
  p.hidden = base + kBarrierBytes;
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
  return cuda::launch_overlapping(moe_decode_mxfp4_sm90, dim3(static_cast<unsigned>(processors)),
                                  kThreads, bytes, static_cast<cudaStream_t>(stream), true, p);
}

}  // namespace triax::width
