// The product with a packed matrix: choice of form, format and width of loads.
#include "dense/linear/linear.h"
#include "dense/linear/linear_cuda.h"
#include "dense/linear/products.cuh"

namespace triax::dense {
namespace {

constexpr int kStreamThreads = 128;
constexpr int kStreamWarps = kStreamThreads / cuda::kWarp;
constexpr int kStreamRows = 2;  // of the weights, for each warp

/// Up to kTokens tokens; a warp takes kStreamRows rows of the weights.
template <MatrixFormat kFormat, bool kWide, int kTokens>
__global__ void __launch_bounds__(kStreamThreads)
    linear_stream(LinearCuda args, DeviceWeights weight) {
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * kStreamWarps + threadIdx.x / cuda::kWarp;
  const int64_t row = warp * kStreamRows;
  if (row >= weight.rows) {
    return;
  }
  const float* x[kTokens];
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    x[t] = args.in + (t < args.tokens ? t : args.tokens - 1) * args.in_stride;
  }
  float sums[kTokens][kStreamRows];
  warp_product<kFormat, kWide>(weight, row, x, sums);
  if (threadIdx.x % cuda::kWarp != 0) {
    return;
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
#pragma unroll
    for (int r = 0; r < kStreamRows; ++r) {
      if (t < args.tokens && row + r < weight.rows) {
        args.out[t * args.out_stride + row + r] = sums[t][r];
      }
    }
  }
}

template <MatrixFormat kFormat, bool kWide, typename Shape>
__global__ void __launch_bounds__(Shape::kThreads)
    linear_tiles(LinearCuda args, DeviceWeights weight) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * Shape::kTokens;
  const int64_t own = first + threadIdx.x % Shape::kTokens;
  const Tile tile = {own < args.tokens ? args.in + own * args.in_stride : nullptr,
                     static_cast<int64_t>(blockIdx.y) * Shape::kRows,
                     args.out + first * args.out_stride, args.out_stride,
                     args.tokens - first < Shape::kTokens ? args.tokens - first : Shape::kTokens};
  tile_product<kFormat, kWide, Shape>(weight, tile);
}

template <MatrixFormat kFormat, bool kWide, typename Shape>
void launch_tiles(const LinearCuda& args, const DeviceWeights& weight, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(cuda::blocks_for(args.tokens, Shape::kTokens)),
                  static_cast<unsigned>(cuda::blocks_for(weight.rows, Shape::kRows)));
  linear_tiles<kFormat, kWide, Shape><<<grid, Shape::kThreads, 0, stream>>>(args, weight);
}

// Fewer large tiles than this leave multiprocessors idle. No property of results depends on it.
constexpr int64_t kLargeTilesMin = 256;

template <MatrixFormat kFormat, bool kWide>
void launch(const LinearCuda& args, cudaStream_t stream) {
  const DeviceWeights weight = device_weights(args.weight);
  if (args.tokens > kDecodeRowsMax) {
    const int64_t large_tiles = cuda::blocks_for(args.tokens, LargeTile::kTokens) *
                                cuda::blocks_for(weight.rows, LargeTile::kRows);
    if (args.tokens > SmallTile::kTokens && large_tiles >= kLargeTilesMin) {
      launch_tiles<kFormat, kWide, LargeTile>(args, weight, stream);
    } else {
      launch_tiles<kFormat, kWide, SmallTile>(args, weight, stream);
    }
    return;
  }
  const auto blocks =
      static_cast<unsigned>(cuda::blocks_for(weight.rows, kStreamWarps * kStreamRows));
  if (args.tokens == 1) {
    linear_stream<kFormat, kWide, 1><<<blocks, kStreamThreads, 0, stream>>>(args, weight);
  } else if (args.tokens == 2) {
    linear_stream<kFormat, kWide, 2><<<blocks, kStreamThreads, 0, stream>>>(args, weight);
  } else {
    linear_stream<kFormat, kWide, 4><<<blocks, kStreamThreads, 0, stream>>>(args, weight);
  }
}

}  // namespace

int triax_cuda_linear(const LinearCuda* args, void* stream) {
  if (args->tokens == 0 || args->weight.rows == 0) {
    return cudaSuccess;
  }
  const bool wide = wide_weights(args->weight.data, args->weight.cols) &&
                    wide_rows(args->in, args->in_stride, args->weight.cols);
  with_format(args->weight.format, [&]<MatrixFormat kFormat>() {
    if (wide) {
      launch<kFormat, true>(*args, static_cast<cudaStream_t>(stream));
    } else {
      launch<kFormat, false>(*args, static_cast<cudaStream_t>(stream));
    }
  });
  return cudaGetLastError();
}

}  // namespace triax::dense
