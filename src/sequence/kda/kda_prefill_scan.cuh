// The scanning warps of the KDA prefill kernel: they carry the state of a head through the chunks,
// in registers. A warp owns 16 or 32 of the 128 value rows and needs no other scanning warp.
#pragma once

#include "sequence/kda/kda_prefill_stage.cuh"

namespace triax::sequence::prefill {

/// Everything here has value rows down and keys or tokens across: the layout in which the tensor
/// cores leave a sum is the one in which they take a left operand, so S, v - S k and U go from one
/// product into the next without leaving the registers.
template <int kTiles>  // 16-row tiles of the warp
struct Scan {
  float s[kTiles][kDim / 8][4];  // the state, [V, K]

  /// The element of tile m, column group n that register c of a lane holds.
  static __device__ int64_t offset(int row0, int m, int n, int c, int lane) {
    return static_cast<int64_t>(row0 + 16 * m + (lane >> 2) + (c & 2) * 4) * kDim + 8 * n +
           2 * (lane & 3);
  }

  __device__ void load(const float* head, int row0, int lane) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
        for (int c = 0; c < 4; c += 2) {
          const float2 pair =
              head == nullptr
                  ? float2{0.0f, 0.0f}
                  : *reinterpret_cast<const float2*>(head + offset(row0, m, n, c, lane));
          s[m][n][c] = pair.x;
          s[m][n][c + 1] = pair.y;
        }
      }
    }
  }

  __device__ void store(float* head, int row0, int lane) const {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
        for (int c = 0; c < 4; c += 2) {
          *reinterpret_cast<float2*>(head + offset(row0, m, n, c, lane)) = {s[m][n][c],
                                                                            s[m][n][c + 1]};
        }
      }
    }
  }

  /// y = S k^T and o = S q^T with the decayed k and q: what the state says of the chunk's tokens.
  template <int kRows>
  __device__ void read(const Stage<kRows>& stage, int lane, float (&y)[kTiles][2][4],
                       float (&o)[kTiles][2][4]) const {
    const int at = right_row(lane) * kPitch + right_column(lane);
#pragma unroll
    for (int n = 0; n < kDim / 8; n += 2) {
      const ptx::Fragment k = ptx::load_tiles(&stage.k[at + 8 * n]);
      const ptx::Fragment q = ptx::load_tiles(&stage.q[at + 8 * n]);
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        const float(&left)[4] = s[m][n];
        const float(&right)[4] = s[m][n + 1];
        const ptx::Fragment state = {ptx::pack(left[0], left[1]), ptx::pack(left[2], left[3]),
                                     ptx::pack(right[0], right[1]), ptx::pack(right[2], right[3])};
        ptx::multiply(y[m][0], state, k.r[0], k.r[1]);
        ptx::multiply(y[m][1], state, k.r[2], k.r[3]);
        ptx::multiply(o[m][0], state, q.r[0], q.r[1]);
        ptx::multiply(o[m][1], state, q.r[2], q.r[3]);
      }
    }
  }

  /// u = (v - y) t^T, packed as the left operand of what follows. The difference is taken in
  /// float32 and enters the product in tf32.
  template <int kRows>
  __device__ void solve(const Stage<kRows>& stage, int value0, int lane,
                        const float (&y)[kTiles][2][4], ptx::Fragment (&u)[kTiles]) const {
    const int at = tile_row(lane) * Stage<kRows>::kValuePitch + tile_column(lane) + value0;
    const float* t = &stage.t[(lane >> 2) * kTriangle + 2 * (lane & 3)];
    const float2 t00 = *reinterpret_cast<const float2*>(t);
    const float2 t10 = *reinterpret_cast<const float2*>(t + 8 * kTriangle);
    const float2 t11 = *reinterpret_cast<const float2*>(t + 8 * kTriangle + 8);
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      const ptx::Fragment v = ptx::load_tiles_transposed(&stage.v[at + 16 * m]);
      ptx::Fragment d[2];
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        // Columns 2c and 2c + 1 of the sum stand for rows c and c + 4 of the operand.
        d[n] = {ptx::to_tf32(ptx::low_half(v.r[n]) - y[m][n][0]),
                ptx::to_tf32(ptx::low_half(v.r[n + 2]) - y[m][n][2]),
                ptx::to_tf32(ptx::high_half(v.r[n]) - y[m][n][1]),
                ptx::to_tf32(ptx::high_half(v.r[n + 2]) - y[m][n][3])};
      }
      float sum[2][4] = {};
      ptx::multiply_tf32(sum[0], d[0], __float_as_uint(t00.x), __float_as_uint(t00.y));
      ptx::multiply_tf32(sum[1], d[0], __float_as_uint(t10.x), __float_as_uint(t10.y));
      ptx::multiply_tf32(sum[1], d[1], __float_as_uint(t11.x), __float_as_uint(t11.y));
      u[m] = {ptx::pack(sum[0][0], sum[0][1]), ptx::pack(sum[0][2], sum[0][3]),
              ptx::pack(sum[1][0], sum[1][1]), ptx::pack(sum[1][2], sum[1][3])};
    }
  }

  /// S <- S Diag(decay) + u kt.
  template <int kRows>
  __device__ void update(const Stage<kRows>& stage, int lane, const ptx::Fragment (&u)[kTiles]) {
    const int at = tile_row(lane) * kPitch + tile_column(lane);
#pragma unroll
    for (int n = 0; n < kDim / 8; n += 2) {
      const ptx::Fragment kt = ptx::load_tiles_transposed(&stage.kt[at + 8 * n]);
      const float2 e0 = *reinterpret_cast<const float2*>(&stage.decay[8 * n + 2 * (lane & 3)]);
      const float2 e1 = *reinterpret_cast<const float2*>(&stage.decay[8 * n + 8 + 2 * (lane & 3)]);
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        s[m][n][0] *= e0.x, s[m][n][1] *= e0.y, s[m][n][2] *= e0.x, s[m][n][3] *= e0.y;
        s[m][n + 1][0] *= e1.x, s[m][n + 1][1] *= e1.y;
        s[m][n + 1][2] *= e1.x, s[m][n + 1][3] *= e1.y;
        ptx::multiply(s[m][n], u[m], kt.r[0], kt.r[1]);
        ptx::multiply(s[m][n + 1], u[m], kt.r[2], kt.r[3]);
      }
    }
  }

  /// o += u p^T, then into the place of the warp's v as bf16.
  template <int kRows>
  __device__ void finish_output(Stage<kRows>& stage, int value0, int lane,
                                const ptx::Fragment (&u)[kTiles], float (&o)[kTiles][2][4]) const {
    const ptx::Fragment p =
        ptx::load_tiles(&stage.p[right_row(lane) * kTriangle + right_column(lane)]);
    const int at = tile_row(lane) * Stage<kRows>::kValuePitch + tile_column(lane) + value0;
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      ptx::multiply(o[m][0], u[m], p.r[0], p.r[1]);
      ptx::multiply(o[m][1], u[m], p.r[2], p.r[3]);
      const ptx::Fragment packed = {
          ptx::pack(o[m][0][0], o[m][0][1]), ptx::pack(o[m][1][0], o[m][1][1]),
          ptx::pack(o[m][0][2], o[m][0][3]), ptx::pack(o[m][1][2], o[m][1][3])};
      ptx::store_tiles_transposed(&stage.v[at + 16 * m], packed);
    }
  }
};

/// Rows [lowest, end) of the warp's columns, 16 bytes a lane.
template <int kTiles, int kRows>
__device__ void write_output(const Stage<kRows>& stage, int value0, int lowest, int end, Bf16* out,
                             int64_t out_token, int lane) {
  constexpr int kParts = 2 * kTiles;  // lanes to a row
  constexpr int kStep = 32 / kParts;  // rows a round
  const int column = value0 + 8 * (lane % kParts);
  int row = lane / kParts;
  Bf16* target = out + row * out_token + column;
#pragma unroll
  for (int i = 0; i < kChunk / kStep; ++i) {
    if (row >= lowest && row < end) {
      *reinterpret_cast<uint4*>(target) =
          *reinterpret_cast<const uint4*>(&stage.v[row * Stage<kRows>::kValuePitch + column]);
    }
    row += kStep;
    target += kStep * out_token;
  }
}

}  // namespace triax::sequence::prefill
