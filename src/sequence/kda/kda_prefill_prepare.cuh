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

/// The decayed factors, in place, and kt. kIsWide: e^-G may overflow, so where the decay has passed
/// 2^-kWide all factors are zero (deep_channels does those pairs) and kt takes its own exponential.
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
      const bool shallow = !kIsWide || sums[r][i] >= -kWide;
      const float decay = shallow ? ptx::exp2_fast(sums[r][i]) : 0.0f;
      const float growth = shallow ? ptx::exp2_fast(-sums[r][i]) : 0.0f;
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

/// Sums over channels for the entries of L and q k^T that a lane holds in triangles(): those pairs
/// of rows whose later one lies deeper than 2^-kWide in the channel. Without norms and beta.
struct DeepSums {
  bool any = false;
  float l[2][4];
  float p[2][4];
};

/// A patch's decays, where a function can be handed them.
struct PatchDecays {
  float sums[4][4];
  float total[4];
};

/// The deep pairs of 32 channels from `first` on, with e^(G_i - G_j) <= 1: exact for any gate.
/// Which pairs are deep depends on no later row. k and q are still as they came.
template <int kRows>
__device__ __noinline__ void deep_channels(const Stage<kRows>& stage, const PatchDecays& decays,
                                           int first, int lane, DeepSums& deep) {
  constexpr uint32_t kAll = 0xFFFFFFFFu;
  const int token = lane & 15;
  const int row = lane >> 2;
  const int column = 2 * (lane & 3);
  if (!deep.any) {
    deep = {true, {}, {}};
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t left = __ballot_sync(kAll, !(decays.total[i] >= -kWide)) & 0xFFu;
    while (left != 0) {
      const int of = __ffs(static_cast<int>(left)) - 1;
      left &= left - 1;
      float g = 0.0f;
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const float x = __shfl_sync(kAll, decays.sums[r][i], (token >> 2) * 8 + of);
        g = (token & 3) == r ? x : g;
      }
      const int at = token * kPitch + first + 4 * of + i;
      const float k = __bfloat162float(stage.k[at]);
      const float q = __bfloat162float(stage.q[at]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int later = row + 8 * half;
        const float g_later = __shfl_sync(kAll, g, later);
        const float k_later = __shfl_sync(kAll, k, later);
        const float q_later = __shfl_sync(kAll, q, later);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const int earlier = column + 8 * (n >> 1) + (n & 1);
          const float g_earlier = __shfl_sync(kAll, g, earlier);
          const float k_earlier = __shfl_sync(kAll, k, earlier);
          const bool counts = earlier <= later && !(g_later >= -kWide);
          const float decayed = counts ? k_earlier * ptx::exp2_fast(g_later - g_earlier) : 0.0f;
          float& l = deep.l[n >> 1][2 * half + (n & 1)];
          float& p = deep.p[n >> 1][2 * half + (n & 1)];
          l = fmaf(k_later, decayed, l);
          p = fmaf(q_later, decayed, p);
        }
      }
    }
  }
}

/// All channels.
template <bool kSoftplus, int kRows>
__device__ void decayed_factors(Stage<kRows>& stage, const Gate& gate, int lowest, int end,
                                int lane, DeepSums& deep) {
  const Patch patch(stage, gate, lowest, end, lane);
#pragma unroll 1
  for (int column = patch.column; column < kDim; column += 32) {
    float sums[4][4];
    float total[4];
    cumulative_decay<kSoftplus>(stage, gate, patch, column, sums, total);
    const float least = fminf(fminf(total[0], total[1]), fminf(total[2], total[3]));
    if (!__any_sync(0xFFFFFFFFu, !(least >= -kWide))) {
      decay_patch<false>(stage, patch, column, sums, total);
    } else {
      PatchDecays decays;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        decays.total[i] = total[i];
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          decays.sums[r][i] = sums[r][i];
        }
      }
      deep_channels(stage, decays, column - patch.column, lane, deep);
      __syncwarp();
      decay_patch<true>(stage, patch, column, sums, total);
    }
  }
  __syncwarp();
}

/// L and the lower part of q k^T, from the factors and the deep pairs.
template <int kRows>
__device__ void triangles(Stage<kRows>& stage, const DeepSums& deep, int lane) {
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
      const float beta = stage.token[2][i];
      float* li = &l[tile][2 * half];
      float* pi = &p[tile][2 * half];
      if (deep.any) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float of_kj = stage.token[0][j + c];
          li[c] = fmaf(deep.l[tile][2 * half + c], stage.token[0][i] * of_kj, li[c]);
          pi[c] = fmaf(deep.p[tile][2 * half + c], stage.token[1][i] * of_kj, pi[c]);
        }
      }
      *reinterpret_cast<float2*>(&stage.t[i * kTriangle + j]) = {j < i ? beta * li[0] : 0.0f,
                                                                 j + 1 < i ? beta * li[1] : 0.0f};
      *reinterpret_cast<uint32_t*>(&stage.p[i * kTriangle + j]) =
          ptx::pack(j <= i ? pi[0] : 0.0f, j + 1 <= i ? pi[1] : 0.0f);
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
__device__ void prepare_chunk(Stage<kRows>& stage, const Gate& gate, bool softplus, int lowest,
                              int end, float beta_logit, int lane) {
  token_factors(stage, beta_logit, lane);
  DeepSums deep;
  if (softplus) {
    decayed_factors<true>(stage, gate, lowest, end, lane, deep);
  } else {
    decayed_factors<false>(stage, gate, lowest, end, lane, deep);
  }
  triangles(stage, deep, lane);
  invert(stage, lane);
}

}  // namespace triax::sequence::prefill
