// Router logits for bf16 gates on tensor cores: x as three bf16 planes, which together hold all of
// a float32.
//
// Both kernels give a pair of token and expert the same products in the same order (slices of 128
// columns, each a chain of its own from zero, then added up ascending), so a logit's bits do not
// depend on the number of tokens.
#include <cuda_runtime.h>

#include "dense/linear/linear_mxfp4_sm90.cuh"
#include "device/cuda/overlap.cuh"
#include "width/router/router_cuda.h"

namespace triax::width {
namespace {

using namespace dense::sm90;

constexpr int kPlanes = 3;
constexpr int kSlice = 128;  // columns
constexpr int kColsMax = 8192;

// Two floats as three pairs of bf16.
struct Split {
  uint32_t planes[kPlanes];
  __device__ __forceinline__ explicit Split(float2 x) {
#pragma unroll
    for (int i = 0; i < kPlanes; ++i) {
      planes[i] = pack_bf16(x.x, x.y);
      x.x -= __uint_as_float(planes[i] << 16);
      x.y -= __uint_as_float(planes[i] & 0xFFFF0000u);
    }
  }
};

constexpr int kFewTokens = 16;
constexpr int kFewExperts = 8;
constexpr int kFewWarps = 18;

// A lane's gate of one slice: two pairs of columns for each step of 16.
struct GateSlice {
  uint32_t pairs[kSlice / 16][2];
  __device__ __forceinline__ void load(const __nv_bfloat16* gate) {
#pragma unroll
    for (int i = 0; i < kSlice / 16; ++i) {
      pairs[i][0] = *reinterpret_cast<const uint32_t*>(gate + 16 * i);
      pairs[i][1] = *reinterpret_cast<const uint32_t*>(gate + 16 * i + 8);
    }
  }
};

// sum += one slice of up to 16 tokens by 8 experts; rows past the end are zeros.
__device__ __forceinline__ void multiply_slice(const RouterLogitsCuda& args, int64_t token,
                                               const GateSlice& gate, int column, float (&sum)[4]) {
  const int64_t left = args.tokens - token;
  const float* x = args.in + token * args.in_stride + column;
#pragma unroll
  for (int i = 0; i < kSlice / 16; ++i) {
    const auto load = [&](int row, int at) {
      return Split(row < left ? *reinterpret_cast<const float2*>(x + row * args.in_stride + at)
                              : make_float2(0.0f, 0.0f));
    };
    const Split a0 = load(0, 16 * i);
    const Split a1 = load(8, 16 * i);
    const Split a2 = load(0, 16 * i + 8);
    const Split a3 = load(8, 16 * i + 8);
#pragma unroll
    for (int n = 0; n < kPlanes; ++n) {
      mma_bf16(sum, a0.planes[n], a1.planes[n], a2.planes[n], a3.planes[n], gate.pairs[i][0],
               gate.pairs[i][1]);
    }
  }
}

// 16 tokens by 8 experts a block, its warps take slices in turn. The first slice of the gate is
// read while the kernel before still runs.
__global__ void __launch_bounds__(kFewWarps * 32)
    router_logits_few_sm90(const __grid_constant__ RouterLogitsCuda args) {
  __shared__ float sums[kColsMax / kSlice][kFewTokens * kFewExperts];
  const int lane = threadIdx.x % 32;
  const int slices = static_cast<int>(args.gate.cols) / kSlice;
  const int64_t expert = static_cast<int64_t>(blockIdx.x) * kFewExperts;
  const int64_t token = static_cast<int64_t>(blockIdx.y) * kFewTokens;
  const int64_t row = min(expert + lane / 4, args.gate.rows - 1);
  const auto* gate =
      static_cast<const __nv_bfloat16*>(args.gate.data) + row * args.gate.cols + lane % 4 * 2;
  int slice = threadIdx.x / 32;
  GateSlice next;
  if (slice < slices) {
    next.load(gate + slice * kSlice);
  }
  cuda::wait_for_previous();
  for (; slice < slices; slice += kFewWarps) {
    const GateSlice current = next;
    if (slice + kFewWarps < slices) {
      next.load(gate + (slice + kFewWarps) * kSlice);
    }
    float sum[4] = {};
    multiply_slice(args, token + lane / 4, current, slice * kSlice + lane % 4 * 2, sum);
    float* to = &sums[slice][lane / 4 * kFewExperts + lane % 4 * 2];
    to[0] = sum[0];
    to[1] = sum[1];
    to[8 * kFewExperts] = sum[2];
    to[8 * kFewExperts + 1] = sum[3];
  }
  __syncthreads();
  const int t = threadIdx.x / kFewExperts;
  const int e = threadIdx.x % kFewExperts;
  if (t < kFewTokens && token + t < args.tokens && expert + e < args.gate.rows) {
    float total = 0.0f;
    for (slice = 0; slice < slices; ++slice) {
      total += sums[slice][threadIdx.x];
    }
    args.logits[(token + t) * args.gate.rows + expert + e] = total;
  }
}

constexpr int kTileTokens = 64;
constexpr int kTileExperts = 256;
constexpr int kTileThreads = 512;
constexpr int kDepth = 64;  // columns of a stage
constexpr int kGateStages = 3;
constexpr int kGateBytes = kTileExperts * kDepth * 2;
constexpr int kPlaneBytes = kTileTokens * kDepth * 2;
constexpr int kTileBytes = kGateStages * kGateBytes + 2 * kPlanes * kPlaneBytes;
constexpr int kWarpExperts = 64;

// Rows of 128 bytes whose 16-byte chunks are exchanged, so that eight rows meet no bank twice.
__device__ __forceinline__ uint32_t chunk_at(int row, int chunk) {
  return static_cast<uint32_t>(row * 128 + (chunk ^ (row % 8)) * 16);
}

__device__ __forceinline__ void load_matrices(uint32_t at, uint32_t (&out)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(at)
               : "memory");
}

// The gate's columns of one stage on their way to shared memory.
__device__ __forceinline__ void copy_gate(const RouterLogitsCuda& args, int64_t expert, int column,
                                          uint32_t to) {
  const auto* gate = static_cast<const __nv_bfloat16*>(args.gate.data);
#pragma unroll
  for (int i = 0; i < kTileExperts * 8 / kTileThreads; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * kTileThreads;
    const int64_t row = min(expert + at / 8, args.gate.rows - 1);
    copy_async<16>(to + chunk_at(at / 8, at % 8),
                   gate + row * args.gate.cols + column + at % 8 * 8);
  }
}

// Eight columns of one token, a thread's share of a stage.
struct Piece {
  float4 low, high;
  __device__ __forceinline__ void load(const float* from) {
    low = *reinterpret_cast<const float4*>(from);
    high = *(reinterpret_cast<const float4*>(from) + 1);
  }
  __device__ __forceinline__ void store(unsigned char* planes) const {
    const Split s[4] = {Split({low.x, low.y}), Split({low.z, low.w}), Split({high.x, high.y}),
                        Split({high.z, high.w})};
    unsigned char* to = planes + chunk_at(threadIdx.x / 8, threadIdx.x % 8);
#pragma unroll
    for (int n = 0; n < kPlanes; ++n) {
      *reinterpret_cast<uint4*>(to + n * kPlaneBytes) =
          make_uint4(s[0].planes[n], s[1].planes[n], s[2].planes[n], s[3].planes[n]);
    }
  }
};

// sums += one stage: a warp has 16 tokens and 64 experts.
__device__ __forceinline__ void multiply_stage(uint32_t gate, uint32_t planes,
                                               float (&sums)[kWarpExperts / 8][4]) {
  const int lane = threadIdx.x % 32;
  const int token = threadIdx.x / 32 % 4 * 16 + lane % 16;
  const int expert = threadIdx.x / 128 * kWarpExperts + lane / 16 * 8 + lane % 8;
#pragma unroll
  for (int k = 0; k < kDepth / 16; ++k) {
    uint32_t a[kPlanes][4];
#pragma unroll
    for (int n = 0; n < kPlanes; ++n) {
      load_matrices(planes + n * kPlaneBytes + chunk_at(token, 2 * k + lane / 16), a[n]);
    }
#pragma unroll
    for (int j = 0; j < kWarpExperts / 16; ++j) {
      uint32_t b[4];
      load_matrices(gate + chunk_at(expert + 16 * j, 2 * k + lane / 8 % 2), b);
#pragma unroll
      for (int n = 0; n < kPlanes; ++n) {
        mma_bf16(sums[2 * j], a[n][0], a[n][1], a[n][2], a[n][3], b[0], b[1]);
        mma_bf16(sums[2 * j + 1], a[n][0], a[n][1], a[n][2], a[n][3], b[2], b[3]);
      }
    }
  }
}

__device__ __forceinline__ void store_logits(const RouterLogitsCuda& args, int64_t token,
                                             int64_t expert,
                                             const float (&totals)[kWarpExperts / 8][4]) {
  const int lane = threadIdx.x % 32;
  token += threadIdx.x / 32 % 4 * 16 + lane / 4;
  expert += threadIdx.x / 128 * kWarpExperts + lane % 4 * 2;
#pragma unroll
  for (int j = 0; j < kWarpExperts / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t t = token + i / 2 * 8;
      const int64_t e = expert + j * 8 + i % 2;
      if (t < args.tokens && e < args.gate.rows) {
        args.logits[t * args.gate.rows + e] = totals[j][i];
      }
    }
  }
}

// 64 tokens by 256 experts a block.
__global__ void __launch_bounds__(kTileThreads, 1)
    router_logits_tile_sm90(const __grid_constant__ RouterLogitsCuda args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  unsigned char* planes = memory + kGateStages * kGateBytes;
  const int64_t expert = static_cast<int64_t>(blockIdx.y) * kTileExperts;
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kTileTokens;
  const int stages = static_cast<int>(args.gate.cols) / kDepth;
  const float* x = args.in + min(token + threadIdx.x / 8, args.tokens - 1) * args.in_stride +
                   threadIdx.x % 8 * 8;
  float sums[kWarpExperts / 8][4] = {};
  float totals[kWarpExperts / 8][4] = {};
  Piece piece;
  piece.load(x);
  piece.store(planes);
#pragma unroll
  for (int i = 0; i < kGateStages - 1; ++i) {
    copy_gate(args, expert, i * kDepth, shared_address(memory) + i * kGateBytes);
    copy_async_commit();
  }
  for (int i = 0; i < stages; ++i) {
    copy_async_wait<kGateStages - 2>();
    __syncthreads();
    if (i + kGateStages - 1 < stages) {
      copy_gate(args, expert, (i + kGateStages - 1) * kDepth,
                shared_address(memory) + (i + kGateStages - 1) % kGateStages * kGateBytes);
    }
    copy_async_commit();
    if (i + 1 < stages) {
      piece.load(x + (i + 1) * kDepth);
    }
    multiply_stage(shared_address(memory) + i % kGateStages * kGateBytes,
                   shared_address(planes) + i % 2 * (kPlanes * kPlaneBytes), sums);
    if (i + 1 < stages) {
      piece.store(planes + (i + 1) % 2 * (kPlanes * kPlaneBytes));
    }
    if (i % (kSlice / kDepth) == kSlice / kDepth - 1) {
#pragma unroll
      for (int j = 0; j < kWarpExperts / 8; ++j) {
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          totals[j][n] += sums[j][n];
          sums[j][n] = 0.0f;
        }
      }
    }
  }
  store_logits(args, token, expert, totals);
}

constexpr int64_t kFewMax = 1024;  // tokens of the first form: more fill the machine with tiles

}  // namespace

extern "C" int triax_cuda_router_logits_sm90(const RouterLogitsCuda* args, void* stream) {
  const MatrixView& gate = args->gate;
  if (gate.format != MatrixFormat::kBf16 || gate.cols % kSlice != 0 || gate.cols > kColsMax ||
      reinterpret_cast<uintptr_t>(gate.data) % 16 != 0 ||
      reinterpret_cast<uintptr_t>(args->in) % 16 != 0 || args->in_stride % 4 != 0) {
    return cudaErrorNotSupported;
  }
  if (args->tokens == 0 || gate.rows == 0) {
    return cudaSuccess;
  }
  const auto queue = static_cast<cudaStream_t>(stream);
  const auto blocks = [](int64_t count, int64_t size) {
    return static_cast<unsigned>((count + size - 1) / size);
  };
  if (args->tokens <= kFewMax) {
    const dim3 grid(blocks(gate.rows, kFewExperts), blocks(args->tokens, kFewTokens));
    return cuda::launch_overlapping(router_logits_few_sm90, grid, kFewWarps * 32, 0, queue, true,
                                    *args);
  }
  const cudaError_t error = cudaFuncSetAttribute(
      router_logits_tile_sm90, cudaFuncAttributeMaxDynamicSharedMemorySize, kTileBytes);
  if (error != cudaSuccess) {
    return error;
  }
  const dim3 grid(blocks(args->tokens, kTileTokens), blocks(gate.rows, kTileExperts));
  router_logits_tile_sm90<<<grid, kTileThreads, kTileBytes, queue>>>(*args);
  return cudaGetLastError();
}

}  // namespace triax::width
