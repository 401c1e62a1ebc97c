// The two plain products with packed weights, as device functions that operations share: rows
// streamed by a warp, and tiles from shared memory. Float32, fixed order, any architecture.
#pragma once

#include <type_traits>

#include "dense/linear/weights.cuh"
#include "device/cuda/block.cuh"

namespace triax::dense {

/// sums[t][r] = sum_c x[t][c] weight[row + r, c], in all lanes of the warp. Each lane takes the
/// same columns for every t and r, so a sum's bits depend neither on kTokens nor on kRows. Shapes
/// x[t] rows of weight.cols floats, all readable; rows beyond the matrix repeat its last
template <MatrixFormat kFormat, bool kWide, int kTokens, int kRows>
__device__ inline void warp_product(const DeviceWeights& weight, int64_t row,
                                    const float* const (&x)[kTokens],
                                    float (&sums)[kTokens][kRows]) {
  const uint8_t* data[kRows];
  const uint8_t* scales[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int64_t inside = row + r < weight.rows ? row + r : weight.rows - 1;
    data[r] = weight.data + inside * weight.row_bytes;
    scales[r] = weight.scales + inside * weight.scale_row_bytes;
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      sums[t][r] = 0.0f;
    }
  }
  const int64_t first = threadIdx.x % cuda::kWarp * kWeightGroup;
#pragma unroll(kWide&& kTokens == 1 ? 4 : 1)
  for (int64_t col = first; col < weight.cols; col += cuda::kWarp * kWeightGroup) {
    float w[kRows][kWeightGroup];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      load_weights<kFormat, kWide>(data[r], scales[r], col, weight.cols, w[r]);
    }
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      float a[kWeightGroup];
      load_row<kWide>(x[t], col, weight.cols, a);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int i = 0; i < kWeightGroup; ++i) {
          sums[t][r] = fmaf(a[i], w[r][i], sums[t][r]);
        }
      }
    }
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      sums[t][r] = cuda::warp_sum(sums[t][r]);
    }
  }
}

/// How a block multiplies a tile: kTokens by kRows outputs, kMicro by kMicro of them in a thread,
/// kDepth columns in shared memory at a time. Sums run over ascending columns in every shape, so
/// the choice of shape does not show in the bits.
template <int kTileTokens, int kTileRows, int kTileDepth, int kTileMicro>
struct TileShape {
  static constexpr int kTokens = kTileTokens;
  static constexpr int kRows = kTileRows;
  static constexpr int kDepth = kTileDepth;
  static constexpr int kMicro = kTileMicro;
  static constexpr int kThreads = kTokens / kMicro * (kRows / kMicro);
  static constexpr int kTokenStride = kTokens + 4;
  static constexpr int kRowStride = kRows + 4;
  static_assert(kThreads % kTokens == 0 && kThreads % kRows == 0, "a thread brings one row");
  static_assert(kTokens * kDepth % (kThreads * kWeightGroup) == 0, "in whole groups");
  static_assert(kRows * kDepth % (kThreads * kWeightGroup) == 0, "in whole groups");
};

using LargeTile = TileShape<64, 64, 32, 4>;
using SmallTile = TileShape<32, 16, 64, 2>;  // more blocks where tokens are few

/// One tile of outputs. Every thread brings one row of x into shared memory: row
/// threadIdx.x % kTokens.
struct Tile {
  const float* x;  // this thread's row; null: zeros
  int64_t row;     // first row of the weights
  float* out;      // of the tile's first token
  int64_t out_stride;
  int64_t tokens;  // of the tile, <= kTokens
};

/// One operand of a tile on its way to shared memory: groups of kWeightGroup columns of one row, in
/// registers, as Group holds them. kLines rows, kStride floats from column to column there.
template <typename Shape, int kLines, int kStride, typename Group>
struct TileOperand {
  static constexpr int kGroups = kLines * Shape::kDepth / (Shape::kThreads * kWeightGroup);
  static constexpr int kStep = Shape::kThreads / kLines * kWeightGroup;
  Group groups[kGroups];

  __device__ static int line() { return threadIdx.x % kLines; }
  __device__ static int first() { return threadIdx.x / kLines * kWeightGroup; }

  /// load(column, group) for each group that begins before `cols`; zeros beyond.
  template <typename Load>
  __device__ void fetch(int64_t col, int64_t cols, Load&& load) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int64_t begin = col + first() + g * kStep;
      groups[g] = {};
      if (begin < cols) {
        load(begin, groups[g]);
      }
    }
  }
  __device__ void store(float (&to)[Shape::kDepth][kStride]) const {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      float values[kWeightGroup];
      groups[g].unpack(values);
#pragma unroll
      for (int i = 0; i < kWeightGroup; ++i) {
        to[first() + g * kStep + i][line()] = values[i];
      }
    }
  }
};

/// The first output of a thread within its tile.
template <typename Shape>
__device__ int tile_token() {
  return static_cast<int>(threadIdx.x) / (Shape::kRows / Shape::kMicro) * Shape::kMicro;
}
template <typename Shape>
__device__ int tile_row() {
  return static_cast<int>(threadIdx.x) % (Shape::kRows / Shape::kMicro) * Shape::kMicro;
}

/// 2 or 4 aligned floats.
template <int kCount>
__device__ inline void load_micro(const float* from, float (&out)[kCount]) {
  if constexpr (kCount == 4) {
    const float4 v = *reinterpret_cast<const float4*>(from);
    out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
  } else {
    const float2 v = *reinterpret_cast<const float2*>(from);
    out[0] = v.x, out[1] = v.y;
  }
}

/// A fused multiply-add of every output of the thread for each column in shared memory.
template <typename Shape>
__device__ inline void multiply_tile(const float (&xs)[Shape::kDepth][Shape::kTokenStride],
                                     const float (&ws)[Shape::kDepth][Shape::kRowStride],
                                     float (&sums)[Shape::kMicro][Shape::kMicro]) {
  constexpr int kMicro = Shape::kMicro;
  const int token = tile_token<Shape>();
  const int row = tile_row<Shape>();
#pragma unroll 8
  for (int c = 0; c < Shape::kDepth; ++c) {
    float a[kMicro];
    float b[kMicro];
    load_micro(&xs[c][token], a);
    load_micro(&ws[c][row], b);
#pragma unroll
    for (int t = 0; t < kMicro; ++t) {
#pragma unroll
      for (int r = 0; r < kMicro; ++r) {
        sums[t][r] = fmaf(a[t], b[r], sums[t][r]);
      }
    }
  }
}

template <typename Shape>
__device__ inline void store_tile(const Tile& tile, int64_t rows,
                                  const float (&sums)[Shape::kMicro][Shape::kMicro]) {
  const int token = tile_token<Shape>();
  const int64_t row = tile.row + tile_row<Shape>();
#pragma unroll
  for (int t = 0; t < Shape::kMicro; ++t) {
#pragma unroll
    for (int r = 0; r < Shape::kMicro; ++r) {
      if (token + t < tile.tokens && row + r < rows) {
        tile.out[(token + t) * tile.out_stride + row + r] = sums[t][r];
      }
    }
  }
}

/// out[t, row + r] = sum_c x[t][c] weight[row + r, c] for a tile, columns in ascending order. The
/// next columns are fetched while the present ones are multiplied. A block of Shape::kThreads.
template <MatrixFormat kFormat, bool kWide, typename Shape>
__device__ inline void tile_product(const DeviceWeights& weight, const Tile& tile) {
  __shared__ __align__(16) float xs[Shape::kDepth][Shape::kTokenStride];
  __shared__ __align__(16) float ws[Shape::kDepth][Shape::kRowStride];
  using Floats = PackedGroup<MatrixFormat::kF32>;
  using Packed = std::conditional_t<kWide, PackedGroup<kFormat>, Floats>;
  TileOperand<Shape, Shape::kTokens, Shape::kTokenStride, Floats> x;
  TileOperand<Shape, Shape::kRows, Shape::kRowStride, Packed> w;
  const int64_t own = tile.row + w.line();
  const int64_t inside = own < weight.rows ? own : weight.rows - 1;
  const uint8_t* data = weight.data + inside * weight.row_bytes;
  const uint8_t* scales = weight.scales + inside * weight.scale_row_bytes;
  const auto fetch = [&](int64_t col) {
    w.fetch(col, weight.cols, [&](int64_t begin, Packed& group) {
      if constexpr (kWide) {
        group.load(data, scales, begin);
      } else {
        load_weights<kFormat, false>(data, scales, begin, weight.cols, group.values);
      }
    });
    x.fetch(col, tile.x != nullptr ? weight.cols : 0, [&](int64_t begin, Floats& group) {
      load_row<kWide>(tile.x, begin, weight.cols, group.values);
    });
  };
  float sums[Shape::kMicro][Shape::kMicro] = {};
  fetch(0);
  for (int64_t col = 0; col < weight.cols; col += Shape::kDepth) {
    w.store(ws);
    x.store(xs);
    __syncthreads();
    fetch(col + Shape::kDepth);
    multiply_tile<Shape>(xs, ws, sums);
    __syncthreads();
  }
  store_tile<Shape>(tile, weight.rows, sums);
}

}  // namespace triax::dense
