// The recurrence token by token: a block holds some rows of one head's state in registers and walks
// its sequence. Every token is computed alike, wherever a call begins: any split gives equal bits.
#include <cuda_bf16.h>

#include "device/cuda/block.cuh"
#include "sequence/kda/kda_cuda.h"

namespace triax::sequence {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / cuda::kWarp;
constexpr int kLanes = 8;  // that share a row of the state
constexpr int kRowSets = 2;
constexpr int kRowsOfWarp = cuda::kWarp / kLanes * kRowSets;
constexpr int kRows = kWarps * kRowsOfWarp;  // of the state, for each block

/// Inputs of some tokens, ready for the recurrence. Channels beyond K hold zeros.
template <int kChannels>
struct Stage {
  static constexpr int kKeys = kChannels * kLanes;
  static constexpr int kTokens = kKeys <= 128 ? 16 : 8;
  float q[kTokens][kKeys];  // normalised and scaled
  float k[kTokens][kKeys];  // normalised
  float decay[kTokens][kKeys];
  float value[kTokens][kRows];  // v, later the output
  float beta[kTokens];
};

/// What a block works on.
struct Place {
  int64_t n;
  int64_t h;
  int64_t row;  // first row of the state
};

__device__ bool has_decay(const KdaCuda& args) {
  return args.rule == Rule::kKda || args.rule == Rule::kGatedDelta;
}

__device__ float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

/// exp(g) of one channel. A rate beyond float32 saturates the gate instead of making 0 * infinity.
__device__ float decay_of(const KdaCuda& args, int64_t t, int64_t h, int64_t channel) {
  const int64_t i = args.rule == Rule::kKda ? channel : 0;
  const float z = args.decay.data[t * args.decay.token + h * args.decay.head + i] +
                  args.dt_bias[h * args.dt_bias_head + i];
  const float rate = expf(fminf(args.a_log[h], 88.0f));
  return expf(args.gate == DecayGate::kBounded ? args.lower_bound * cuda::sigmoid(rate * z)
                                               : -rate * softplus(z));
}

/// x / sqrt(sum x^2 + 1e-6) * scale by one warp.
template <int kKeys>
__device__ void normalize(const float* x, int64_t keys, float scale, float (&out)[kKeys]) {
  const int lane = threadIdx.x % cuda::kWarp;
  float values[kKeys / cuda::kWarp];
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kKeys / cuda::kWarp; ++i) {
    const int channel = lane + i * cuda::kWarp;
    values[i] = channel < keys ? x[channel] : 0.0f;
    sum = fmaf(values[i], values[i], sum);
  }
  const float norm = scale / sqrtf(cuda::warp_sum(sum) + 1e-6f);
#pragma unroll
  for (int i = 0; i < kKeys / cuda::kWarp; ++i) {
    out[lane + i * cuda::kWarp] = values[i] * norm;
  }
}

/// Tokens [t, t + count) into `stage`, a warp for each token.
template <int kChannels>
__device__ void fill(const KdaCuda& args, const Place& place, int64_t t, int count,
                     Stage<kChannels>& stage) {
  constexpr int kKeys = Stage<kChannels>::kKeys;
  const int lane = threadIdx.x % cuda::kWarp;
  const int64_t h = place.h;
  const float q_scale = 1.0f / sqrtf(static_cast<float>(args.keys));
  for (int i = threadIdx.x / cuda::kWarp; i < count; i += kWarps) {
    const int64_t token = t + i;
    normalize<kKeys>(args.q.data + token * args.q.token + h * args.q.head, args.keys, q_scale,
                     stage.q[i]);
    normalize<kKeys>(args.k.data + token * args.k.token + h * args.k.head, args.keys, 1.0f,
                     stage.k[i]);
    for (int channel = lane; channel < kKeys; channel += cuda::kWarp) {
      const bool used = has_decay(args) && channel < args.keys;
      stage.decay[i][channel] = used ? decay_of(args, token, h, channel) : 1.0f;
    }
    const float* v = args.v.data + token * args.v.token + h * args.v.head + place.row;
    for (int r = lane; r < kRows; r += cuda::kWarp) {
      stage.value[i][r] = place.row + r < args.values ? v[r] : 0.0f;
    }
    if (lane == 0) {
      const bool delta = args.rule != Rule::kLinear;
      stage.beta[i] =
          delta ? cuda::sigmoid(args.beta.data[token * args.beta.token + h * args.beta.head])
                : 1.0f;
    }
  }
}

/// A lane's channels: groups of four, kLanes lanes side by side.
__device__ int channel_of(int i) { return 4 * (threadIdx.x % kLanes + kLanes * (i / 4)) + i % 4; }

/// A lane's part of the state: kRowSets rows, kChannels channels of each.
template <int kChannels>
struct State {
  float s[kRowSets][kChannels];

  /// Index of a lane's row within the block.
  __device__ static int row(int set) {
    return threadIdx.x / cuda::kWarp * kRowsOfWarp + set * (cuda::kWarp / kLanes) +
           threadIdx.x % cuda::kWarp / kLanes;
  }

  /// Calls f(element of the state, its place in memory) for all that exist.
  template <typename F>
  __device__ void each(const KdaCuda& args, const Place& place, int32_t slot, F&& f) {
    float* state = args.states + slot * args.state_slot + place.h * args.state_head;
#pragma unroll
    for (int set = 0; set < kRowSets; ++set) {
      const int64_t v = place.row + row(set);
#pragma unroll
      for (int i = 0; i < kChannels; ++i) {
        if (v < args.values && channel_of(i) < args.keys) {
          f(s[set][i], state[v * args.state_row + channel_of(i)]);
        }
      }
    }
  }
  __device__ void read(const KdaCuda& args, const Place& place, int32_t slot) {
    each(args, place, slot, [](float& own, const float& memory) { own = memory; });
  }
  __device__ void write(const KdaCuda& args, const Place& place, int32_t slot) {
    each(args, place, slot, [](const float& own, float& memory) { memory = own; });
  }
};

__device__ float row_sum(float value) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffU, value, offset);
  }
  return value;
}

/// S <- Diag(decay) S;  u = v - S^T k;  S <- S + beta k u^T;  out = S^T q, by rows of S.
template <int kChannels>
__device__ void step(bool has_delta, Stage<kChannels>& stage, int i, State<kChannels>& state) {
  const bool leader = threadIdx.x % kLanes == 0;
  float u[kRowSets];
#pragma unroll
  for (int set = 0; set < kRowSets; ++set) {
    u[set] = leader ? stage.value[i][state.row(set)] : 0.0f;
  }
#pragma unroll
  for (int c = 0; c < kChannels; ++c) {
    const float decay = stage.decay[i][channel_of(c)];
    const float k = has_delta ? stage.k[i][channel_of(c)] : 0.0f;
#pragma unroll
    for (int set = 0; set < kRowSets; ++set) {
      state.s[set][c] *= decay;
      u[set] = fmaf(-state.s[set][c], k, u[set]);
    }
  }
  float out[kRowSets] = {};
#pragma unroll
  for (int set = 0; set < kRowSets; ++set) {
    u[set] = stage.beta[i] * row_sum(u[set]);
  }
#pragma unroll
  for (int c = 0; c < kChannels; ++c) {
    const float k = stage.k[i][channel_of(c)];
    const float q = stage.q[i][channel_of(c)];
#pragma unroll
    for (int set = 0; set < kRowSets; ++set) {
      state.s[set][c] = fmaf(k, u[set], state.s[set][c]);
      out[set] = fmaf(state.s[set][c], q, out[set]);
    }
  }
#pragma unroll
  for (int set = 0; set < kRowSets; ++set) {
    out[set] = row_sum(out[set]);
    if (leader) {
      stage.value[i][state.row(set)] = out[set];
    }
  }
}

/// Hands out the state after `position` tokens to those who asked.
template <int kChannels>
__device__ void answer_requests(const KdaCuda& args, const Place& place, int64_t position,
                                State<kChannels>& state) {
  for (int64_t r = 0; r < args.request_count; ++r) {
    if (args.requests[r].sequence == place.n && args.requests[r].position == position) {
      state.write(args, place, args.requests[r].slot);
    }
  }
}

/// Rows of tokens [t, t + count) from `from(token, row)` to out.
template <typename F>
__device__ void write_out(const KdaCuda& args, const Place& place, int64_t t, int64_t count,
                          F&& from) {
  for (int64_t i = threadIdx.x; i < count * kRows; i += kThreads) {
    const int64_t token = i / kRows;
    const int64_t r = i % kRows;
    if (place.row + r < args.values) {
      args.out[(t + token) * args.out_token + place.h * args.out_head + place.row + r] =
          from(token, r);
    }
  }
}

template <int kChannels>
__global__ void __launch_bounds__(kThreads) kda_recurrence(KdaCuda args, int64_t slices) {
  __shared__ __align__(16) Stage<kChannels> stage;
  const int64_t block = blockIdx.x;
  const Place place = {block / slices / args.heads, block / slices % args.heads,
                       block % slices * kRows};
  const int64_t begin = args.cu_seqlens[place.n];
  const int64_t end = args.cu_seqlens[place.n + 1];
  const int32_t slot = args.slots[place.n];
  if (begin == end) {
    return;
  }
  if (slot < 0) {
    write_out(args, place, begin, end - begin, [](int64_t, int64_t) { return 0.0f; });
    return;
  }
  State<kChannels> state = {};
  state.read(args, place, slot);
  int64_t position = args.starts[place.n];
  for (int64_t t = begin; t < end; t += Stage<kChannels>::kTokens) {
    const int count = static_cast<int>(min(end - t, int64_t{Stage<kChannels>::kTokens}));
    __syncthreads();
    fill(args, place, t, count, stage);
    __syncthreads();
    for (int i = 0; i < count; ++i) {
      step(args.rule != Rule::kLinear, stage, i, state);
      if (++position % kKdaChunk == 0) {
        answer_requests(args, place, position, state);
      }
    }
    __syncthreads();
    write_out(args, place, t, count, [&](int64_t i, int64_t r) { return stage.value[i][r]; });
  }
  state.write(args, place, slot);
}

constexpr int kOutputThreads = 128;
constexpr int kOutputWarps = kOutputThreads / cuda::kWarp;

__device__ float as_float(float x) { return x; }
__device__ float as_float(__nv_bfloat16 x) { return __bfloat162float(x); }

/// A warp for each token and head.
template <typename In>
__global__ void kda_output_rows(KdaOutputCuda args, const In* all) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kOutputWarps + threadIdx.x / cuda::kWarp;
  if (row >= args.tokens * args.heads) {
    return;
  }
  const int64_t t = row / args.heads;
  const int64_t h = row % args.heads;
  const In* in = all + t * args.in.token + h * args.in.head;
  const float* gate = args.gate.data + t * args.gate.token + h * args.gate.head;
  float* out = args.out + t * args.out_token + h * args.out_head;
  float sum = 0.0f;
  for (int64_t i = threadIdx.x % cuda::kWarp; i < args.values; i += cuda::kWarp) {
    const float x = as_float(in[i]);
    sum = fmaf(x, x, sum);
  }
  const float mean = cuda::warp_sum(sum) / static_cast<float>(args.values);
  const float scale = 1.0f / sqrtf(mean + args.eps);
  for (int64_t i = threadIdx.x % cuda::kWarp; i < args.values; i += cuda::kWarp) {
    out[i] = as_float(in[i]) * scale * args.weight[i] * cuda::sigmoid(gate[i]);
  }
}

/// The same for heads of 128 bf16 values, four a lane, all of a lane's loads at once.
__global__ void __launch_bounds__(kOutputThreads) kda_output_heads(KdaOutputCuda args) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kOutputWarps + threadIdx.x / cuda::kWarp;
  if (row >= args.tokens * args.heads) {
    return;
  }
  const int64_t t = row / args.heads;
  const int64_t h = row % args.heads;
  const int64_t i = 4 * (threadIdx.x % cuda::kWarp);
  const auto* in =
      static_cast<const __nv_bfloat16*>(args.in_bf16) + t * args.in.token + h * args.in.head + i;
  const auto* pairs = reinterpret_cast<const __nv_bfloat162*>(in);
  const float* at = args.gate.data + t * args.gate.token + h * args.gate.head + i;
  const float4 gate = *reinterpret_cast<const float4*>(at);
  const float4 weight = *reinterpret_cast<const float4*>(args.weight + i);
  const float2 a = __bfloat1622float2(pairs[0]);
  const float2 b = __bfloat1622float2(pairs[1]);
  const float sum = fmaf(a.x, a.x, a.y * a.y) + fmaf(b.x, b.x, b.y * b.y);
  const float scale = 1.0f / sqrtf(cuda::warp_sum(sum) / 128.0f + args.eps);
  float* out = args.out + t * args.out_token + h * args.out_head + i;
  *reinterpret_cast<float4*>(out) = {a.x * scale * weight.x * cuda::sigmoid(gate.x),
                                     a.y * scale * weight.y * cuda::sigmoid(gate.y),
                                     b.x * scale * weight.z * cuda::sigmoid(gate.z),
                                     b.y * scale * weight.w * cuda::sigmoid(gate.w)};
}

bool takes_heads(const KdaOutputCuda& args) {
  const auto aligned = [](const void* p, uintptr_t bytes) {
    return reinterpret_cast<uintptr_t>(p) % bytes == 0;
  };
  const int64_t all = args.in.token | args.in.head | args.gate.token | args.gate.head |
                      args.out_token | args.out_head;
  return args.values == 128 && all % 4 == 0 && aligned(args.in_bf16, 8) &&
         aligned(args.gate.data, 16) && aligned(args.weight, 16) && aligned(args.out, 16);
}

}  // namespace

int triax_cuda_kda(const KdaCuda* args, void* stream) {
  if (args->sequences == 0 || args->heads == 0 || args->values == 0) {
    return cudaSuccess;
  }
  if (args->keys > kKdaCudaKeysMax) {
    return cudaErrorNotSupported;
  }
  const int64_t slices = cuda::blocks_for(args->values, kRows);
  const auto blocks = static_cast<unsigned>(args->sequences * args->heads * slices);
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  if (args->keys <= 8 * kLanes) {
    kda_recurrence<8><<<blocks, kThreads, 0, cuda_stream>>>(*args, slices);
  } else if (args->keys <= 16 * kLanes) {
    kda_recurrence<16><<<blocks, kThreads, 0, cuda_stream>>>(*args, slices);
  } else {
    kda_recurrence<32><<<blocks, kThreads, 0, cuda_stream>>>(*args, slices);
  }
  return cudaGetLastError();
}

int triax_cuda_kda_output(const KdaOutputCuda* args, void* stream) {
  const int64_t rows = args->tokens * args->heads;
  if (rows > 0 && args->values > 0) {
    const auto blocks = static_cast<unsigned>(cuda::blocks_for(rows, kOutputWarps));
    const auto queue = static_cast<cudaStream_t>(stream);
    if (args->in_bf16 != nullptr && takes_heads(*args)) {
      kda_output_heads<<<blocks, kOutputThreads, 0, queue>>>(*args);
    } else if (args->in_bf16 != nullptr) {
      kda_output_rows<<<blocks, kOutputThreads, 0, queue>>>(
          *args, static_cast<const __nv_bfloat16*>(args->in_bf16));
    } else {
      kda_output_rows<<<blocks, kOutputThreads, 0, queue>>>(*args, args->in.data);
    }
  }
  return cudaGetLastError();
}

}  // namespace triax::sequence
