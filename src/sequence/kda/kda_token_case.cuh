// Random tokens and pools on the GPU with the recurrence in double beside them; for the tests and
// benches of decode, verify and fold.
#pragma once

#include <cmath>
#include <memory>

#include "sequence/kda/kda_decode_cuda.h"
#include "testing/gpu.h"

namespace triax::sequence {

using testing::GpuArray;

/// What a case varies.
struct TokenCase {
  int64_t batch = 1;   // sequences
  int64_t tokens = 1;  // of each sequence; rows of the tokens = batch * tokens
  int64_t heads = 1;
  int64_t pool_slots = 0;  // 0: batch + 2
  bool conv = true;
  bool norm = true;
  DecayGate gate = DecayGate::kBounded;
  DType type = DType::kBf16;
  DType out_type = DType::kF32;
  float gate_mean = 0.0f;  // of the decay logits
  int64_t padding = 0;     // elements between rows and between slots, beyond the dense ones
  uint64_t seed = 1;
};

/// Values in the type that the GPU reads them in, and as float for the reference.
class TypedArray {
 public:
  TypedArray(std::vector<float> values, DType type) : values_(std::move(values)), type_(type) {
    if (type == DType::kBf16) {
      const auto narrow = testing::to_bf16(values_);
      values_ = testing::to_floats(narrow);
      bf16_ = std::make_unique<GpuArray<__nv_bfloat16>>(narrow);
    } else {
      f32_ = std::make_unique<GpuArray<float>>(values_);
    }
  }
  const void* data() const {
    return type_ == DType::kBf16 ? static_cast<const void*>(bf16_->data()) : f32_->data();
  }
  const std::vector<float>& values() const { return values_; }

 private:
  std::vector<float> values_;
  DType type_;
  std::unique_ptr<GpuArray<__nv_bfloat16>> bf16_;
  std::unique_ptr<GpuArray<float>> f32_;
};

inline double sigmoid64(double x) { return 1.0 / (1.0 + std::exp(-x)); }

/// All arrays of a case on the GPU, with host copies.
class TokenProblem {
 public:
  explicit TokenProblem(const TokenCase& c)
      : c(c),
        width(c.heads * 128),
        rows(c.batch * c.tokens),
        slots_count(c.pool_slots > 0 ? c.pool_slots : c.batch + 2),
        qkv_stride(3 * width + c.padding),
        row_stride(width + c.padding),
        beta_stride(c.heads + c.padding),
        state_stride(c.heads * 128 * 128 + 4 * c.padding),
        window_stride(9 * width + c.padding),
        qkv(random(rows * qkv_stride, 1), c.type),
        decay(random(rows * row_stride, 2, 1.0f, c.gate_mean), c.type),
        beta(random(rows * beta_stride, 3), c.type),
        gate(random(rows * row_stride, 4), c.type),
        taps(random(12 * width, 5, 0.5f)),
        a_log(random(c.heads, 6, 0.3f)),
        dt_bias(random(width, 7, 0.3f)),
        norm_weight(random(128, 8, 0.2f, 1.0f)),
        states(random(slots_count * state_stride, 9, 0.3f)),
        windows(random(slots_count * window_stride, 10)),
        taps_gpu(taps),
        a_log_gpu(a_log),
        dt_bias_gpu(dt_bias),
        norm_gpu(norm_weight),
        states_gpu(states),
        windows_gpu(windows),
        out_f32(static_cast<size_t>(rows * row_stride)),
        out_bf16(static_cast<size_t>(rows * row_stride)) {
    for (int64_t b = 0; b < c.batch; ++b) {
      slots.push_back(static_cast<int32_t>(slots_count - 1 - b));
    }
    set_slots(slots);
  }

  /// The indices lie two apart, with another sequence's index between them.
  void set_slots(const std::vector<int32_t>& values) {
    slots = values;
    std::vector<int32_t> strided(2 * values.size() + 1, 0);
    for (size_t i = 0; i < values.size(); ++i) {
      strided[2 * i] = values[i];
    }
    slots_gpu = std::make_unique<GpuArray<int32_t>>(strided);
  }

  KdaTokensCuda tokens() const {
    KdaTokensCuda t;
    t.heads = c.heads;
    t.gate = c.gate;
    t.qkv_type = c.type;
    t.logit_type = c.type;
    t.out_type = c.out_type;
    const int64_t size = c.type == DType::kBf16 ? 2 : 4;
    const auto part = [&](int64_t i) {
      return static_cast<const char*>(qkv.data()) + i * width * size;
    };
    t.q = part(0);
    t.k = part(1);
    t.v = part(2);
    t.qkv_stride = qkv_stride;
    t.taps = c.conv ? taps_gpu.data() : nullptr;
    t.decay_logit = decay.data();
    t.decay_stride = row_stride;
    t.beta_logit = beta.data();
    t.beta_stride = beta_stride;
    t.a_log = a_log_gpu.data();
    t.dt_bias = dt_bias_gpu.data();
    t.norm_weight = c.norm ? norm_gpu.data() : nullptr;
    t.gate_logit = gate.data();
    t.gate_stride = row_stride;
    t.out = c.out_type == DType::kBf16 ? static_cast<void*>(out_bf16.data()) : out_f32.data();
    t.out_stride = row_stride;
    return t;
  }

  KdaPoolCuda pool() const {
    KdaPoolCuda p;
    p.states = states_gpu.data();
    p.state_stride = state_stride;
    p.windows = windows_gpu.data();
    p.window_stride = window_stride;
    p.slots = slots_gpu->data();
    p.slots_stride = 2;
    return p;
  }

  std::vector<float> out() const {
    return c.out_type == DType::kBf16 ? testing::to_floats(out_bf16.get()) : out_f32.get();
  }

  /// Token `row` of slot `slot` through the formulas in double; updates state and window (both as
  /// the pool holds them) and writes out [width].
  void reference(int64_t row, int64_t slot, std::vector<double>& state, std::vector<double>& window,
                 std::vector<double>& result) const {
    std::vector<double> x(static_cast<size_t>(3 * width));
    double* w = window.data() + slot * window_stride;
    for (int64_t i = 0; i < 3 * width; ++i) {
      const double raw = qkv.values()[static_cast<size_t>(row * qkv_stride + i)];
      double sum = raw;
      if (c.conv) {
        sum = taps[static_cast<size_t>(9 * width + i)] * raw;
        for (int64_t j = 0; j < 3; ++j) {
          sum += taps[static_cast<size_t>(3 * width * j + i)] * w[3 * width * j + i];
        }
        sum *= sigmoid64(sum);
        w[i] = w[3 * width + i];
        w[3 * width + i] = w[6 * width + i];
        w[6 * width + i] = raw;
      }
      x[static_cast<size_t>(i)] = sum;
    }
    for (int64_t h = 0; h < c.heads; ++h) {
      reference_head(row, h, x.data(), state.data() + slot * state_stride + h * 16384,
                     result.data() + h * 128);
    }
  }

  TokenCase c;
  int64_t width, rows, slots_count, qkv_stride, row_stride, beta_stride, state_stride,
      window_stride;
  TypedArray qkv, decay, beta, gate;
  std::vector<float> taps, a_log, dt_bias, norm_weight, states, windows;
  GpuArray<float> taps_gpu, a_log_gpu, dt_bias_gpu, norm_gpu, states_gpu, windows_gpu, out_f32;
  GpuArray<__nv_bfloat16> out_bf16;
  std::vector<int32_t> slots;
  std::unique_ptr<GpuArray<int32_t>> slots_gpu;

 private:
  std::vector<float> random(int64_t count, uint64_t what, float scale = 1.0f,
                            float mean = 0.0f) const {
    return testing::random_floats(static_cast<size_t>(count), 100 * c.seed + what, scale, mean);
  }

  void reference_head(int64_t row, int64_t h, const double* x, double* s, double* o) const {
    double q[128], k[128], a[128];
    double qq = 1e-6, kk = 1e-6;
    for (int64_t i = 0; i < 128; ++i) {
      qq += x[h * 128 + i] * x[h * 128 + i];
      kk += x[width + h * 128 + i] * x[width + h * 128 + i];
    }
    for (int64_t i = 0; i < 128; ++i) {
      q[i] = x[h * 128 + i] / std::sqrt(qq) / std::sqrt(128.0);
      k[i] = x[width + h * 128 + i] / std::sqrt(kk);
      const double z =
          static_cast<double>(decay.values()[static_cast<size_t>(row * row_stride + h * 128 + i)]) +
          dt_bias[static_cast<size_t>(h * 128 + i)];
      const double rate = std::exp(static_cast<double>(a_log[static_cast<size_t>(h)]));
      a[i] = std::exp(c.gate == DecayGate::kBounded
                          ? -5.0 * sigmoid64(rate * z)
                          : -rate * (std::max(z, 0.0) + std::log1p(std::exp(-std::fabs(z)))));
    }
    const double b = sigmoid64(beta.values()[static_cast<size_t>(row * beta_stride + h)]);
    double squares = 0.0;
    for (int64_t v = 0; v < 128; ++v) {
      double u = x[2 * width + h * 128 + v];
      for (int64_t i = 0; i < 128; ++i) {
        s[v * 128 + i] *= a[i];
        u -= s[v * 128 + i] * k[i];
      }
      o[v] = 0.0;
      for (int64_t i = 0; i < 128; ++i) {
        s[v * 128 + i] += b * u * k[i];
        o[v] += s[v * 128 + i] * q[i];
      }
      squares += o[v] * o[v];
    }
    for (int64_t v = 0; v < 128 && c.norm; ++v) {
      o[v] *= norm_weight[static_cast<size_t>(v)] / std::sqrt(squares / 128.0 + 1e-5) *
              sigmoid64(gate.values()[static_cast<size_t>(row * row_stride + h * 128 + v)]);
    }
  }
};

/// The first counts[b] tokens of each sequence, one decode call a token.
inline void decode_tokens(const TokenProblem& p, const std::vector<int32_t>& counts,
                          int32_t rows = 0) {
  for (int64_t t = 0; t < p.c.tokens; ++t) {
    for (int64_t b = 0; b < p.c.batch; ++b) {
      if (t >= counts[static_cast<size_t>(b)]) {
        continue;
      }
      const int64_t row = b * p.c.tokens + t;
      const int64_t size = p.c.type == DType::kBf16 ? 2 : 4;
      KdaDecodeCuda args;
      args.batch = 1;
      args.rows = rows;
      args.tokens = p.tokens();
      const auto on = [&](const void* base, int64_t stride) {
        return static_cast<const char*>(base) + row * stride * size;
      };
      args.tokens.q = on(args.tokens.q, p.qkv_stride);
      args.tokens.k = on(args.tokens.k, p.qkv_stride);
      args.tokens.v = on(args.tokens.v, p.qkv_stride);
      args.tokens.decay_logit = on(args.tokens.decay_logit, p.row_stride);
      args.tokens.gate_logit = on(args.tokens.gate_logit, p.row_stride);
      args.tokens.beta_logit = on(args.tokens.beta_logit, p.beta_stride);
      args.tokens.out = static_cast<char*>(args.tokens.out) +
                        row * p.row_stride * (p.c.out_type == DType::kBf16 ? 2 : 4);
      args.pool = p.pool();
      args.pool.slots += b * args.pool.slots_stride;
      testing::gpu_check(static_cast<cudaError_t>(triax_cuda_kda_decode(&args, nullptr)), "decode");
    }
  }
  testing::gpu_check(cudaDeviceSynchronize(), "decode");
}

}  // namespace triax::sequence
