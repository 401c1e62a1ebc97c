// The router on the GPU: scores by warps that each take some experts and tokens, then a warp for
// each token picks its experts one after another.
#include "dense/linear/products.cuh"
#include "device/cuda/block.cuh"
#include "width/router/router_cuda.h"

namespace triax::width {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / cuda::kWarp;

/// scores[t, e] = sigmoid(x W^T), kTokens tokens and kExperts experts a warp. A score's bits do not
/// depend on either.
template <MatrixFormat kFormat, bool kWide, int kTokens, int kExperts>
__global__ void __launch_bounds__(kThreads)
    router_scores(RouteCuda args, dense::DeviceWeights gate) {
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kTokens;
  const int64_t expert =
      (static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / cuda::kWarp) * kExperts;
  if (expert >= gate.rows) {
    return;
  }
  const float* x[kTokens];
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    x[t] = args.in + min(first + t, args.tokens - 1) * args.in_stride;
  }
  float logits[kTokens][kExperts];
  dense::warp_product<kFormat, kWide>(gate, expert, x, logits);
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
#pragma unroll
    for (int e = 0; e < kExperts; ++e) {
      if (threadIdx.x % cuda::kWarp == 0 && first + t < args.tokens && expert + e < gate.rows) {
        args.scores[(first + t) * gate.rows + expert + e] = cuda::sigmoid(logits[t][e]);
      }
    }
  }
}

/// What an expert is chosen by, and its id, as one number: the largest comes first. Order:
/// descending key, ascending id; NaN after all others. Never 0.
using Rank = unsigned long long;

__device__ Rank rank_of(float key, int expert) {
  const uint32_t bits = __float_as_uint((isnan(key) ? -INFINITY : key) + 0.0f);
  const uint32_t order = (bits & 0x80000000U) != 0U ? ~bits : bits | 0x80000000U;
  return static_cast<Rank>(order) << 32 | ~static_cast<uint32_t>(expert);
}

__device__ int expert_of(Rank rank) { return static_cast<int>(~static_cast<uint32_t>(rank)); }

constexpr int kCached = 32;  // ranks that a lane keeps in registers

/// The ranks of one token's experts: lane l has experts l, l + 32, ...
class Ranks {
 public:
  __device__ Ranks(const float* scores, const float* bias, int experts)
      : scores_(scores), bias_(bias), experts_(experts) {
#pragma unroll
    for (int i = 0; i < kCached; ++i) {
      const int e = lane() + i * cuda::kWarp;
      cached_[i] = e < experts ? read(e) : 0;
    }
  }

  /// The largest rank below `last`, in all lanes.
  __device__ Rank next(Rank last) const {
    Rank best = 0;
#pragma unroll
    for (int i = 0; i < kCached; ++i) {
      best = cached_[i] < last && cached_[i] > best ? cached_[i] : best;
    }
    for (int e = lane() + kCached * cuda::kWarp; e < experts_; e += cuda::kWarp) {
      const Rank rank = read(e);
      best = rank < last && rank > best ? rank : best;
    }
#pragma unroll
    for (int offset = cuda::kWarp / 2; offset > 0; offset /= 2) {
      const Rank other = __shfl_xor_sync(0xffffffffU, best, offset);
      best = other > best ? other : best;
    }
    return best;
  }

 private:
  __device__ static int lane() { return threadIdx.x % cuda::kWarp; }
  __device__ Rank read(int e) const { return rank_of(scores_[e] + bias_[e], e); }

  const float* scores_;
  const float* bias_;
  int experts_;
  Rank cached_[kCached];
};

__global__ void __launch_bounds__(kThreads) router_select(RouteCuda args, int experts) {
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / cuda::kWarp;
  if (t >= args.tokens) {
    return;
  }
  const float* scores = args.scores + t * experts;
  int32_t* ids = args.ids + t * args.ids_stride;
  float* weights = args.weights + t * args.weights_stride;
  const int lane = threadIdx.x % cuda::kWarp;
  const Ranks ranks(scores, args.bias, experts);
  Rank last = ~Rank{0};
  float sum = 0.0f;
  for (int64_t j = 0; j < args.count; ++j) {
    last = ranks.next(last);
    const int expert = expert_of(last);
    const float weight =
        scores[expert] + (args.weights_from == RouteWeights::kBiased ? args.bias[expert] : 0.0f);
    sum += weight;
    if (lane == 0) {
      ids[j] = expert;
      weights[j] = weight;
    }
  }
  __syncwarp();
  const float factor = args.scaling_factor / (args.renormalize ? sum + 1e-20f : 1.0f);
  for (int64_t j = lane; j < args.count; j += cuda::kWarp) {
    weights[j] *= factor;
  }
}

template <MatrixFormat kFormat, bool kWide, int kTokens, int kExperts>
void launch_scores(const RouteCuda& args, cudaStream_t stream) {
  const dense::DeviceWeights gate = dense::device_weights(args.gate);
  const dim3 grid(static_cast<unsigned>(cuda::blocks_for(gate.rows, kWarps * kExperts)),
                  static_cast<unsigned>(cuda::blocks_for(args.tokens, kTokens)));
  router_scores<kFormat, kWide, kTokens, kExperts><<<grid, kThreads, 0, stream>>>(args, gate);
}

template <MatrixFormat kFormat, bool kWide>
void launch_scores(const RouteCuda& args, cudaStream_t stream) {
  if (args.tokens == 1) {
    launch_scores<kFormat, kWide, 1, 1>(args, stream);
  } else if (args.tokens <= 4) {
    launch_scores<kFormat, kWide, 4, 2>(args, stream);
  } else {
    launch_scores<kFormat, kWide, 8, 2>(args, stream);
  }
}

}  // namespace

int triax_cuda_route(const RouteCuda* args, void* stream) {
  if (args->tokens == 0 || args->count == 0) {
    return cudaSuccess;
  }
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  const bool wide = dense::wide_weights(args->gate.data, args->gate.cols) &&
                    dense::wide_rows(args->in, args->in_stride, args->gate.cols);
  dense::with_format(args->gate.format, [&]<MatrixFormat kFormat>() {
    if (wide) {
      launch_scores<kFormat, true>(*args, cuda_stream);
    } else {
      launch_scores<kFormat, false>(*args, cuda_stream);
    }
  });
  router_select<<<static_cast<unsigned>(cuda::blocks_for(args->tokens, kWarps)), kThreads, 0,
                  cuda_stream>>>(*args, static_cast<int>(args->gate.rows));
  return cudaGetLastError();
}

}  // namespace triax::width
