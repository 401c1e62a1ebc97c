// What decode, verify and fold share on the device: a head's tokens prepared in shared memory and
// the recurrent step on rows of the state that live in registers. Every sum has one order and every
// multiply-add is written out, so that the three agree bit for bit.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "sequence/kda/kda_decode_cuda.h"

namespace triax::sequence::gpu {

constexpr int kHeadDim = 128;   // K and V
constexpr int kRowsOfWarp = 8;  // rows of the state a warp owns; a lane has 4 columns of each
constexpr int kSlices = kHeadDim / 32;

constexpr int64_t kBatchMax = 65535;  // sequences are the grid's second dimension

inline bool is_float(DType type) { return type == DType::kF32 || type == DType::kBf16; }

/// Checks of the host; a failure is the caller's bug.
inline bool tokens_valid(const KdaTokensCuda& in) {
  const bool norm = in.norm_weight == nullptr || in.gate_logit != nullptr;
  return in.heads >= 0 && is_float(in.qkv_type) && is_float(in.logit_type) &&
         is_float(in.out_type) && norm &&
         (in.heads == 0 || (in.q && in.k && in.v && in.decay_logit && in.beta_logit && in.a_log &&
                            in.dt_bias && in.out));
}

inline bool pool_valid(const KdaPoolCuda& pool, const KdaTokensCuda& in) {
  const bool window = in.taps == nullptr || pool.windows != nullptr;
  return pool.states != nullptr && pool.slots != nullptr && window && pool.state_stride % 4 == 0 &&
         reinterpret_cast<uintptr_t>(pool.states) % 16 == 0;
}

/// Rows of one head that a thread block owns; the 128 / kRows blocks of a head form a cluster.
template <int kRows>
struct Split {
  static constexpr int kBlocks = kHeadDim / kRows;
  static constexpr int kThreads = kRows / kRowsOfWarp * 32;
  static constexpr int kBlocksOfSm = 1024 / kThreads;  // 64 registers a thread
};

/// Rows of a block: few where heads are few, to spread a head over more multiprocessors; a whole
/// head needs no cluster, whose exchange for the norm costs more than it gains from 32 heads on.
inline int rows_of_block(int asked, int64_t batch_heads, bool norm) {
  return asked != 0 ? asked : batch_heads <= (norm ? 16 : 64) ? 32 : 128;
}

/// Launches `kernel` over (heads * kBlocks, batch), kBlocks blocks a cluster.
template <int kBlocks, typename Args>
cudaError_t launch_clusters(void (*kernel)(Args), const Args& args, int64_t heads, int64_t batch,
                            int threads, Start start, cudaStream_t stream) {
  cudaLaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (kBlocks > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {kBlocks, 1, 1};
  }
  if (start == Start::kOverlapPrevious) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(heads) * kBlocks, static_cast<unsigned>(batch));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  return cudaLaunchKernelEx(&config, kernel, args);
}

/// kTokens tokens of one head. Every block of the cluster holds all of q, k and the decay.
template <int kRows, int kTokens>
struct alignas(16) HeadTokens {
  float q[kTokens][kHeadDim];  // convolved, not yet normalised
  float k[kTokens][kHeadDim];
  float decay[kTokens][kHeadDim];  // exp(g) = decay + decay_low
  float decay_low[kTokens][kHeadDim];
  float v[kTokens][kRows];
  float q_squares[kTokens][kSlices];  // sums of squares of 32 channels each
  float k_squares[kTokens][kSlices];
  float beta[kTokens];
  float key_query[kTokens];  // k . q, of verify
  float out[kTokens][kRows];
  float out_squares[kTokens][kHeadDim / kRowsOfWarp];
};

/// A kF32 or kBf16 value as loaded. Kept apart from its conversion, which waits for the load: loads
/// of one thread shall all be on their way before the first is needed.
struct Bits {
  uint32_t bits;
};

__device__ inline Bits load_bits(const void* p, int64_t i, DType type) {
  return {type == DType::kBf16 ? static_cast<const uint16_t*>(p)[i]
                               : static_cast<const uint32_t*>(p)[i]};
}

__device__ inline float to_float(Bits x, DType type) {
  return __uint_as_float(type == DType::kBf16 ? x.bits << 16 : x.bits);
}

__device__ inline void store_as(void* p, int64_t i, DType type, float x) {
  if (type == DType::kBf16) {
    static_cast<__nv_bfloat16*>(p)[i] = __float2bfloat16_rn(x);
  } else {
    static_cast<float*>(p)[i] = x;
  }
}

__device__ inline float sigmoid(float x) { return __frcp_rn(__fadd_rn(1.0f, expf(-x))); }

/// The kernel before this one is done and what it wrote can be read; only then may the kernel after
/// this one begin, so that what it loads early is older than this one's start.
__device__ inline void wait_for_previous() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/// The sum over the warp, the same bits in every lane.
__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) {
    x = __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, mask));
  }
  return x;
}

/// What the cluster needs: its barrier in two halves, and stores to the same place in each block.
template <int kBlocks>
struct Cluster {
  static __device__ int rank() {
    if constexpr (kBlocks == 1) {
      return 0;
    }
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return static_cast<int>(rank);
  }
  static __device__ void arrive() {
    if constexpr (kBlocks > 1) {
      asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    }
  }
  static __device__ void wait() {
    if constexpr (kBlocks > 1) {
      asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    }
  }
  static __device__ void sync() {
    if constexpr (kBlocks == 1) {
      __syncthreads();
    } else {
      arrive();
      wait();
    }
  }
  static __device__ void store_all(float* shared, float x) {
    if constexpr (kBlocks == 1) {
      *shared = x;
      return;
    }
    const auto own = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      uint32_t there;
      asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(own), "r"(block));
      asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(x) : "memory");
    }
  }
};

/// exp(g) as the sum of two floats. Near 1 a float's rounding of the decay would be the same in
/// every token and add up; there exp(g) - 1 is known to 2^-24 of itself.
__device__ inline float2 exact_decay(float g) {
  if (g < -0.5f) {
    return {expf(g), 0.0f};
  }
  const float less = expm1f(g);
  const float high = __fadd_rn(1.0f, less);
  return {high, __fsub_rn(less, __fsub_rn(high, 1.0f))};
}

/// g from the logit; a rate beyond float32 saturates the gate instead of making 0 * infinity.
__device__ inline float log_decay(const KdaTokensCuda& in, float logit, float bias, float a_log) {
  const float rate = expf(fminf(fmaxf(a_log, -200.0f), 88.0f));
  const float z = __fadd_rn(logit, bias);
  if (in.gate == DecayGate::kBounded) {
    return __fmul_rn(in.lower_bound, sigmoid(__fmul_rn(rate, z)));
  }
  const float softplus = __fadd_rn(fmaxf(z, 0.0f), log1pf(expf(-fabsf(z))));
  return -__fmul_rn(rate, softplus);
}

/// Roles of a block's warps while tokens are prepared.
enum class Role { kQ = 0, kK = 1, kV = 2, kGates = 3 };

/// What a thread prepares: one channel, in one role.
struct Share {
  Role role;
  int own;      // channel within the block's rows
  int channel;  // within the head
  int64_t at;   // within all heads
};

template <int kRows>
__device__ inline Share share_of(int64_t head, int rank) {
  constexpr int kWarps = kRows / 32;  // that share a role
  const int warp = threadIdx.x / 32;
  Share share;
  share.role = static_cast<Role>(warp / kWarps);
  share.own = warp % kWarps * 32 + threadIdx.x % 32;
  share.channel = rank * kRows + share.own;
  share.at = head * kHeadDim + share.channel;
  return share;
}

/// Inputs of a thread's channel. For q, k and v: the window, then the tokens' own in `x`.
template <int kTokens>
struct Channel {
  float x[3 + kTokens];
  float fixed[4];      // the taps; for the gates: dt_bias, a_log
  Bits bits[kTokens];  // of the tokens: raw inputs, decay logits
  Bits beta;           // gates only: logit of the token `own`
};

/// What no projection of this step wrote: the window and the layer's weights.
template <int kTokens>
__device__ inline void load_old(const KdaTokensCuda& in, const float* window, const Share& share,
                                int64_t head, Channel<kTokens>& c) {
  if (share.role == Role::kGates) {
    c.fixed[0] = in.dt_bias[share.at];
    c.fixed[1] = in.a_log[head];
    return;
  }
  if (in.taps != nullptr) {
    const int64_t width = in.heads * kHeadDim;
    const int64_t at = static_cast<int64_t>(share.role) * width + share.at;
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      c.x[i] = window[3 * i * width + at];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      c.fixed[i] = in.taps[3 * i * width + at];
    }
  }
}

/// What this step's projections wrote for rows `row`... of the tokens.
template <int kTokens>
__device__ inline void load_new(const KdaTokensCuda& in, int64_t row, int count, const Share& share,
                                int64_t head, Channel<kTokens>& c) {
  const bool gates = share.role == Role::kGates;
  const void* p = gates                    ? in.decay_logit
                  : share.role == Role::kQ ? in.q
                  : share.role == Role::kK ? in.k
                                           : in.v;
  const int64_t stride = gates ? in.decay_stride : in.qkv_stride;
  const DType type = gates ? in.logit_type : in.qkv_type;
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    if (t < count) {
      c.bits[t] = load_bits(p, (row + t) * stride + share.at, type);
    }
  }
  if (gates && share.own < count) {
    c.beta = load_bits(in.beta_logit, (row + share.own) * in.beta_stride + head, in.logit_type);
  }
}

/// The convolved value of token t.
template <int kTokens>
__device__ inline float convolve(const Channel<kTokens>& c, int t) {
  float sum = __fmul_rn(c.fixed[0], c.x[t]);
#pragma unroll
  for (int i = 1; i < 4; ++i) {
    sum = fmaf(c.fixed[i], c.x[t + i], sum);
  }
  return __fmul_rn(sum, sigmoid(sum));
}

/// Four columns of eight rows of the state, as one lane holds them.
struct StateRows {
  float4 row[kRowsOfWarp];
};

/// What a lane needs of a token: its four columns.
struct TokenLanes {
  float4 q, k, decay, decay_low;
};

__device__ inline float4 scaled(float4 x, float factor) {
  return {__fmul_rn(x.x, factor), __fmul_rn(x.y, factor), __fmul_rn(x.z, factor),
          __fmul_rn(x.w, factor)};
}

__device__ inline float dot4(float4 a, float4 b) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, __fmul_rn(a.x, b.x))));
}

__device__ inline float inverse_norm(const float* squares) {
  const float sum = __fadd_rn(__fadd_rn(squares[0], squares[1]), __fadd_rn(squares[2], squares[3]));
  return rsqrtf(__fadd_rn(sum, 1e-6f));
}

/// The lane's columns of token t, with q and k as the convolution left them.
template <int kRows, int kTokens>
__device__ inline TokenLanes raw_lanes(const HeadTokens<kRows, kTokens>& s, int t) {
  const int lane = threadIdx.x % 32;
  const auto columns = [&](const float* x) { return reinterpret_cast<const float4*>(x)[lane]; };
  return {columns(s.q[t]), columns(s.k[t]), columns(s.decay[t]), columns(s.decay_low[t])};
}

/// q and k normalised, q scaled.
template <int kRows, int kTokens>
__device__ inline void normalize(const HeadTokens<kRows, kTokens>& s, int t, float scale,
                                 TokenLanes& token) {
  token.q = scaled(token.q, __fmul_rn(scale, inverse_norm(s.q_squares[t])));
  token.k = scaled(token.k, inverse_norm(s.k_squares[t]));
}

__device__ inline float key_query(const TokenLanes& token) {
  return warp_sum(dot4(token.k, token.q));
}

__device__ inline void decay_row(float4& s, const TokenLanes& token) {
  s.x = fmaf(s.x, token.decay.x, __fmul_rn(s.x, token.decay_low.x));
  s.y = fmaf(s.y, token.decay.y, __fmul_rn(s.y, token.decay_low.y));
  s.z = fmaf(s.z, token.decay.z, __fmul_rn(s.z, token.decay_low.z));
  s.w = fmaf(s.w, token.decay.w, __fmul_rn(s.w, token.decay_low.w));
}

__device__ inline void add_outer(float4& s, float u, float4 k) {
  s.x = fmaf(u, k.x, s.x);
  s.y = fmaf(u, k.y, s.y);
  s.z = fmaf(u, k.z, s.z);
  s.w = fmaf(u, k.w, s.w);
}

/// One halving of `kCount` values over lanes `mask` apart: a lane keeps the half that its bit says.
template <int kCount>
__device__ inline void halve(float* x, int mask) {
  const bool upper = (threadIdx.x & mask) != 0;
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    const float give = upper ? x[i] : x[i + kCount / 2];
    const float keep = upper ? x[i + kCount / 2] : x[i];
    x[i] = __fadd_rn(keep, __shfl_xor_sync(0xffffffffu, give, mask));
  }
}

/// The row of the warp's eight that this lane speaks for after a step.
__device__ inline int lane_row() { return (threadIdx.x >> 1) & 7; }

struct StepResult {
  float u;  // beta (v - S k) of row lane_row(), in lanes 0..15
  float o;  // output of row lane_row(), in lanes 16..31
};

/// One token through the warp's rows; v is that of row lane_row(). S k and S q are summed in one
/// go, since (S + u k^T) q = S q + u (k . q), of which `kq` is the last.
__device__ inline StepResult step(StateRows& s, const TokenLanes& token, float kq, float v,
                                  float beta) {
  float sums[2 * kRowsOfWarp];
#pragma unroll
  for (int r = 0; r < kRowsOfWarp; ++r) {
    decay_row(s.row[r], token);
    sums[r] = dot4(s.row[r], token.k);
    sums[kRowsOfWarp + r] = dot4(s.row[r], token.q);
  }
  halve<16>(sums, 16);
  halve<8>(sums, 8);
  halve<4>(sums, 4);
  halve<2>(sums, 2);
  const float sum = __fadd_rn(sums[0], __shfl_xor_sync(0xffffffffu, sums[0], 1));
  StepResult result;
  result.u = __fmul_rn(beta, __fsub_rn(v, sum));
  result.o = fmaf(__shfl_xor_sync(0xffffffffu, result.u, 16), kq, sum);
#pragma unroll
  for (int r = 0; r < kRowsOfWarp; ++r) {
    add_outer(s.row[r], __shfl_sync(0xffffffffu, result.u, 2 * r), token.k);
  }
  return result;
}

/// Where the warp's first row of slot `slot` is for this lane.
template <int kRows>
__device__ inline int64_t state_offset(const KdaPoolCuda& pool, int64_t slot, int64_t head,
                                       int rank) {
  const int64_t row = head * kHeadDim + rank * kRows + threadIdx.x / 32 * kRowsOfWarp;
  return slot * pool.state_stride + row * kHeadDim + threadIdx.x % 32 * 4;
}

__device__ inline StateRows load_state(const float* p) {
  StateRows s;
#pragma unroll
  for (int r = 0; r < kRowsOfWarp; ++r) {
    s.row[r] = *reinterpret_cast<const float4*>(p + r * kHeadDim);
  }
  return s;
}

__device__ inline void store_state(float* p, const StateRows& s) {
#pragma unroll
  for (int r = 0; r < kRowsOfWarp; ++r) {
    *reinterpret_cast<float4*>(p + r * kHeadDim) = s.row[r];
  }
}

/// The block's share of the decay and beta of `count` tokens into shared memory of the cluster.
/// `each` is called with every token and its g.
template <int kRows, int kTokens, typename Each>
__device__ inline void prepare_gates(const KdaTokensCuda& in, const Share& share, int count,
                                     const Channel<kTokens>& c, HeadTokens<kRows, kTokens>& s,
                                     Each each) {
  using Group = Cluster<Split<kRows>::kBlocks>;
  if (share.own < count) {
    s.beta[share.own] = sigmoid(to_float(c.beta, in.logit_type));
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    if (t < count) {
      const float z = to_float(c.bits[t], in.logit_type);
      const float g = log_decay(in, z, c.fixed[0], c.fixed[1]);
      each(t, g);
      const float2 decay = exact_decay(g);
      Group::store_all(&s.decay[t][share.channel], decay.x);
      Group::store_all(&s.decay_low[t][share.channel], decay.y);
    }
  }
}

/// The block's share of q, k and v, convolved. Leaves the tokens' raw inputs in c.x.
template <int kRows, int kTokens>
__device__ inline void prepare_channel(const KdaTokensCuda& in, const Share& share, int count,
                                       Channel<kTokens>& c, HeadTokens<kRows, kTokens>& s) {
  using Group = Cluster<Split<kRows>::kBlocks>;
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    c.x[3 + t] = to_float(c.bits[t], in.qkv_type);
    if (t < count) {
      const float x = in.taps != nullptr ? convolve(c, t) : c.x[3 + t];
      if (share.role == Role::kV) {
        s.v[t][share.own] = x;
        continue;
      }
      const bool is_q = share.role == Role::kQ;
      const float squares = warp_sum(__fmul_rn(x, x));
      Group::store_all(is_q ? &s.q[t][share.channel] : &s.k[t][share.channel], x);
      if (threadIdx.x % 32 == 0) {
        const int slice = share.channel / 32;
        Group::store_all(is_q ? &s.q_squares[t][slice] : &s.k_squares[t][slice], squares);
      }
    }
  }
}

/// Leaves the outputs of token t in shared memory, with the sums of squares that the norm needs.
template <int kRows, int kTokens>
__device__ inline void keep_output(HeadTokens<kRows, kTokens>& s, int t, int rank, float o,
                                   bool norm) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  if (lane >= 16 && lane % 2 == 0) {
    s.out[t][warp * kRowsOfWarp + lane_row()] = o;
  }
  if (!norm) {
    return;
  }
  float squares = __fmul_rn(o, o);
#pragma unroll
  for (int mask = 8; mask > 1; mask /= 2) {
    squares = __fadd_rn(squares, __shfl_xor_sync(0xffffffffu, squares, mask));
  }
  if (lane == 16) {
    Cluster<Split<kRows>::kBlocks>::store_all(&s.out_squares[t][rank * kRows / kRowsOfWarp + warp],
                                              squares);
  }
}

/// What the outputs of a thread are multiplied with. Thread i of a block writes output i % kRows of
/// token i / kRows (and of those kThreads further on).
template <int kRows, int kTokens>
struct OutputFactors {
  static constexpr int kPerThread =
      (kRows * kTokens + Split<kRows>::kThreads - 1) / Split<kRows>::kThreads;
  float weight[kPerThread];
  Bits gate_logit[kPerThread];
};

/// Loaded early: at the end of the kernel their latency would show. Part of load_new.
template <int kRows, int kTokens>
__device__ inline OutputFactors<kRows, kTokens> load_output_factors(const KdaTokensCuda& in,
                                                                    int64_t row, int count,
                                                                    int64_t head, int rank) {
  OutputFactors<kRows, kTokens> f{};
#pragma unroll
  for (int i = 0; i < f.kPerThread; ++i) {
    const int item = i * Split<kRows>::kThreads + threadIdx.x;
    const int t = item / kRows;
    const int channel = rank * kRows + item % kRows;
    if (in.norm_weight != nullptr && t < count) {
      const int64_t at = (row + t) * in.gate_stride + head * kHeadDim + channel;
      f.weight[i] = in.norm_weight[channel];
      f.gate_logit[i] = load_bits(in.gate_logit, at, in.logit_type);
    }
  }
  return f;
}

/// Writes the block's outputs; those of the head and their sums of squares are in shared memory.
template <int kRows, int kTokens>
__device__ inline void write_outputs(const KdaTokensCuda& in, const HeadTokens<kRows, kTokens>& s,
                                     const OutputFactors<kRows, kTokens>& factors, int64_t row,
                                     int count, int64_t head, int rank) {
#pragma unroll
  for (int i = 0; i < factors.kPerThread; ++i) {
    const int item = i * Split<kRows>::kThreads + threadIdx.x;
    const int t = item / kRows;
    if (t >= count) {
      return;
    }
    float o = s.out[t][item % kRows];
    if (in.norm_weight != nullptr) {
      float squares = 0.0f;
#pragma unroll
      for (int w = 0; w < kHeadDim / kRowsOfWarp; ++w) {
        squares = __fadd_rn(squares, s.out_squares[t][w]);
      }
      const float mean = __fmul_rn(squares, 1.0f / kHeadDim);
      o = __fmul_rn(
          __fmul_rn(o, rsqrtf(__fadd_rn(mean, in.norm_eps))),
          __fmul_rn(factors.weight[i], sigmoid(to_float(factors.gate_logit[i], in.logit_type))));
    }
    store_as(in.out, (row + t) * in.out_stride + head * kHeadDim + rank * kRows + item % kRows,
             in.out_type, o);
  }
}

/// Zeros for the `count` outputs of a sequence without a state.
template <int kRows>
__device__ inline void write_zeros(const KdaTokensCuda& in, int64_t row, int count, int64_t head,
                                   int rank) {
  for (int item = threadIdx.x; item < kRows * count; item += Split<kRows>::kThreads) {
    store_as(in.out,
             (row + item / kRows) * in.out_stride + head * kHeadDim + rank * kRows + item % kRows,
             in.out_type, 0.0f);
  }
}

}  // namespace triax::sequence::gpu
