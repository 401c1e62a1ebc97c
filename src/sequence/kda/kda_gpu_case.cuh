// Inputs made on the GPU, and the recurrence of KDA in double there: what tests and benches of the
// prefill kernel measure against. Plain on purpose.
#pragma once

#include <vector>

#include "sequence/kda/kda_prefill_cuda.h"
#include "testing/gpu.h"

namespace triax::sequence::gpu_case {

using testing::GpuArray;
using Bf16 = __nv_bfloat16;
constexpr int kDim = 128;

__device__ inline uint64_t hash(uint64_t x) {  // splitmix64
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

__global__ void fill_normal(Bf16* out, int64_t count, uint64_t seed, float mean, float deviation) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    const uint64_t bits = hash(seed * 0x100000001B3ull + static_cast<uint64_t>(i));
    const float u = (static_cast<float>(bits >> 40) + 0.5f) * 0x1p-24f;
    const float angle = static_cast<float>((bits >> 8) & 0xFFFFFF) * 0x1p-24f;
    out[i] = __float2bfloat16(mean + deviation * sqrtf(-2.0f * logf(u)) * cospif(2.0f * angle));
  }
}

inline void fill(Bf16* out, int64_t count, uint64_t seed, float mean = 0.0f,
                 float deviation = 1.0f) {
  fill_normal<<<1024, 256>>>(out, count, seed, mean, deviation);
  testing::gpu_check(cudaGetLastError(), "fill");
}

/// What the double recurrence writes for one head of one sequence: out [T, 128], state [128, 128].
struct Truth {
  double* out;
  double* state;  // in: the first state; out: the last
};

/// Four threads a value row, 32 channels each; 512 threads a block, one block.
__global__ void __launch_bounds__(512)
    recurrence(KdaPrefillCuda args, int64_t first, int64_t count, int64_t head, Truth truth) {
  const int row = static_cast<int>(threadIdx.x) / 4;
  const int part = static_cast<int>(threadIdx.x) % 4;
  __shared__ double q[kDim], k[kDim], decay[kDim], norms[2];
  double s[32];
  for (int c = 0; c < 32; ++c) {
    s[c] = truth.state[row * kDim + 32 * part + c];
  }
  const auto at = [&](const KdaPrefillInput& in, int64_t t, int i) {
    return static_cast<double>(
        __bfloat162float(static_cast<const Bf16*>(in.data)[t * in.token + head * in.head + i]));
  };
  for (int64_t t = first; t < first + count; ++t) {
    __syncthreads();
    if (threadIdx.x < kDim) {
      const int i = static_cast<int>(threadIdx.x);
      q[i] = at(args.q, t, i);
      k[i] = at(args.k, t, i);
      const double z = at(args.decay_logit, t, i) + args.dt_bias[head * kDim + i];
      const double rate = exp(static_cast<double>(args.a_log[head]));
      decay[i] = args.softplus != 0 ? exp(-rate * (fmax(z, 0.0) + log1p(exp(-fabs(z)))))
                                    : exp(args.lower_bound / (1.0 + exp(-rate * z)));
    }
    __syncthreads();
    if (threadIdx.x < 2) {
      double sum = 1e-6;
      for (int i = 0; i < kDim; ++i) {
        const double x = threadIdx.x == 0 ? q[i] : k[i];
        sum += x * x;
      }
      norms[threadIdx.x] = 1.0 / sqrt(sum);
    }
    __syncthreads();
    const double beta =
        1.0 / (1.0 + exp(-static_cast<double>(__bfloat162float(
                         static_cast<const Bf16*>(args.beta_logit)[t * args.beta_token + head]))));
    double read = 0.0;
    for (int c = 0; c < 32; ++c) {
      s[c] *= decay[32 * part + c];
      read += s[c] * k[32 * part + c] * norms[1];
    }
    read += __shfl_xor_sync(0xFFFFFFFFu, read, 1);
    read += __shfl_xor_sync(0xFFFFFFFFu, read, 2);
    const double u = beta * (at(args.v, t, row) - read);
    double o = 0.0;
    for (int c = 0; c < 32; ++c) {
      s[c] += u * k[32 * part + c] * norms[1];
      o += s[c] * q[32 * part + c] * norms[0];
    }
    o += __shfl_xor_sync(0xFFFFFFFFu, o, 1);
    o += __shfl_xor_sync(0xFFFFFFFFu, o, 2);
    if (part == 0) {
      truth.out[(t - first) * kDim + row] = o * 0.08838834764831845;
    }
  }
  for (int c = 0; c < 32; ++c) {
    truth.state[row * kDim + 32 * part + c] = s[c];
  }
}

/// Sequences of these lengths, one after another, with random inputs and `tail` NaN rows behind.
struct Case {
  struct Options {
    int64_t heads = 2;
    float gate_mean = 0.0f;
    float gate_deviation = 1.0f;
    float value_deviation = 1.0f;
    bool softplus = false;
    float lower_bound = -5.0f;
    float a_log = 0.0f;
    int64_t tail = 0;
    bool fused = false;  // q, k, v side by side in one array
    uint64_t seed = 1;
  };

  Options options;
  std::vector<int64_t> lengths, boundaries;
  int64_t tokens;
  GpuArray<Bf16> qkv, gate, beta, out;
  GpuArray<float> a_log, dt_bias, states;
  GpuArray<int64_t> cu_seqlens;
  KdaPrefillCuda args{};

  Case(std::vector<int64_t> lengths_in, Options options_in)
      : options(options_in),
        lengths(std::move(lengths_in)),
        boundaries(sums(lengths)),
        tokens(boundaries.back() + options.tail),
        qkv(static_cast<size_t>(3 * elements())),
        gate(static_cast<size_t>(elements())),
        beta(static_cast<size_t>(tokens * options.heads)),
        out(static_cast<size_t>(elements())),
        a_log(std::vector<float>(static_cast<size_t>(options.heads), options.a_log)),
        dt_bias(testing::random_floats(static_cast<size_t>(options.heads * kDim), 7, 0.1f)),
        states(testing::random_floats(lengths.size() * state_size(), 8, 0.5f)),
        cu_seqlens(boundaries) {
    const int64_t used = boundaries.back() * options.heads;
    const uint64_t seed = 16 * options.seed;
    const int64_t hk = options.heads * kDim;
    if (options.fused) {
      fill(qkv.data(), boundaries.back() * 3 * hk, seed);
    } else {
      fill(qkv.data(), used * kDim, seed);
      fill(qkv.data() + elements(), used * kDim, seed + 1);
      fill(qkv.data() + 2 * elements(), used * kDim, seed + 2, 0.0f, options.value_deviation);
    }
    fill(gate.data(), used * kDim, seed + 3, options.gate_mean, options.gate_deviation);
    fill(beta.data(), used, seed + 4);
    const int64_t token = options.fused ? 3 * hk : hk;
    const int64_t apart = options.fused ? hk : elements();
    args.q = {qkv.data(), token, kDim};
    args.k = {qkv.data() + apart, token, kDim};
    args.v = {qkv.data() + 2 * apart, token, kDim};
    args.decay_logit = {gate.data(), hk, kDim};
    args.beta_logit = beta.data();
    args.beta_token = options.heads;
    args.a_log = a_log.data();
    args.dt_bias = dt_bias.data();
    args.softplus = options.softplus ? 1 : 0;
    args.lower_bound = options.lower_bound;
    args.heads = options.heads;
    args.sequences = static_cast<int64_t>(lengths.size());
    args.cu_seqlens = cu_seqlens.data();
    args.cu_seqlens_bits = 64;
    args.states_in = states.data();
    args.states_out = states.data();
    args.state_slot = static_cast<int64_t>(state_size());
    args.out = out.data();
    args.out_token = hk;
    args.out_head = kDim;
  }

  static std::vector<int64_t> sums(const std::vector<int64_t>& lengths) {
    std::vector<int64_t> all{0};
    for (int64_t length : lengths) {
      all.push_back(all.back() + length);
    }
    return all;
  }
  int64_t elements() const { return tokens * options.heads * kDim; }
  size_t state_size() const { return static_cast<size_t>(options.heads * kDim * kDim); }

  /// Relative rms errors of out and final state of one head, against the recurrence started from
  /// `initial` (all states, as they were before the run).
  struct Errors {
    double out, state;
  };
  Errors errors(const std::vector<float>& initial, size_t sequence, int64_t head) const {
    const size_t at = sequence * state_size() + static_cast<size_t>(head * kDim * kDim);
    const int64_t count = lengths[sequence];
    GpuArray<double> out_truth(static_cast<size_t>(count * kDim));
    GpuArray<double> state_truth(
        std::vector<double>(initial.begin() + static_cast<int64_t>(at),
                            initial.begin() + static_cast<int64_t>(at) + kDim * kDim));
    recurrence<<<1, 512>>>(args, boundaries[sequence], count, head,
                           {out_truth.data(), state_truth.data()});
    testing::gpu_check(cudaGetLastError(), "recurrence");
    testing::gpu_check(cudaDeviceSynchronize(), "recurrence");
    std::vector<Bf16> rows(static_cast<size_t>(count * kDim));
    testing::gpu_check(
        cudaMemcpy2D(rows.data(), kDim * 2,
                     out.data() + boundaries[sequence] * args.out_token + head * kDim,
                     static_cast<size_t>(args.out_token) * 2, kDim * 2, static_cast<size_t>(count),
                     cudaMemcpyDeviceToHost),
        "copy out");
    std::vector<float> state(kDim * kDim);
    testing::gpu_check(
        cudaMemcpy(state.data(), states.data() + at, kDim * kDim * 4, cudaMemcpyDeviceToHost),
        "copy out");
    return {testing::relative_rms(testing::to_floats(rows), out_truth.get()),
            testing::relative_rms(state, state_truth.get())};
  }
};

}  // namespace triax::sequence::gpu_case
