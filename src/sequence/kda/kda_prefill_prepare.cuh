// The preparing warps of the KDA prefill kernel: everything of a chunk that does not need the
// state. One warp does a whole chunk by itself, so chunks are prepared side by side.
#pragma once

#include "sequence/kda/kda_prefill_stage.cuh"

namespace triax::sequence::prefill {

constexpr float kLog2e = 1.4426950408889634f;

/// A chunk whose decay passes 2^-kWide cannot be factored as e^G_i e^-G_j in bf16 and float32. The
/// bounded gate of K3 stays within 16 * 5 * log2(e) = 115.4.
constexpr float kWide = 120.0f;

/// The gate of one head. A token's step is log2 of its decay.
struct Gate {
  float slope;           // bounded: -exp(a_log) log2(e); softplus: log2(e)
  float size;            // bounded: lower_bound log2(e); softplus: -exp(a_log)
  const float* offsets;  // [128] slope * dt_bias, in shared memory

  /// x is slope * (logit + dt_bias).
  template <bool kSoftplus>
  static __device__ float step(float x, float size) {
    if constexpr (kSoftplus) {
      return fmaxf(size * log2_softplus(x), -1e6f);  // a finite way to say: nothing is left
    }
    return size * ptx::reciprocal(1.0f + ptx::exp2_fast(x));
  }

 private:
  /// log2(1 + 2^x), accurate where it is small: there log2(1 + e) loses the digits of e.
  static __device__ float log2_softplus(float x) {
    const float e = ptx::exp2_fast(-fabsf(x));
    const float series = kLog2e * e * (1.0f - e * (0.5f - e * (1.0f / 3.0f - 0.25f * e)));
    return fmaxf(x, 0.0f) + (e < 0.0078125f ? series : ptx::log2_fast(1.0f + e));
  }
};

/// Called by all threads of a block, before they part.
template <int kRows>
__device__ Gate make_gate(const KdaPrefillCuda& args, int64_t head, Shared<kRows>& shared) {
  const float rate = expf(args.a_log[head]);
  Gate gate;
  gate.slope = args.softplus != 0 ? kLog2e : -rate * kLog2e;
  gate.size = args.softplus != 0 ? -rate : args.lower_bound * kLog2e;
  gate.offsets = shared.gate_offsets;
  if (threadIdx.x < kDim) {
    shared.gate_offsets[threadIdx.x] = gate.slope * args.dt_bias[head * kDim + threadIdx.x];
  }
  return gate;
}

/// stage.token: inverse norms of k and q, from the diagonals of k k^T and q q^T (bf16 products are
/// exact in float32), and beta.
template <int kRows>
__device__ void token_factors(Stage<kRows>& stage, float beta_logit, int lane) {
  float k[2][4] = {};
  float q[2][4] = {};
  const int left = tile_row(lane) * kPitch + tile_column(lane);
  const int right = right_row(lane) * kPitch + right_column(lane);
#pragma unroll 2
  for (int c = 0; c < kDim; c += 16) {
    const ptx::Fragment kl = ptx::load_tiles(&stage.k[left + c]);
    const ptx::Fragment kr = ptx::load_tiles(&stage.k[right + c]);
    const ptx::Fragment ql = ptx::load_tiles(&stage.q[left + c]);
    const ptx::Fragment qr = ptx::load_tiles(&stage.q[right + c]);
    ptx::multiply(k[0], kl, kr.r[0], kr.r[1]);
    ptx::multiply(k[1], kl, kr.r[2], kr.r[3]);
    ptx::multiply(q[0], ql, qr.r[0], qr.r[1]);
    ptx::multiply(q[1], ql, qr.r[2], qr.r[3]);
  }
  const int row = lane >> 2;
  if (row >> 1 == (lane & 3)) {  // this lane holds (row, row) and (row + 8, row + 8)
    const bool odd = (row & 1) != 0;
    const float scale = 0.08838834764831845f;  // 128^-0.5
    stage.token[0][row] = rsqrtf((odd ? k[0][1] : k[0][0]) + 1e-6f);
    stage.token[0][row + 8] = rsqrtf((odd ? k[1][3] : k[1][2]) + 1e-6f);
    stage.token[1][row] = scale * rsqrtf((odd ? q[0][1] : q[0][0]) + 1e-6f);
    stage.token[1][row + 8] = scale * rsqrtf((odd ? q[1][3] : q[1][2]) + 1e-6f);
  }
  if (lane < kChunk) {
    stage.token[2][lane] = 1.0f / (1.0f + expf(-beta_logit));
  }
  __syncwarp();
}

/// Four bf16 values of four channels as floats.
struct Quad {
  float x[4];
  __device__ explicit Quad(const Bf16* p) {
    const uint2 raw = *reinterpret_cast<const uint2*>(p);
    x[0] = ptx::low_half(raw.x), x[1] = ptx::high_half(raw.x);
    x[2] = ptx::low_half(raw.y), x[3] = ptx::high_half(raw.y);
  }
};

__device__ inline void store_quad(Bf16* p, const float (&x)[4]) {
  *reinterpret_cast<uint2*>(p) = {ptx::pack(x[0], x[1]), ptx::pack(x[2], x[3])};
}

/// What a lane does of a chunk, 32 channels at a time: tokens 4 (lane / 8) and the next three,
/// channels 4 (lane % 8) and the next three. The loop over the four groups of channels is kept a
/// loop: its code, eight warps of it side by side, must stay in the instruction cache.
struct Patch {
  int quad, column;
  float of_k[4], of_q[4], size[4];  // of the lane's tokens; size is 0 where there is none

  template <int kRows>
  __device__ Patch(const Stage<kRows>& stage, const Gate& gate, int lowest, int end, int lane)
      : quad(lane >> 3), column(4 * (lane & 7)) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int t = 4 * quad + r;
      of_k[r] = stage.token[0][t];
      of_q[r] = stage.token[1][t];
      size[r] = t >= lowest && t < end ? gate.size : 0.0f;
    }
  }
};

/// sums[r][i]: log2 of the decay from the chunk's start through the lane's token r; total: through
/// its last token. Always added up in the same order: four tokens, then over the quads.
template <bool kSoftplus, int kRows>
__device__ void cumulative_decay(const Stage<kRows>& stage, const Gate& gate, const Patch& patch,
                                 int column, float (&sums)[4][4], float (&total)[4]) {
  const float4 offset = *reinterpret_cast<const float4*>(&gate.offsets[column]);
  const float offsets[4] = {offset.x, offset.y, offset.z, offset.w};
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const Quad logit(&stage.g[(4 * patch.quad + r) * kPitch + column]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float step =
          Gate::step<kSoftplus>(fmaf(logit.x[i], gate.slope, offsets[i]), patch.size[r]);
      sums[r][i] = r == 0 ? step : sums[r - 1][i] + step;
    }
  }
  constexpr uint32_t kAll = 0xFFFFFFFFu;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float sum = sums[3][i];
    const float one = __shfl_up_sync(kAll, sum, 8);
    sum += patch.quad >= 1 ? one : 0.0f;
    const float two = __shfl_up_sync(kAll, sum, 16);
    sum += patch.quad >= 2 ? two : 0.0f;
    total[i] = __shfl_sync(kAll, sum, 24 + (patch.column >> 2));
    const float before = __shfl_up_sync(kAll, sum, 8);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      sums[r][i] += patch.quad >= 1 ? before : 0.0f;
    }
  }
}

/// The decayed factors, in place, and kt. kIsWide: e^-G may overflow, so it is held back (the rows
/// that would need it are done pair by pair) and kt takes its own exponential.
template <bool kIsWide, int kRows>
__device__ void decay_patch(Stage<kRows>& stage, const Patch& patch, int column,
                            const float (&sums)[4][4], const float (&total)[4]) {
  float all[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    all[i] = ptx::exp2_fast(total[i]);
  }
  if (patch.quad == 0) {
    *reinterpret_cast<float4*>(&stage.decay[column]) = float4{all[0], all[1], all[2], all[3]};
  }
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int at = (4 * patch.quad + r) * kPitch + column;
    const Quad k(&stage.k[at]);
    const Quad q(&stage.q[at]);
    float qd[4], kd[4], kn[4], kt[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float decay = ptx::exp2_fast(sums[r][i]);
      const float growth = ptx::exp2_fast(kIsWide ? fminf(-sums[r][i], kWide) : -sums[r][i]);
      const float unit = k.x[i] * patch.of_k[r];
      qd[i] = q.x[i] * patch.of_q[r] * decay;
      kd[i] = unit * decay;
      kn[i] = unit * growth;
      kt[i] = kIsWide ? unit * ptx::exp2_fast(total[i] - sums[r][i]) : kn[i] * all[i];
    }
    store_quad(&stage.q[at], qd);
    store_quad(&stage.k[at], kd);
    store_quad(&stage.g[at], kn);
    store_quad(&stage.kt[at], kt);
  }
}

/// Row of the chunk from which on e^-G of some channel of the patch is out of range; 16: none.
__device__ inline int first_deep_row(const Patch& patch, const float (&sums)[4][4]) {
  int first = kChunk;
#pragma unroll
  for (int r = 3; r >= 0; --r) {
    const float low = fminf(fminf(sums[r][0], sums[r][1]), fminf(sums[r][2], sums[r][3]));
    first = low >= -kWide ? first : 4 * patch.quad + r;
  }
  return __reduce_min_sync(0xFFFFFFFFu, first);
}

/// All channels. Returns the first row that the factors cannot serve.
template <bool kSoftplus, int kRows>
__device__ int decayed_factors(Stage<kRows>& stage, const Gate& gate, int lowest, int end,
                               int lane) {
  const Patch patch(stage, gate, lowest, end, lane);
  int narrow = kChunk;
#pragma unroll 1
  for (int column = patch.column; column < kDim; column += 32) {
    float sums[4][4];
    float total[4];
    cumulative_decay<kSoftplus>(stage, gate, patch, column, sums, total);
    const float least = fminf(fminf(total[0], total[1]), fminf(total[2], total[3]));
    if (!__any_sync(0xFFFFFFFFu, !(least >= -kWide))) {
      decay_patch<false>(stage, patch, column, sums, total);
    } else {
      decay_patch<true>(stage, patch, column, sums, total);
      narrow = min(narrow, first_deep_row(patch, sums));
    }
  }
  __syncwarp();
  return narrow;
}

/// Rows [0, rows) of L and of the lower part of q k^T, from the factors.
template <int kRows>
__device__ void triangles(Stage<kRows>& stage, int rows, int lane) {
  float l[2][4] = {};
  float p[2][4] = {};
  const int left = tile_row(lane) * kPitch + tile_column(lane);
  const int right = right_row(lane) * kPitch + right_column(lane);
#pragma unroll 2
  for (int c = 0; c < kDim; c += 16) {
    const ptx::Fragment kd = ptx::load_tiles(&stage.k[left + c]);
    const ptx::Fragment qd = ptx::load_tiles(&stage.q[left + c]);
    const ptx::Fragment kn = ptx::load_tiles(&stage.g[right + c]);
    ptx::multiply(l[0], kd, kn.r[0], kn.r[1]);
    ptx::multiply(l[1], kd, kn.r[2], kn.r[3]);
    ptx::multiply(p[0], qd, kn.r[0], kn.r[1]);
    ptx::multiply(p[1], qd, kn.r[2], kn.r[3]);
  }
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = (lane >> 2) + 8 * half;
      const int j = 8 * tile + 2 * (lane & 3);
      if (i < rows) {
        const float beta = stage.token[2][i];
        const float* li = &l[tile][2 * half];
        const float* pi = &p[tile][2 * half];
        *reinterpret_cast<float2*>(&stage.t[i * kTriangle + j]) = {j < i ? beta * li[0] : 0.0f,
                                                                   j + 1 < i ? beta * li[1] : 0.0f};
        *reinterpret_cast<uint32_t*>(&stage.p[i * kTriangle + j]) =
            ptx::pack(j <= i ? pi[0] : 0.0f, j + 1 <= i ? pi[1] : 0.0f);
      }
    }
  }
  __syncwarp();
}

/// The inputs of one chunk as they lie in global memory.
struct Source {
  const Bf16* q;
  const Bf16* k;
  const Bf16* g;  // row 0 of the chunk, column 0 of the head
  int64_t q_token, k_token, g_token;
};

/// The same for rows [first, end), pair by pair with e^(G_i - G_j) <= 1: slow, exact for any gate.
/// Reads its inputs anew, since the stage's are replaced by now.
template <int kRows>
__device__ __noinline__ void wide_triangles(Stage<kRows>& stage, const Gate& gate, bool softplus,
                                            const Source& source, int first, int lowest, int end,
                                            int lane) {
  float sums[kChunk][4];
  float sum[4] = {};
  for (int t = lowest; t < end; ++t) {
    const Quad logit(&source.g[t * source.g_token + 4 * lane]);
    for (int i = 0; i < 4; ++i) {
      const float x = fmaf(logit.x[i], gate.slope, gate.offsets[4 * lane + i]);
      sum[i] += softplus ? Gate::step<true>(x, gate.size) : Gate::step<false>(x, gate.size);
      sums[t][i] = sum[i];
    }
  }
  for (int i = first; i < end; ++i) {
    const Quad qi(&source.q[i * source.q_token + 4 * lane]);
    const Quad ki(&source.k[i * source.k_token + 4 * lane]);
    for (int j = lowest; j <= i; ++j) {
      const Quad kj(&source.k[j * source.k_token + 4 * lane]);
      float l = 0.0f;
      float p = 0.0f;
      for (int c = 0; c < 4; ++c) {
        const float decayed = kj.x[c] * ptx::exp2_fast(sums[i][c] - sums[j][c]);
        l = fmaf(ki.x[c], decayed, l);
        p = fmaf(qi.x[c], decayed, p);
      }
      for (int step = 16; step > 0; step >>= 1) {
        l += __shfl_xor_sync(0xFFFFFFFFu, l, step);
        p += __shfl_xor_sync(0xFFFFFFFFu, p, step);
      }
      if (lane == 0) {
        const float of_kj = stage.token[0][j];
        stage.t[i * kTriangle + j] =
            j < i ? l * of_kj * stage.token[0][i] * stage.token[2][i] : 0.0f;
        stage.p[i * kTriangle + j] = __float2bfloat16(p * of_kj * stage.token[1][i]);
      }
    }
  }
  __syncwarp();
}

/// Zeros in rows [first, 16) of t and p, before some of them are filled in.
template <int kRows>
__device__ void clear_triangles(Stage<kRows>& stage, int first, int lane) {
  for (int i = first; i < kChunk; ++i) {
    if (lane < kChunk) {
      stage.t[i * kTriangle + lane] = 0.0f;
      stage.p[i * kTriangle + lane] = Bf16(0.0f);
    }
  }
  __syncwarp();
}

/// c[8x8] of the lane += a b for 8x8 float32 matrices, rows kTriangle apart, by three tf32 products
/// of high and low parts: as good as float32.
__device__ inline void multiply_blocks(float (&c)[4], const float* a, const float* b, int lane) {
  const int row = lane >> 2;
  const int column = lane & 3;
  uint32_t high[4], low[4];
  const float x[4] = {a[row * kTriangle + column], a[row * kTriangle + column + 4],
                      b[column * kTriangle + row], b[(column + 4) * kTriangle + row]};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    high[i] = ptx::to_tf32(x[i]);
    low[i] = ptx::to_tf32(x[i] - __uint_as_float(high[i]));
  }
  ptx::multiply_tf32(c, {{low[0], 0, low[1], 0}}, high[2], high[3]);
  ptx::multiply_tf32(c, {{high[0], 0, high[1], 0}}, low[2], low[3]);
  ptx::multiply_tf32(c, {{high[0], 0, high[1], 0}}, high[2], high[3]);
}

/// t <- (I + t)^-1 Diag(beta). The two diagonal 8x8 blocks by forward substitution in float32 (lane
/// j and j + 16 solve column j of the 16), the one below as -A22 L21 A11. Rounded to tf32, which is
/// what the products take.
template <int kRows>
__device__ void invert(Stage<kRows>& stage, int lane) {
  const int column = lane & 15;
  const int block = column & 8;
  float* const rows = &stage.t[block * kTriangle + block];
  float x[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    x[i] = i == (column & 7) ? 1.0f : 0.0f;
#pragma unroll
    for (int j = 0; j < i; ++j) {
      x[i] = fmaf(-rows[i * kTriangle + j], x[j], x[i]);
    }
  }
  __syncwarp();
  if (lane < kChunk) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      rows[i * kTriangle + (column & 7)] = x[i];
    }
  }
  __syncwarp();
  float* const lower = &stage.t[8 * kTriangle];
  float* const spare = &stage.t[8];  // the block above the diagonal
  float product[4] = {};
  multiply_blocks(product, lower, stage.t, lane);  // L21 A11
  float* const mine = spare + (lane >> 2) * kTriangle + 2 * (lane & 3);
  *reinterpret_cast<float2*>(mine) = {product[0], product[1]};
  __syncwarp();
  float result[4] = {};
  multiply_blocks(result, lower + 8, spare, lane);  // A22 (L21 A11)
  *reinterpret_cast<float2*>(lower + (lane >> 2) * kTriangle + 2 * (lane & 3)) = {-result[0],
                                                                                  -result[1]};
  __syncwarp();
  if (lane < kChunk) {
    const float beta = stage.token[2][lane];
#pragma unroll 4
    for (int i = 0; i < kChunk; ++i) {
      float& entry = stage.t[i * kTriangle + lane];
      entry = __uint_as_float(ptx::to_tf32(entry * beta));
    }
  }
}

/// All of it. `beta_logit` is that of token `lane`, for the first 16 lanes.
template <int kRows>
__device__ void prepare_chunk(Stage<kRows>& stage, const Gate& gate, bool softplus,
                              const Source& source, int lowest, int end, float beta_logit,
                              int lane) {
  token_factors(stage, beta_logit, lane);
  const int narrow = softplus ? decayed_factors<true>(stage, gate, lowest, end, lane)
                              : decayed_factors<false>(stage, gate, lowest, end, lane);
  if (narrow < kChunk) {
    clear_triangles(stage, narrow, lane);
    wide_triangles(stage, gate, softplus, source, narrow, lowest, end, lane);
  }
  triangles(stage, narrow, lane);
  invert(stage, lane);
}

}  // namespace triax::sequence::prefill
