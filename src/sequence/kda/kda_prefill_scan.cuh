// The scanning warps of the KDA prefill kernel: they carry the state of a head through the chunks,
// in registers. A warp owns 16 of the 128 value rows and needs no other scanning warp.
#pragma once

#include "sequence/kda/kda_prefill_stage.cuh"

namespace triax::sequence::prefill {

/// Everything here has value rows down and keys or tokens across: the layout in which the tensor
/// cores leave a sum is the one in which they take a left operand, so S, v - S k and U go from one
/// product into the next without leaving the registers.
template <int kTiles>  // of 16 value rows
struct Scan {
  float s[kTiles][kDim / 8][4];  // the state, in tiles of 16 values and 8 keys

  /// Where register c of tile m, n lies in a head's [V, K].
  static __device__ int64_t offset(int row0, int m, int n, int c, int lane) {
    return static_cast<int64_t>(row0 + 16 * m + (lane >> 2) + (c & 2) * 4) * kDim + 8 * n +
           2 * (lane & 3);
  }

  /// Row i is the unit vector i: what comes out then is the map itself.
  __device__ void load_identity(int row0, int lane) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int64_t at = offset(row0, m, n, c, lane) + (c & 1);
          s[m][n][c] = at / kDim == at % kDim ? 1.0f : 0.0f;
        }
      }
    }
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

  /// Keys [16 part, + 16) of the state as a left operand.
  __device__ ptx::Fragment operand(int m, int part) const {
    const float(&left)[4] = s[m][2 * part];
    const float(&right)[4] = s[m][2 * part + 1];
    return {ptx::pack(left[0], left[1]), ptx::pack(left[2], left[3]), ptx::pack(right[0], right[1]),
            ptx::pack(right[2], right[3])};
  }

  /// y = S k^T and o = S q^T with the decayed k and q: what the state says of the chunk's tokens.
  /// Operands are fetched kAhead products before their use: the chain through the state is what the
  /// whole kernel waits for.
  template <bool kOutput, int kRows>
  __device__ void read(const Stage<kRows>& stage, int lane, float (&y)[kTiles][2][4],
                       float (&o)[kTiles][2][4]) const {
    constexpr int kParts = kDim / 16;
    constexpr int kAhead = kTiles == 1 ? 4 : 2;
    const Bf16* k = &stage.k[right_row(lane) * kPitch + right_column(lane)];
    const Bf16* q = &stage.q[right_row(lane) * kPitch + right_column(lane)];
    ptx::Fragment kf[kParts], qf[kParts];
#pragma unroll
    for (int i = 0; i < kParts + kAhead; ++i) {
      if (i < kParts) {
        kf[i] = ptx::load_tiles(k + 16 * i);
        if constexpr (kOutput) {
          qf[i] = ptx::load_tiles(q + 16 * i);
        }
      }
      if (const int at = i - kAhead; at >= 0) {
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          const ptx::Fragment state = operand(m, at);
          ptx::multiply(y[m][0], state, kf[at].r[0], kf[at].r[1]);
          ptx::multiply(y[m][1], state, kf[at].r[2], kf[at].r[3]);
          if constexpr (kOutput) {
            ptx::multiply(o[m][0], state, qf[at].r[0], qf[at].r[1]);
            ptx::multiply(o[m][1], state, qf[at].r[2], qf[at].r[3]);
          }
        }
      }
    }
  }

  /// u = (v - y) t^T, packed as the left operand of what follows. The difference is taken in
  /// float32 and enters the product in tf32.
  template <int kRows>
  __device__ void solve(const Stage<kRows>& stage, int value0, int lane,
                        const float (&y)[kTiles][2][4], ptx::Fragment (&u)[kTiles]) const {
    const float* t = &stage.t[(lane >> 2) * kTriangle + 2 * (lane & 3)];
    const float2 t00 = *reinterpret_cast<const float2*>(t);
    const float2 t10 = *reinterpret_cast<const float2*>(t + 8 * kTriangle);
    const float2 t11 = *reinterpret_cast<const float2*>(t + 8 * kTriangle + 8);
    const Bf16* values =
        &stage.v[tile_row(lane) * Stage<kRows>::kValuePitch + tile_column(lane) + value0];
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      const ptx::Fragment v = ptx::load_tiles_transposed(values + 16 * m);
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

  /// S <- S Diag(decay); needs nothing of the chunk's solution, so it fills the wait for it.
  template <int kRows>
  __device__ void decay(const Stage<kRows>& stage, int lane) {
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      const float2 e = *reinterpret_cast<const float2*>(&stage.decay[8 * n + 2 * (lane & 3)]);
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        s[m][n][0] *= e.x, s[m][n][1] *= e.y, s[m][n][2] *= e.x, s[m][n][3] *= e.y;
      }
    }
  }

  /// S <- S + u kt.
  template <int kRows>
  __device__ void update(const Stage<kRows>& stage, int lane, const ptx::Fragment (&u)[kTiles]) {
    constexpr int kParts = kDim / 16;
    constexpr int kAhead = 4;
    const Bf16* kt = &stage.kt[tile_row(lane) * kPitch + tile_column(lane)];
    ptx::Fragment f[kParts];
#pragma unroll
    for (int i = 0; i < kParts + kAhead; ++i) {
      if (i < kParts) {
        f[i] = ptx::load_tiles_transposed(kt + 16 * i);
      }
      if (const int at = i - kAhead; at >= 0) {
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          ptx::multiply(s[m][2 * at], u[m], f[at].r[0], f[at].r[1]);
          ptx::multiply(s[m][2 * at + 1], u[m], f[at].r[2], f[at].r[3]);
        }
      }
    }
  }

  /// o += u p^T, then into the place of the warp's v as bf16.
  template <int kRows>
  __device__ void finish_output(Stage<kRows>& stage, int value0, int lane,
                                const ptx::Fragment (&u)[kTiles], float (&o)[kTiles][2][4]) const {
    const ptx::Fragment p =
        ptx::load_tiles(&stage.p[right_row(lane) * kTriangle + right_column(lane)]);
    Bf16* values =
        &stage.v[tile_row(lane) * Stage<kRows>::kValuePitch + tile_column(lane) + value0];
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      ptx::multiply(o[m][0], u[m], p.r[0], p.r[1]);
      ptx::multiply(o[m][1], u[m], p.r[2], p.r[3]);
      ptx::store_tiles_transposed(
          values + 16 * m, {ptx::pack(o[m][0][0], o[m][0][1]), ptx::pack(o[m][1][0], o[m][1][1]),
                            ptx::pack(o[m][0][2], o[m][0][3]), ptx::pack(o[m][1][2], o[m][1][3])});
    }
  }
};

/// The warp's output of a chunk, 16 bytes a lane and tile: rows lane / (2 kTiles) and on.
template <int kTiles>
struct OutputPart {
  uint4 part[kTiles];

  template <int kRows>
  __device__ OutputPart(const Stage<kRows>& stage, int value0, int lane) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      part[i] = *reinterpret_cast<const uint4*>(
          &stage.v[(row(lane) + kChunk / kTiles * i) * Stage<kRows>::kValuePitch + value0 +
                   column(lane)]);
    }
  }
  static __device__ int row(int lane) { return lane / (2 * kTiles); }
  static __device__ int column(int lane) { return 8 * (lane % (2 * kTiles)); }

  /// `out` is the lane's row and column of the chunk.
  __device__ void write(Bf16* out, int64_t out_token, int lowest, int end, int lane) const {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const int at = row(lane) + kChunk / kTiles * i;
      if (at >= lowest && at < end) {
        *reinterpret_cast<uint4*>(out + kChunk / kTiles * i * out_token) = part[i];
      }
    }
  }
};

}  // namespace triax::sequence::prefill
