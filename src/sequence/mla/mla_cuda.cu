// Latent attention in three kernels: queries into latent space, attention over the pages with a
// running maximum, values out of latent space. The scratch holds [tokens, heads, latent] of a part
// of the tokens, the queries first, then the weighted sums of latents in their place.
#include "dense/linear/products.cuh"
#include "device/cuda/block.cuh"
#include "sequence/mla/mla.h"
#include "sequence/mla/mla_cuda.h"

namespace triax::sequence {
namespace {

using dense::DeviceWeights;

constexpr int64_t kPart = 512;  // tokens whose latents are in the scratch at a time
constexpr int kTokens = 8;      // of one block of the projections
constexpr int kLatents = 128;   // latent features of one block of the query projection
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / cuda::kWarp;
constexpr int kSharedRegs = static_cast<int>(kMlaCudaSharedMax) / cuda::kWarp;
constexpr int kTileTokens = 16;  // latents in shared memory at a time
constexpr int kBatch = 4;        // of them scored together

/// Tokens [begin, begin + count) of the call.
struct Part {
  int64_t begin;
  int64_t count;
  float* latents;  // [count, heads, latent]
};

__global__ void mla_append_rows(MlaAppendCuda args) {
  const int64_t t = blockIdx.x;
  if (t >= args.cu_seqlens[args.sequences]) {
    return;
  }
  const int64_t n = cuda::group_of(args.cu_seqlens, args.sequences, t);
  const int64_t position = args.starts[n] + t - args.cu_seqlens[n];
  const int64_t page = args.pages.tables[n * args.pages.pages_max + position / kLatentPage];
  float* to = args.pages.pool + page * args.pages.page_stride +
              position % kLatentPage * args.pages.row_stride;
  const float* from = args.latents + t * args.latents_stride;
  for (int64_t i = threadIdx.x; i < args.width; i += kThreads) {
    to[i] = from[i];
  }
}

/// latents[t, h, r] = sum_d q[t, h, d] kv_b[h (D + V) + d, r]: a thread for each r.
template <MatrixFormat kFormat>
__global__ void __launch_bounds__(kLatents)
    mla_absorb(MlaCuda args, DeviceWeights kv_b, Part part) {
  __shared__ float q[kTokens][kLatents];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTokens;
  const int64_t r = static_cast<int64_t>(blockIdx.z) * kLatents + threadIdx.x;
  const int64_t h = blockIdx.y;
  const int count = static_cast<int>(min(part.count - first, int64_t{kTokens}));
  float sums[kTokens] = {};
  for (int64_t begin = 0; begin < args.nope; begin += kLatents) {
    const int64_t dims = min(args.nope - begin, int64_t{kLatents});
    __syncthreads();
    for (int i = 0; i < kTokens; ++i) {
      const float* row = args.q + (part.begin + first + i) * args.q_token + h * args.q_head;
      q[i][threadIdx.x] = i < count && threadIdx.x < dims ? row[begin + threadIdx.x] : 0.0f;
    }
    __syncthreads();
    for (int64_t d = 0; d < dims && r < args.latent; ++d) {
      const int64_t row = h * (args.nope + args.value) + begin + d;
      const float w = dense::weight_at<kFormat>(kv_b.data + row * kv_b.row_bytes,
                                                kv_b.scales + row * kv_b.scale_row_bytes, r);
#pragma unroll
      for (int i = 0; i < kTokens; ++i) {
        sums[i] = fmaf(q[i][d], w, sums[i]);
      }
    }
  }
  for (int i = 0; i < count && r < args.latent; ++i) {
    part.latents[((first + i) * args.heads + h) * args.latent + r] = sums[i];
  }
}

/// Latents in shared memory: kRegs * 32 features, zeros beyond R, then the shared key features.
template <int kRegs>
struct LatentTile {
  static constexpr int kLatent = kRegs * cuda::kWarp;
  static constexpr int kWidth = kLatent + static_cast<int>(kMlaCudaSharedMax);
  float rows[kTileTokens][kWidth];
};

/// Tokens [first, first + count) of sequence n; zeros beyond.
template <int kRegs>
__device__ void load_tile(const MlaCuda& args, int64_t n, int64_t first, int64_t count,
                          LatentTile<kRegs>& tile) {
  using Tile = LatentTile<kRegs>;
  for (int j = threadIdx.x / cuda::kWarp; j < kTileTokens; j += kWarps) {
    const int64_t position = first + j;
    const float* row = nullptr;
    if (j < count) {
      const int64_t page = args.pages.tables[n * args.pages.pages_max + position / kLatentPage];
      row = args.pages.pool + page * args.pages.page_stride +
            position % kLatentPage * args.pages.row_stride;
    }
    for (int i = threadIdx.x % cuda::kWarp; i < Tile::kWidth; i += cuda::kWarp) {
      const bool is_shared = i >= Tile::kLatent;
      const int64_t feature = is_shared ? i - Tile::kLatent : i;
      const bool used = row != nullptr && feature < (is_shared ? args.shared : args.latent);
      tile.rows[j][i] = used ? row[is_shared ? args.latent + feature : feature] : 0.0f;
    }
  }
}

/// The attention of one head in one warp: lane l holds features l, l + 32, ...
template <int kRegs>
struct HeadState {
  float q[kRegs + kSharedRegs];
  float acc[kRegs];
  float max;
  float sum;

  __device__ void begin(const MlaCuda& args, const float* latent_query, const float* shared_query) {
    const int lane = threadIdx.x % cuda::kWarp;
#pragma unroll
    for (int i = 0; i < kRegs; ++i) {
      const int r = lane + i * cuda::kWarp;
      q[i] = r < args.latent ? args.scale * latent_query[r] : 0.0f;
      acc[i] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kSharedRegs; ++i) {
      const int e = lane + i * cuda::kWarp;
      q[kRegs + i] = e < args.shared ? args.scale * shared_query[e] : 0.0f;
    }
    max = -INFINITY;
    sum = 0.0f;
  }

  /// Tokens [j, j + kBatch) of the tile, of which those below `count` exist.
  __device__ void attend(const LatentTile<kRegs>& tile, int j, int64_t count) {
    const int lane = threadIdx.x % cuda::kWarp;
    float scores[kBatch] = {};
#pragma unroll
    for (int i = 0; i < kRegs + kSharedRegs; ++i) {
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        scores[b] = fmaf(q[i], tile.rows[j + b][lane + i * cuda::kWarp], scores[b]);
      }
    }
    float top = max;
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      scores[b] = cuda::warp_sum(scores[b]);
      scores[b] = j + b < count ? scores[b] : -INFINITY;
      top = fmaxf(top, scores[b]);
    }
    const float keep = expf(max - top);
    max = top;
    sum *= keep;
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      scores[b] = expf(scores[b] - top);
      sum += scores[b];
    }
#pragma unroll
    for (int i = 0; i < kRegs; ++i) {
      float value = acc[i] * keep;
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        value = fmaf(scores[b], tile.rows[j + b][lane + i * cuda::kWarp], value);
      }
      acc[i] = value;
    }
  }

  __device__ void end(const MlaCuda& args, float* out) const {
#pragma unroll
    for (int i = 0; i < kRegs; ++i) {
      const int r = threadIdx.x % cuda::kWarp + i * cuda::kWarp;
      if (r < args.latent) {
        out[r] = acc[i] / sum;
      }
    }
  }
};

/// One token and kWarps heads a block; the heads share each latent that is read.
template <int kRegs>
__global__ void __launch_bounds__(kThreads) mla_attend(MlaCuda args, Part part) {
  __shared__ LatentTile<kRegs> tile;
  const int64_t t = part.begin + blockIdx.x;
  if (t >= args.cu_seqlens[args.sequences]) {
    return;
  }
  const int64_t n = cuda::group_of(args.cu_seqlens, args.sequences, t);
  const int64_t length = args.starts[n] + t - args.cu_seqlens[n] + 1;
  const int64_t h = static_cast<int64_t>(blockIdx.y) * kWarps + threadIdx.x / cuda::kWarp;
  const bool active = h < args.heads;
  float* latents = part.latents + (blockIdx.x * args.heads + h) * args.latent;
  HeadState<kRegs> head;
  if (active) {
    head.begin(args, latents, args.q + t * args.q_token + h * args.q_head + args.nope);
  }
  for (int64_t first = 0; first < length; first += kTileTokens) {
    const int64_t count = min(length - first, int64_t{kTileTokens});
    __syncthreads();
    load_tile(args, n, first, count, tile);
    __syncthreads();
    for (int j = 0; active && j < count; j += kBatch) {
      head.attend(tile, j, count);
    }
  }
  if (active) {
    head.end(args, latents);
  }
}

/// out[t, h, v] = sum_r latents[t, h, r] kv_b[h (D + V) + D + v, r] [ * sigmoid(gate) ]
template <MatrixFormat kFormat, bool kWide>
__global__ void __launch_bounds__(kThreads)
    mla_expand(MlaCuda args, DeviceWeights kv_b, Part part) {
  constexpr int kRows = 2;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTokens;
  const int64_t h = blockIdx.y;
  const int64_t v = (static_cast<int64_t>(blockIdx.z) * kWarps + threadIdx.x / cuda::kWarp) * kRows;
  const int64_t end = min(part.begin + part.count, args.cu_seqlens[args.sequences]);
  if (v >= args.value || part.begin + first >= end) {
    return;
  }
  const float* x[kTokens];
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    const int64_t t = min(first + i, end - part.begin - 1);
    x[i] = part.latents + (t * args.heads + h) * args.latent;
  }
  float sums[kTokens][kRows];
  dense::warp_product<kFormat, kWide>(kv_b, h * (args.nope + args.value) + args.nope + v, x, sums);
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    const int64_t t = part.begin + first + i;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (threadIdx.x % cuda::kWarp == 0 && t < end && v + r < args.value) {
        const float* gate = args.gate + t * args.gate_token + h * args.gate_head + v + r;
        const float factor = args.gate != nullptr ? cuda::sigmoid(*gate) : 1.0f;
        args.out[t * args.out_token + h * args.out_head + v + r] = sums[i][r] * factor;
      }
    }
  }
}

template <MatrixFormat kFormat>
void launch_expand(const MlaCuda& args, const Part& part, cudaStream_t stream) {
  const DeviceWeights kv_b = dense::device_weights(args.kv_b);
  const dim3 grid(static_cast<unsigned>(cuda::blocks_for(part.count, kTokens)),
                  static_cast<unsigned>(args.heads),
                  static_cast<unsigned>(cuda::blocks_for(args.value, 2 * kWarps)));
  if (dense::wide_weights(args.kv_b.data, args.latent)) {
    mla_expand<kFormat, true><<<grid, kThreads, 0, stream>>>(args, kv_b, part);
  } else {
    mla_expand<kFormat, false><<<grid, kThreads, 0, stream>>>(args, kv_b, part);
  }
}

void launch_attend(const MlaCuda& args, const Part& part, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(part.count),
                  static_cast<unsigned>(cuda::blocks_for(args.heads, kWarps)));
  if (args.latent <= 2 * cuda::kWarp) {
    mla_attend<2><<<grid, kThreads, 0, stream>>>(args, part);
  } else if (args.latent <= 8 * cuda::kWarp) {
    mla_attend<8><<<grid, kThreads, 0, stream>>>(args, part);
  } else {
    mla_attend<16><<<grid, kThreads, 0, stream>>>(args, part);
  }
}

template <MatrixFormat kFormat>
void launch_part(const MlaCuda& args, const Part& part, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(cuda::blocks_for(part.count, kTokens)),
                  static_cast<unsigned>(args.heads),
                  static_cast<unsigned>(cuda::blocks_for(args.latent, kLatents)));
  mla_absorb<kFormat><<<grid, kLatents, 0, stream>>>(args, dense::device_weights(args.kv_b), part);
  launch_attend(args, part, stream);
  launch_expand<kFormat>(args, part, stream);
}

}  // namespace

int triax_cuda_mla_append(const MlaAppendCuda* args, void* stream) {
  if (args->tokens > 0 && args->width > 0 && args->sequences > 0) {
    mla_append_rows<<<static_cast<unsigned>(args->tokens), kThreads, 0,
                      static_cast<cudaStream_t>(stream)>>>(*args);
  }
  return cudaGetLastError();
}

int64_t triax_cuda_mla_scratch_bytes(int64_t tokens, int64_t heads, int64_t latent) {
  return (tokens < kPart ? tokens : kPart) * heads * latent * static_cast<int64_t>(sizeof(float));
}

int triax_cuda_mla(const MlaCuda* args, void* stream) {
  if (args->tokens == 0 || args->sequences == 0) {
    return cudaSuccess;
  }
  if (args->latent > kMlaCudaLatentMax || args->shared > kMlaCudaSharedMax) {
    return cudaErrorNotSupported;
  }
  dense::with_format(args->kv_b.format, [&]<MatrixFormat kFormat>() {
    for (int64_t begin = 0; begin < args->tokens; begin += kPart) {
      const int64_t count = args->tokens - begin < kPart ? args->tokens - begin : kPart;
      launch_part<kFormat>(*args, {begin, count, static_cast<float*>(args->scratch)},
                           static_cast<cudaStream_t>(stream));
    }
  });
  return cudaGetLastError();
}

}  // namespace triax::sequence
