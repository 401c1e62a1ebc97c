// Routed experts for many tokens: grouped products on tensor cores with packed weights.
//
// The weights are the first operand, unpacked in registers straight into wgmma's fragments; the
// tokens are the second, in shared memory, so a tile may have few of them. A persistent block has
// one warpgroup that copies (packed weights, gathered token rows) and three that unpack and
// multiply 64 weight rows each.
#include <cuda_runtime.h>

#include <algorithm>

#include "device/cuda/barrier.cuh"
#include "device/cuda/wgmma.cuh"
#include "width/latent_moe/moe_mxfp4_sm90.cuh"
#include "width/latent_moe/moe_prefill_plan_sm90.cuh"
#include "width/latent_moe/moe_prefill_sm90.h"

namespace triax::width {
namespace {

using namespace sm90;
using namespace sm90::prefill;

// Rows are dealt in blocks of 16. A block of gate and up holds 8 rows of each, the same 8: those
// whose results lie side by side in the permuted order.
template <Pass kPass>
__device__ __forceinline__ int matrix_row(int block, int r) {
  if constexpr (kPass == Pass::kGateUp) {
    const int g = r % 8;
    return block / 16 * 128 + 32 * (g / 2) + 4 * (g % 2) + 8 * (block % 16 / 4) + block % 4;
  } else {
    return block * 16 + r;
  }
}

__device__ __forceinline__ const uint8_t* matrix(const Grouped& p, int expert, int which,
                                                 bool scale) {
  return (scale ? p.scales[which] : p.data[which])[expert];
}

// The rows of `in` that a tile's tokens are.
__device__ void list_rows(const Grouped& p, const Shared& s, const Tile& tile) {
  asm volatile("bar.sync 1, 128;" ::: "memory");  // nobody reads the last tile's rows any more
  for (int n = threadIdx.x % 128; n < tile.count; n += 128) {
    s.rows[n] =
        static_cast<uint32_t>(p.in_rows != nullptr ? p.in_rows[tile.first + n] : tile.first + n);
  }
  asm volatile("bar.sync 1, 128;" ::: "memory");
}

__device__ __forceinline__ uint32_t load_shared(uint32_t address) {
  uint32_t value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address));
  return value;
}

// Copies all stages of one tile: 16 bytes of every 32nd row of weights a thread, 4 bytes of every
// 128th row of scales, 16 bytes of every 8th token. Rows past the matrix's end are left out: what
// lies there only makes rows that are not stored.
template <Pass kPass>
__device__ void copy_tile(const Grouped& p, const Shared& s, const Tile& tile, Ring& ring) {
  constexpr bool kBoth = kPass == Pass::kGateUp;
  constexpr int kWeightRows = kTileRows / 32;
  const int thread = threadIdx.x % 128;
  const uint8_t* weights =
      matrix(p, tile.expert, kBoth ? thread / 32 % 2 : 0, false) + thread % 4 * 16;
  const uint8_t* scales = matrix(p, tile.expert, kBoth ? thread / 8 % 2 : 0, true);
  uint32_t weight_at[kWeightRows];
  uint32_t scale_at[2];
  const auto row_at = [&](int r, int row_bytes) {
    const int row = matrix_row<kPass>(tile.slab * kTileBlocks + r / 16, r % 16);
    return r < kTileRows && row < p.rows ? static_cast<uint32_t>(row) * row_bytes : kNoRow;
  };
#pragma unroll
  for (int j = 0; j < kWeightRows; ++j) {
    weight_at[j] = row_at(thread / 4 + 32 * j, p.cols / 2);
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    scale_at[j] = row_at(thread + 128 * j, p.cols / 32);
  }
  list_rows(p, s, tile);
  const int chunk = thread % 16;
  const auto* tokens = reinterpret_cast<const unsigned char*>(p.in) + chunk * 16;
  const uint32_t rows_at = shared_address(s.rows);
  const uint32_t to_tokens =
      chunk / 8 * (kTokensMax * 128) + thread / 16 * 128 + ((chunk % 8) ^ (thread / 16)) * 16;
  for (int group = 0; group < p.cols / kGroupColumns; ++group) {
    barrier_wait(s.empty + 8 * ring.stage, ring.parity ^ 1);
    const uint32_t stage = shared_address(s.stages + ring.stage * kStageBytes);
#pragma unroll
    for (int j = 0; j < kWeightRows; ++j) {
      if (weight_at[j] != kNoRow) {
        copy_async<16>(stage + kTokenBytes + thread * 16 + j * 2048, weights + weight_at[j]);
      }
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (scale_at[j] != kNoRow) {
        copy_async<4>(stage + kTokenBytes + kWeightBytes + thread * 4 + j * 512,
                      scales + scale_at[j]);
      }
    }
#pragma unroll 4
    for (int n = thread / 16; n < tile.count; n += 8) {
      copy_async<16>(stage + to_tokens + n / 8 * 1024,
                     tokens + static_cast<uint64_t>(load_shared(rows_at + n * 4)) * (2 * p.cols));
    }
    barrier_arrive_after_copies(s.full + 8 * ring.stage);
    weights += kGroupColumns / 2;
    scales += kGroupColumns / 32;
    tokens += kGroupColumns * 2;
    ring.next();
  }
}

// One thread's packed weights of half a stage: two rows, one scale each.
struct Packed {
  uint2 words[2];
  uint32_t multiplier[2];
};

__device__ __forceinline__ int packed_row() { return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4; }

__device__ __forceinline__ void load_scales(const unsigned char* stage, Packed& packed) {
  const unsigned char* scales =
      stage + kTokenBytes + kWeightBytes + packed_row() * 4 + threadIdx.x % 4;
  packed.multiplier[0] = mxfp4_multiplier(scales[0]);
  packed.multiplier[1] = mxfp4_multiplier(scales[8 * 4]);
}

__device__ __forceinline__ void load_words(const unsigned char* stage, int half, Packed& packed) {
  const unsigned char* weights =
      stage + kTokenBytes + packed_row() * 64 + threadIdx.x % 4 * 16 + half * 8;
  packed.words[0] = *reinterpret_cast<const uint2*>(weights);
  packed.words[1] = *reinterpret_cast<const uint2*>(weights + 8 * 64);
}

// The first operand of one step of 16 columns.
struct Fragment {
  uint32_t a[4];
};

template <int kN, int kStep>
__device__ __forceinline__ void multiply_step(const Packed& packed, Fragment& f, uint32_t tokens,
                                              float (&sum)[kN / 2]) {
  wgmma_wait<1>();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    unpack_mxfp4_half<kStep % 2>(kStep / 2 % 2 == 0 ? packed.words[h].x : packed.words[h].y,
                                 packed.multiplier[h], f.a[h], f.a[2 + h]);
  }
  wgmma_begin();
  wgmma_rs<0>(sum, f.a, matrix_descriptor(tokens + kStep / 4 * (kTokensMax * 128) + kStep % 4 * 32),
              1);
  wgmma_commit();
}

// All stages of a tile. While the products of one step run, the next step's weights are unpacked.
template <int kN>
__device__ __forceinline__ void multiply_tile(const Grouped& p, const Shared& s, Ring& ring,
                                              float (&sum)[kN / 2]) {
  uint32_t previous = 0;  // the barrier that gives the last stage back
  Fragment even;
  Fragment odd;
  Packed packed;
  for (int group = 0; group < p.cols / kGroupColumns; ++group) {
    barrier_wait(s.full + 8 * ring.stage, ring.parity);
    fence_async_proxy();
    const unsigned char* stage = s.stages + ring.stage * kStageBytes;
    const uint32_t tokens = shared_address(stage);
    load_scales(stage, packed);
    load_words(stage, 0, packed);
    multiply_step<kN, 0>(packed, even, tokens, sum);
    multiply_step<kN, 1>(packed, odd, tokens, sum);
    if (previous != 0) {
      barrier_arrive(previous);
    }
    multiply_step<kN, 2>(packed, even, tokens, sum);
    multiply_step<kN, 3>(packed, odd, tokens, sum);
    load_words(stage, 1, packed);
    multiply_step<kN, 4>(packed, even, tokens, sum);
    multiply_step<kN, 5>(packed, odd, tokens, sum);
    multiply_step<kN, 6>(packed, even, tokens, sum);
    multiply_step<kN, 7>(packed, odd, tokens, sum);
    previous = s.empty + 8 * ring.stage;
    ring.next();
  }
  wgmma_wait<0>();
  barrier_arrive(previous);
}

// The activation with one division and the exponentials of the special function unit: within
// 2^-18 of its value, far below the rounding to bf16 that follows. Exponents are clamped where the
// factors have reached their limits.
__device__ __forceinline__ float activate_fast(const Activation& a, float gate, float up) {
  constexpr float kLog2e = 1.4426950408889634f;
  const float e = exp2f(fminf(-gate * kLog2e, 60.0f));
  if (a.kind == Activation::Kind::kSilu) {
    return __fdividef(gate, 1.0f + e) * up;
  }
  const float g = exp2f(fminf(gate * (-2.0f * kLog2e / a.beta), 30.0f));
  const float u = exp2f(fminf(up * (-2.0f * kLog2e / a.linear_beta), 30.0f));
  const float top = a.beta * a.linear_beta * (1.0f - g) * (1.0f - u);
  return __fdividef(top, (1.0f + g) * (1.0f + u) * (1.0f + e));
}

constexpr float kUnscale = static_cast<float>(1ull << -kWeightExponent);

// hidden[token, f] for the 8 f that the warp's lanes hold side by side.
template <int kN>
__device__ __forceinline__ void store_hidden(const Grouped& p, const Tile& tile,
                                             const float (&sum)[kN / 2]) {
  const int block = tile.slab * kTileBlocks + threadIdx.x / 32;
  if (block * 8 >= p.rows) {
    return;
  }
  __nv_bfloat16* to = p.hidden + tile.first * p.rows + block * 8 + threadIdx.x % 32 / 4;
#pragma unroll
  for (int j = 0; j < kN / 4; ++j) {
    const int n = j / 2 * 8 + 2 * (threadIdx.x % 4) + j % 2;
    if (n < tile.count) {
      const float gate = sum[j / 2 * 4 + j % 2] * kUnscale;
      const float up = sum[j / 2 * 4 + j % 2 + 2] * kUnscale;
      to[static_cast<int64_t>(n) * p.rows] =
          __float2bfloat16_rn(activate_fast(p.activation, gate, up));
    }
  }
}

template <int kN>
__device__ __forceinline__ void store_out(const Grouped& p, const Tile& tile,
                                          const float (&sum)[kN / 2]) {
  const int row = tile.slab * kTileRows + packed_row();
  const int left = p.rows - row;
  const int first = 2 * (threadIdx.x % 4);
  float* to = p.out + (tile.first + first) * p.rows + row;
#pragma unroll
  for (int j = 0; j < kN / 4; ++j) {
    const int n = j / 2 * 8 + first + j % 2;
    if (n < tile.count) {
      if (left > 0) {
        to[0] = sum[j / 2 * 4 + j % 2] * kUnscale;
      }
      if (left > 8) {
        to[8] = sum[j / 2 * 4 + 2 + j % 2] * kUnscale;
      }
    }
    to += static_cast<int64_t>(j % 2 == 0 ? 1 : 7) * p.rows;
  }
}

// Sizes of tiles that have code of their own. With more than these ptxas runs out of registers and
// waits after every product.
__host__ __device__ constexpr int next_size(int tokens) { return tokens == 32 ? 96 : tokens + 32; }

// The smallest of 32, 96, 128 and 160 that holds the tile's tokens.
template <Pass kPass, int kN>
__device__ __forceinline__ void run_tile(const Grouped& p, const Shared& s, const Tile& tile,
                                         Ring& ring) {
  if constexpr (kN < kTokensMax) {
    if (tile.count > kN) {
      return run_tile<kPass, next_size(kN)>(p, s, tile, ring);
    }
  }
  float sum[kN / 2] = {};
  multiply_tile<kN>(p, s, ring, sum);
  if constexpr (kPass == Pass::kGateUp) {
    store_hidden<kN>(p, tile, sum);
  } else {
    store_out<kN>(p, tile, sum);
  }
}

template <Pass kPass>
__global__ void __launch_bounds__(kThreads, 1)
    moe_prefill_mxfp4_sm90(const __grid_constant__ Grouped p) {
  extern __shared__ unsigned char memory[];
  const auto base = reinterpret_cast<uintptr_t>(memory);
  const Shared s(memory + ((base + 1023) / 1024 * 1024 - base));
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(s.full + 8 * i, 128);
      barrier_init(s.empty + 8 * i, kMultiplyThreads);
    }
  }
  count_tiles<kPass>(p, s);
  const uint32_t tiles = s.tiles[p.experts];
  Ring ring;
  Tile tile;
  tile.expert = 0;
  if (threadIdx.x >= kMultiplyThreads) {
    registers_shrink<56>();
    for (uint32_t i = blockIdx.x; i < tiles; i += gridDim.x) {
      tile = find_tile(p, s, i, tile.expert);
      copy_tile<kPass>(p, s, tile, ring);
    }
  } else {
    registers_grow<152>();
    for (uint32_t i = blockIdx.x; i < tiles; i += gridDim.x) {
      tile = find_tile(p, s, i, tile.expert);
      run_tile<kPass, 32>(p, s, tile, ring);
    }
  }
}

// Rows of float32 to bf16 in the order of columns that the products want: 16 bytes a thread.
__global__ void moe_permute_sm90(const float* in, int64_t stride, int cols, int64_t count,
                                 __nv_bfloat16* out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) {
    return;
  }
  const int chunks = cols / 8;
  const int64_t row = i / chunks;
  const int chunk = static_cast<int>(i - row * chunks);
  const float* from =
      in + row * stride + chunk / 16 * kGroupColumns + chunk % 16 / 4 * 8 + chunk % 4;
  uint4 packed;
  packed.x = pack_bf16(from[0], from[4]);
  packed.y = pack_bf16(from[32], from[36]);
  packed.z = pack_bf16(from[64], from[68]);
  packed.w = pack_bf16(from[96], from[100]);
  reinterpret_cast<uint4*>(out)[i] = packed;
}

// out[t] = sum of its routes' rows of y, in the order of ids.
__global__ void moe_combine_sm90(MoePrefillSm90 args, const float* y) {
  const int quads = static_cast<int>(args.weights.width) / 4;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t t = i / quads;
  if (t >= args.tokens) {
    return;
  }
  const int quad = static_cast<int>(i - t * quads);
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 8
  for (int64_t j = 0; j < args.routes; ++j) {
    const float weight = args.route_weights[t * args.route_weights_stride + j];
    const float4 v =
        reinterpret_cast<const float4*>(y)[args.groups.rows[t * args.routes + j] * quads + quad];
    sum.x += weight * v.x;
    sum.y += weight * v.y;
    sum.z += weight * v.z;
    sum.w += weight * v.w;
  }
  float* out = args.out + t * args.out_stride + 4 * quad;
  out[0] = sum.x;
  out[1] = sum.y;
  out[2] = sum.z;
  out[3] = sum.w;
}

// Whether every row's place in a packed matrix fits 32 bits.
bool addressable(int64_t rows, int64_t cols) {
  return rows <= 1 << 30 && cols <= 1 << 20 && rows * (cols / 2) < int64_t{kNoRow};
}

int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

cudaError_t permute(const float* in, int64_t stride, int64_t rows, int64_t cols, void* out,
                    cudaStream_t stream) {
  const int64_t count = rows * cols / 8;
  moe_permute_sm90<<<static_cast<unsigned>((count + 255) / 256), 256, 0, stream>>>(
      in, stride, static_cast<int>(cols), count, static_cast<__nv_bfloat16*>(out));
  return cudaGetLastError();
}

template <Pass kPass>
cudaError_t launch_grouped(const Grouped& p, cudaStream_t stream) {
  cudaError_t error = cudaFuncSetAttribute(
      moe_prefill_mxfp4_sm90<kPass>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
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
  moe_prefill_mxfp4_sm90<kPass>
      <<<static_cast<unsigned>(processors), kThreads, kSharedBytes, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace

bool moe_prefill_sm90_supports(const MoeExpertsSm90& w) {
  return w.experts > 0 && w.experts <= kMoePrefillExpertsMax && w.width > 0 && w.hidden > 0 &&
         w.width % 128 == 0 && w.hidden % 128 == 0 && addressable(w.width, w.hidden);
}

extern "C" int64_t triax_cuda_moe_prefill_sm90_scratch_bytes(int64_t tokens, int64_t routes,
                                                             int64_t width, int64_t hidden) {
  return aligned(tokens * width * 2) + aligned(tokens * routes * hidden * 2) +
         tokens * routes * width * 4;
}

extern "C" int triax_cuda_moe_prefill_sm90(const MoePrefillSm90* args, void* stream) {
  const MoeExpertsSm90& w = args->weights;
  if (!moe_prefill_sm90_supports(w)) {
    return cudaErrorNotSupported;
  }
  if (args->tokens == 0) {
    return cudaSuccess;
  }
  auto* queue = static_cast<cudaStream_t>(stream);
  auto* x = static_cast<unsigned char*>(args->scratch);
  unsigned char* hidden = x + aligned(args->tokens * w.width * 2);
  unsigned char* y = hidden + aligned(args->tokens * args->routes * w.hidden * 2);
  cudaError_t error = permute(args->in, args->in_stride, args->tokens, w.width, x, queue);
  Grouped p{};
  p.offsets = args->groups.offsets;
  p.experts = static_cast<int>(w.experts);
  p.activation = args->activation;
  p.hidden = reinterpret_cast<__nv_bfloat16*>(hidden);
  p.out = reinterpret_cast<float*>(y);
  p.data[0] = w.gate;
  p.data[1] = w.up;
  p.scales[0] = w.gate_scales;
  p.scales[1] = w.up_scales;
  p.in = reinterpret_cast<const __nv_bfloat16*>(x);
  p.in_rows = args->groups.tokens;
  p.rows = static_cast<int>(w.hidden);
  p.cols = static_cast<int>(w.width);
  if (error == cudaSuccess) {
    error = launch_grouped<Pass::kGateUp>(p, queue);
  }
  p.data[0] = p.data[1] = w.down;
  p.scales[0] = p.scales[1] = w.down_scales;
  p.in = p.hidden;
  p.in_rows = nullptr;
  p.rows = static_cast<int>(w.width);
  p.cols = static_cast<int>(w.hidden);
  if (error == cudaSuccess) {
    error = launch_grouped<Pass::kDown>(p, queue);
  }
  if (error == cudaSuccess) {
    const int64_t threads = args->tokens * (w.width / 4);
    moe_combine_sm90<<<static_cast<unsigned>((threads + 255) / 256), 256, 0, queue>>>(*args, p.out);
    error = cudaGetLastError();
  }
  return error;
}

}  // namespace triax::width
