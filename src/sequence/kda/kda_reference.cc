// Kimi Delta Attention, token by token in double, as the formulas say it: the truth of the suite.
#include <algorithm>
#include <cmath>
#include <vector>

#include "sequence/kda/kda_kernels.h"

namespace triax::sequence {
namespace {

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }

/// g of one channel: the natural log of the decay.
double log_decay(const KdaProblem& p, int64_t t, int64_t h, int64_t channel) {
  if (!p.has_decay) {
    return 0.0;
  }
  const int64_t i = p.decay_per_channel ? channel : 0;
  const double z = static_cast<double>(p.decay.data[t * p.decay.token + h * p.decay.head + i]) +
                   p.dt_bias[h * p.dt_bias_head + i];
  const double rate = std::exp(static_cast<double>(p.a_log[h]));
  return p.gate == DecayGate::kBounded ? p.lower_bound * sigmoid(rate * z) : -rate * softplus(z);
}

/// x / sqrt(sum x^2 + 1e-6) * scale
std::vector<double> normalized(const float* x, int64_t size, double scale) {
  double sum = 1e-6;
  for (int64_t i = 0; i < size; ++i) {
    sum += static_cast<double>(x[i]) * x[i];
  }
  std::vector<double> y(static_cast<size_t>(size));
  for (size_t i = 0; i < y.size(); ++i) {
    y[i] = x[i] / std::sqrt(sum) * scale;
  }
  return y;
}

/// One token: state [V][K] is updated, out [V] written.
void step(const KdaProblem& p, int64_t t, int64_t h, double* state, float* out) {
  const auto size = static_cast<size_t>(p.keys);
  const double q_scale = 1.0 / std::sqrt(static_cast<double>(p.keys));
  const std::vector<double> q =
      normalized(p.q.data + t * p.q.token + h * p.q.head, p.keys, q_scale);
  const std::vector<double> k = normalized(p.k.data + t * p.k.token + h * p.k.head, p.keys, 1.0);
  std::vector<double> v(static_cast<size_t>(p.values));  // a copy: out may be v
  for (size_t i = 0; i < v.size(); ++i) {
    v[i] = p.v.data[t * p.v.token + h * p.v.head + static_cast<int64_t>(i)];
  }
  const double beta = p.has_delta ? sigmoid(p.beta.data[t * p.beta.token + h * p.beta.head]) : 1.0;
  std::vector<double> decay(size);
  for (size_t i = 0; i < size; ++i) {
    decay[i] = std::exp(log_decay(p, t, h, static_cast<int64_t>(i)));
  }
  for (size_t row = 0; row < v.size(); ++row) {
    double* s = state + row * size;
    double u = v[row];
    for (size_t i = 0; i < size; ++i) {
      s[i] *= decay[i];
      u -= p.has_delta ? s[i] * k[i] : 0.0;
    }
    double o = 0.0;
    for (size_t i = 0; i < size; ++i) {
      s[i] += beta * k[i] * u;
      o += s[i] * q[i];
    }
    out[row] = static_cast<float>(o);
  }
}

void write_state(const KdaProblem& p, int64_t h, int32_t slot, const std::vector<double>& state) {
  for (int64_t v = 0; v < p.values; ++v) {
    float* row = p.states + slot * p.state_slot + h * p.state_head + v * p.state_row;
    for (int64_t k = 0; k < p.keys; ++k) {
      row[k] = static_cast<float>(state[static_cast<size_t>(v * p.keys + k)]);
    }
  }
}

void read_state(const KdaProblem& p, int64_t h, int32_t slot, std::vector<double>& state) {
  for (int64_t v = 0; v < p.values; ++v) {
    const float* row = p.states + slot * p.state_slot + h * p.state_head + v * p.state_row;
    for (int64_t k = 0; k < p.keys; ++k) {
      state[static_cast<size_t>(v * p.keys + k)] = row[k];
    }
  }
}

}  // namespace

void kda_reference(const KdaProblem& p, int64_t n, int64_t h, float*) {
  std::vector<double> state(static_cast<size_t>(p.keys * p.values));
  read_state(p, h, p.slots[n], state);
  int64_t position = p.starts[n];
  for (int64_t t = p.cu_seqlens[n]; t < p.cu_seqlens[n + 1]; ++t) {
    step(p, t, h, state.data(), p.out + t * p.out_token + h * p.out_head);
    if (++position % kKdaChunk != 0) {
      continue;
    }
    // The pool's float32 is what a call that begins here would read: round here in any split.
    write_state(p, h, p.slots[n], state);
    read_state(p, h, p.slots[n], state);
    for (int64_t r = 0; r < p.request_count; ++r) {
      if (p.requests[r].sequence == n && p.requests[r].position == position) {
        write_state(p, h, p.requests[r].slot, state);
      }
    }
  }
  write_state(p, h, p.slots[n], state);
}

}  // namespace triax::sequence
