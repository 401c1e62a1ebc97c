// Copies between rows and pages of bf16 latents, and the output gate.
#include <cuda_bf16.h>

#include "device/cuda/block.cuh"
#include "sequence/mla/mla_bf16_cuda.h"

namespace triax::sequence {
namespace {

constexpr int kThreads = 128;
constexpr int64_t kPage = 64;

__device__ __nv_bfloat16* row_of(const Bf16PagesCuda& pages, int64_t n, int64_t token) {
  const int64_t page = pages.tables[n * pages.pages_max + token / kPage];
  return static_cast<__nv_bfloat16*>(pages.pool) + page * pages.page_stride +
         token % kPage * pages.width;
}

/// A block for each token.
__global__ void append_rows(MlaAppendBf16Cuda args) {
  const int64_t t = blockIdx.x;
  if (t >= args.cu_seqlens[args.sequences]) {
    return;
  }
  const int64_t n = cuda::group_of(args.cu_seqlens, args.sequences, t);
  __nv_bfloat16* to = row_of(args.pages, n, args.starts[n] + t - args.cu_seqlens[n]);
  const float* from = args.latents + t * args.latents_stride;
  for (int64_t i = threadIdx.x; i < args.pages.width; i += kThreads) {
    to[i] = __float2bfloat16(from[i]);
  }
}

/// A block for each row of the output.
__global__ void gather_rows(MlaGatherBf16Cuda args) {
  const int64_t row = blockIdx.x;
  const int64_t n = cuda::group_of(args.kv_cu_seqlens, args.sequences, row);
  const __nv_bfloat16* from = row_of(args.pages, n, row - args.kv_cu_seqlens[n]);
  auto* to = static_cast<__nv_bfloat16*>(args.out) + row * args.pages.width;
  for (int64_t i = threadIdx.x; i < args.pages.width; i += kThreads) {
    to[i] = from[i];
  }
}

/// An element a thread, `parts` blocks a token.
__global__ void gate_heads(MlaGateCuda args, int64_t parts) {
  const int64_t t = blockIdx.x / parts;
  const int64_t i = blockIdx.x % parts * kThreads + threadIdx.x;
  if (i < args.heads * args.value) {
    const int64_t h = i / args.value;
    const int64_t v = i % args.value;
    const float gate = args.gate[t * args.gate_token + h * args.gate_head + v];
    args.x[t * args.x_token + h * args.x_head + v] *= cuda::sigmoid(gate);
  }
}

}  // namespace

int triax_cuda_mla_append_bf16(const MlaAppendBf16Cuda* args, void* stream) {
  if (args->tokens > 0) {
    append_rows<<<static_cast<unsigned>(args->tokens), kThreads, 0,
                  static_cast<cudaStream_t>(stream)>>>(*args);
  }
  return cudaGetLastError();
}

int triax_cuda_mla_gather_bf16(const MlaGatherBf16Cuda* args, void* stream) {
  if (args->rows > 0) {
    gather_rows<<<static_cast<unsigned>(args->rows), kThreads, 0,
                  static_cast<cudaStream_t>(stream)>>>(*args);
  }
  return cudaGetLastError();
}

int triax_cuda_mla_gate(const MlaGateCuda* args, void* stream) {
  if (args->tokens > 0 && args->heads * args->value > 0) {
    const int64_t parts = cuda::blocks_for(args->heads * args->value, kThreads);
    gate_heads<<<static_cast<unsigned>(args->tokens * parts), kThreads, 0,
                 static_cast<cudaStream_t>(stream)>>>(*args, parts);
  }
  return cudaGetLastError();
}

}  // namespace triax::sequence
