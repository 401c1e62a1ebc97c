// The random calls and the oracle of the tests of kda.
#include "sequence/kda/kda_case.h"

#include <fmt/core.h>

#include <cmath>

#include "testing/mirror.h"

namespace triax::sequence {
namespace {

using testing::random_tensor;

constexpr double kUnit = 0x1.0p-24;

size_t index(int64_t i) { return static_cast<size_t>(i); }

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

/// One head of one sequence in double.
class Head {
 public:
  Head(const KdaCase& c, int64_t n, int64_t h) : c_(c), h_(h) {
    const float* s = c.states.data<float>() + (c.slots[index(n)] * c.heads + h) * c.values * c.keys;
    state_.assign(s, s + c.values * c.keys);
    quadratic_.assign(index(c.values), 0.0);
    linear_.assign(index(c.values), 0.0);
  }

  void step(int64_t t, double* out, double* out_bound) {
    prepare(t);
    const double c_dot = 4.0 * std::sqrt(static_cast<double>(c_.keys + kKdaChunk));
    for (int64_t v = 0; v < c_.values; ++v) {
      double* s = state_.data() + v * c_.keys;
      const double value = c_.v.data<float>()[(t * c_.heads + h_) * c_.values + v];
      double before = 0.0;
      double u = value;
      for (size_t i = 0; i < a_.size(); ++i) {
        before += s[i] * s[i];
        s[i] *= a_[i];
        u -= c_.rule == Rule::kLinear ? 0.0 : s[i] * k_[i];
      }
      double o = 0.0;
      double after = 0.0;
      for (size_t i = 0; i < a_.size(); ++i) {
        s[i] += beta_ * u * k_[i];
        o += s[i] * q_[i];
        after += s[i] * s[i];
      }
      const double size = std::sqrt(before) + std::sqrt(after) + std::fabs(value);
      quadratic_[index(v)] += std::pow(c_dot * kUnit * size, 2);
      linear_[index(v)] += 8.0 * kUnit * size;
      out[v] = o;
      out_bound[v] = (state_bound(v) + c_dot * kUnit * std::sqrt(after)) * q_norm_ + 1e-37;
    }
  }

  double state_bound(int64_t v) const {
    return std::sqrt(quadratic_[index(v)]) + linear_[index(v)] + 1e-37;
  }
  const std::vector<double>& state() const { return state_; }

 private:
  std::vector<double> normalized(const Tensor& x, int64_t t) const {
    const float* row = x.data<float>() + (t * c_.heads + h_) * c_.keys;
    double sum = 1e-6;
    for (int64_t i = 0; i < c_.keys; ++i) {
      sum += static_cast<double>(row[i]) * row[i];
    }
    std::vector<double> y(row, row + c_.keys);
    for (double& e : y) {
      e /= std::sqrt(sum);
    }
    return y;
  }

  void prepare(int64_t t) {
    q_ = normalized(c_.q, t);
    k_ = normalized(c_.k, t);
    q_norm_ = 0.0;
    for (double& e : q_) {
      e /= std::sqrt(static_cast<double>(c_.keys));
      q_norm_ += e * e;
    }
    q_norm_ = std::sqrt(q_norm_);
    beta_ =
        c_.rule == Rule::kLinear ? 1.0 : sigmoid(c_.beta_logit.data<float>()[t * c_.heads + h_]);
    a_.assign(index(c_.keys), 1.0);
    if (c_.rule == Rule::kLinear || c_.rule == Rule::kDelta) {
      return;
    }
    const double rate = std::exp(static_cast<double>(c_.a_log.data<float>()[h_]));
    const int64_t channels = c_.rule == Rule::kKda ? c_.keys : 1;
    for (size_t i = 0; i < a_.size(); ++i) {
      const int64_t at = channels == 1 ? 0 : static_cast<int64_t>(i);
      const double z =
          static_cast<double>(c_.decay_logit.data<float>()[(t * c_.heads + h_) * channels + at]) +
          c_.dt_bias.data<float>()[h_ * channels + at];
      const double soft = std::max(z, 0.0) + std::log1p(std::exp(-std::fabs(z)));
      a_[i] = std::exp(c_.gate == DecayGate::kBounded ? c_.lower_bound * sigmoid(rate * z)
                                                      : -rate * soft);
    }
  }

  const KdaCase& c_;
  int64_t h_;
  std::vector<double> state_, quadratic_, linear_, q_, k_, a_;
  double beta_ = 0.0;
  double q_norm_ = 0.0;
};

}  // namespace

Tensor copy_of(ConstTensorView view) {
  Tensor copy(DType::kF32, view.shape());
  const int last = view.rank() - 1;
  const int64_t cols = view.size(last);
  float* to = copy.data<float>();
  for (int64_t row = 0; cols > 0 && row < view.elements() / cols; ++row) {
    int64_t offset = 0;
    int64_t left = row;
    for (int dim = last - 1; dim >= 0; --dim) {
      offset += left % view.size(dim) * view.stride(dim);
      left /= view.size(dim);
    }
    const float* from = view.data<float>() + offset;
    std::copy(from, from + cols, to + row * cols);
  }
  return copy;
}

KdaArgs KdaCase::args(TensorView states_view, TensorView out) const {
  KdaArgs a;
  a.rule = rule;
  a.gate = gate;
  a.lower_bound = lower_bound;
  a.q = q;
  a.k = k;
  a.v = v;
  if (rule == Rule::kKda || rule == Rule::kGatedDelta) {
    a.decay_logit = decay_logit;
    a.a_log = a_log;
    a.dt_bias = dt_bias;
  }
  if (rule != Rule::kLinear) {
    a.beta_logit = beta_logit;
  }
  a.cu_seqlens = cu_seqlens;
  a.starts = starts;
  a.slots = slots;
  a.states = states_view;
  a.state_requests = requests;
  a.out = out;
  return a;
}

KdaCase KdaCase::part(int64_t n, int64_t begin, int64_t end, ConstTensorView state) const {
  KdaCase c;
  c.rule = rule;
  c.gate = gate;
  c.lower_bound = lower_bound;
  c.heads = heads;
  c.keys = keys;
  c.values = values;
  const int64_t first = cu_seqlens[index(n)];
  const auto rows = [&](const Tensor& x) {
    return copy_of(x.view().rows(first + begin, first + end));
  };
  c.q = rows(q);
  c.k = rows(k);
  c.v = rows(v);
  c.decay_logit = rows(decay_logit);
  c.beta_logit = rows(beta_logit);
  c.a_log = copy_of(a_log);
  c.dt_bias = copy_of(dt_bias);
  c.states = copy_of(state);
  c.cu_seqlens = {0, end - begin};
  c.starts = {starts[index(n)] + begin};
  c.slots = {0};
  return c;
}

KdaCase random_case(const KdaShape& shape, uint64_t seed) {
  KdaCase c;
  c.rule = shape.rule;
  c.gate = shape.gate;
  c.heads = shape.heads;
  c.keys = shape.keys;
  c.values = shape.values;
  c.cu_seqlens = {0};
  for (int64_t length : shape.lengths) {
    c.slots.push_back(static_cast<int32_t>(c.slots.size()));
    c.cu_seqlens.push_back(c.cu_seqlens.back() + length);
  }
  c.starts = shape.starts.empty() ? std::vector<int64_t>(shape.lengths.size(), 0) : shape.starts;
  const int64_t t = c.tokens();
  const int64_t channels = shape.rule == Rule::kGatedDelta ? 1 : shape.keys;
  c.q = random_tensor({t, c.heads, c.keys}, seed);
  c.k = random_tensor({t, c.heads, c.keys}, seed + 1);
  c.v = random_tensor({t, c.heads, c.values}, seed + 2);
  c.decay_logit = random_tensor({t, c.heads, channels}, seed + 3, 2.0);
  c.beta_logit = random_tensor({t, c.heads}, seed + 4);
  c.a_log = random_tensor({c.heads}, seed + 5, 0.3);
  c.dt_bias = random_tensor({c.heads, channels}, seed + 6, 2.0);
  c.states = random_tensor(
      {static_cast<int64_t>(shape.lengths.size()) + shape.spare_slots, c.heads, c.values, c.keys},
      seed + 7, 0.1);
  return c;
}

Status mirrored(const Device& device, KdaArgs args) {
  testing::Mirror mirror(device);
  mirror.in(&args.q).in(&args.k).in(&args.v).in(&args.decay_logit).in(&args.beta_logit);
  mirror.in(&args.a_log).in(&args.dt_bias).out(&args.states).out(&args.out);
  return mirror.run([&] { return kda(device, args); });
}

KdaResult run(const Device& device, const KdaCase& c) {
  KdaResult result{Tensor::f32({c.q.size(0), c.heads, c.values}), copy_of(c.states)};
  std::fill_n(result.out.data<float>(), result.out.view().elements(),
              std::numeric_limits<float>::quiet_NaN());
  const Status status = mirrored(device, c.args(result.states, result.out));
  check(status.ok(), status.message());
  return result;
}

KdaOracle oracle(const KdaCase& c) {
  KdaOracle truth;
  const int64_t row = c.heads * c.values;
  truth.out.assign(index(c.tokens() * row), 0.0);
  truth.out_bound = truth.out;
  const float* s = c.states.data<float>();
  truth.state.assign(s, s + c.states.view().elements());
  truth.state_bound.assign(index(c.states.size(0) * row), 0.0);
  for (size_t n = 0; n < c.slots.size(); ++n) {
    for (int64_t h = 0; h < c.heads && c.slots[n] >= 0; ++h) {
      Head head(c, static_cast<int64_t>(n), h);
      for (int64_t t = c.cu_seqlens[n]; t < c.cu_seqlens[n + 1]; ++t) {
        const int64_t at = t * row + h * c.values;
        head.step(t, truth.out.data() + at, truth.out_bound.data() + at);
      }
      const int64_t at = (c.slots[n] * c.heads + h) * c.values;
      std::copy(head.state().begin(), head.state().end(), truth.state.begin() + at * c.keys);
      for (int64_t v = 0; v < c.values; ++v) {
        truth.state_bound[index(at + v)] = head.state_bound(v);
      }
    }
  }
  return truth;
}

std::string compare(const KdaResult& result, const KdaOracle& truth, const KdaCase& c) {
  const float* out = result.out.data<float>();
  for (size_t i = 0; i < truth.out.size(); ++i) {
    if (!(std::fabs(out[i] - truth.out[i]) <= truth.out_bound[i])) {
      return fmt::format("out, token {}, element {}: {} is not within {} of {}",
                         static_cast<int64_t>(i) / (c.heads * c.values),
                         static_cast<int64_t>(i) % (c.heads * c.values), out[i], truth.out_bound[i],
                         truth.out[i]);
    }
  }
  const float* state = result.states.data<float>();
  for (size_t i = 0; i < truth.state.size(); ++i) {
    const double bound = truth.state_bound[i / index(c.keys)];
    if (!(std::fabs(state[i] - truth.state[i]) <= bound)) {
      return fmt::format("state, element {}: {} is not within {} of {}", i, state[i], bound,
                         truth.state[i]);
    }
  }
  return "";
}

}  // namespace triax::sequence
