// Preparation of tokens and the recurrent step over lanes; every instruction set has its own copy.
#pragma once

#include "sequence/kda/kda_kernels.h"
#include "sequence/kda/kda_scratch.h"
#include "sequence/lanes/math.h"

namespace triax::sequence {
namespace {

/// Lanes of the vector that begins at channel c of `size`.
template <typename L>
int lanes_at(int64_t c, int64_t size) {
  return size - c < L::kWidth ? static_cast<int>(size - c) : L::kWidth;
}

/// to = from, padded with zeros to `pad`.
template <typename L>
void copy_row(const float* from, int64_t size, float* to, int64_t pad) {
  for (int64_t c = 0; c < pad; c += L::kWidth) {
    L::store(to + c, c < size ? load_some<L>(from + c, lanes_at<L>(c, size)) : L::zero());
  }
}

/// to = from / sqrt(sum from^2 + 1e-6) * scale, padded with zeros.
template <typename L>
void normalize_row(const float* from, int64_t size, float scale, float* to, int64_t pad) {
  copy_row<L>(from, size, to, pad);
  auto squares = L::zero();
  for (int64_t c = 0; c < pad; c += L::kWidth) {
    squares = L::fma(L::load(to + c), L::load(to + c), squares);
  }
  const auto factor = L::set(scale / __builtin_sqrtf(L::sum(squares) + 1e-6f));
  for (int64_t c = 0; c < pad; c += L::kWidth) {
    L::store(to + c, L::mul(L::load(to + c), factor));
  }
}

/// exp(g) from z = logit + bias and rate = exp(a_log).
template <typename L>
typename L::Reg decay_of(const KdaProblem& p, typename L::Reg z, typename L::Reg rate) {
  if (p.gate == DecayGate::kBounded) {
    return lanes_exp<L>(L::mul(L::set(p.lower_bound), lanes_sigmoid<L>(L::mul(rate, z))));
  }
  return lanes_exp<L>(L::sub(L::zero(), L::mul(rate, lanes_softplus<L>(z))));
}

/// The decay of every channel at token t of head h.
template <typename L>
void decay_row(const KdaProblem& p, int64_t t, int64_t h, float* to, int64_t pad) {
  if (!p.has_decay) {
    for (int64_t c = 0; c < pad; c += L::kWidth) {
      L::store(to + c, L::set(1.0f));
    }
    return;
  }
  // Clamped so that a rate beyond float32 saturates the gate instead of making 0 * infinity.
  const auto rate = lanes_exp<L>(L::clamp(L::set(p.a_log[h]), -200.0f, 88.0f));
  const float* logit = p.decay.data + t * p.decay.token + h * p.decay.head;
  const float* bias = p.dt_bias + h * p.dt_bias_head;
  if (!p.decay_per_channel) {
    const auto decay = decay_of<L>(p, L::set(logit[0] + bias[0]), rate);
    for (int64_t c = 0; c < pad; c += L::kWidth) {
      L::store(to + c, decay);
    }
    return;
  }
  for (int64_t c = 0; c < pad; c += L::kWidth) {
    auto z = L::zero();
    if (c < p.keys) {
      const int n = lanes_at<L>(c, p.keys);
      z = L::add(load_some<L>(logit + c, n), load_some<L>(bias + c, n));
    }
    L::store(to + c, decay_of<L>(p, z, rate));
  }
}

template <typename L>
float beta_of(const KdaProblem& p, int64_t t, int64_t h) {
  if (!p.has_delta) {
    return 1.0f;
  }
  float beta[L::kWidth];
  L::store(beta, lanes_sigmoid<L>(L::set(p.beta.data[t * p.beta.token + h * p.beta.head])));
  return beta[0];
}

/// Asks for `size` floats of one head's row into the second-level cache: the hardware does not
/// foresee it, as tokens are pages apart.
void prefetch_row(const float* row, int64_t size) {
  for (int64_t c = 0; c < size; c += 16) {
    __builtin_prefetch(row + c, 0, 2);
  }
}

void prefetch_token(const KdaProblem& p, int64_t t, int64_t h) {
  prefetch_row(p.q.data + t * p.q.token + h * p.q.head, p.keys);
  prefetch_row(p.k.data + t * p.k.token + h * p.k.head, p.keys);
  prefetch_row(p.v.data + t * p.v.token + h * p.v.head, p.values);
  if (p.has_decay && p.decay_per_channel) {
    prefetch_row(p.decay.data + t * p.decay.token + h * p.decay.head, p.keys);
  }
}

/// Token t of head h into row `row` of the scratch: q, k, decay, beta and v (as u).
template <typename L>
void prepare_token(const KdaProblem& p, int64_t t, int64_t h, int64_t row, const KdaScratch& s) {
  const float q_scale = 1.0f / __builtin_sqrtf(static_cast<float>(p.keys));
  const int64_t at = row * s.key_pad;
  normalize_row<L>(p.q.data + t * p.q.token + h * p.q.head, p.keys, q_scale, s.q + at, s.key_pad);
  normalize_row<L>(p.k.data + t * p.k.token + h * p.k.head, p.keys, 1.0f, s.k + at, s.key_pad);
  decay_row<L>(p, t, h, s.decay + at, s.key_pad);
  copy_row<L>(p.v.data + t * p.v.token + h * p.v.head, p.values, s.u + row * s.value_pad,
              s.value_pad);
  s.beta[row] = beta_of<L>(p, t, h);
}

/// How far ahead of its use a row of the state is asked for; the next head's rows follow.
constexpr int64_t kPrefetchRows = 16;

/// What a step leaves behind: only the output, or the new state, too.
enum class StepKind { kOutputOnly, kUpdate };

/// What a step needs of its token (row 0 of the scratch), over the padded channels.
struct StepToken {
  const float* q;
  const float* k;
  const float* decay;
  const float* decayed_k;  // decay * k
  float beta;
  bool has_delta;
};

/// kRows rows of the state [., keys], `stride` floats apart, through one token: out [kRows]. Not
/// inlined, so that its pointers have registers.
template <typename L, StepKind kKind, int kRows>
[[gnu::noinline]] void step_rows(const StepToken& token, int64_t keys, float* state, int64_t stride,
                                 const float* v, float* out) {
  using Reg = typename L::Reg;
  const int64_t full = keys / L::kWidth * L::kWidth;
  const int rest = static_cast<int>(keys - full);
  float sums[8];
  Reg sum[8];
  Reg step[kRows];
  for (int r = 0; r < 8; ++r) {
    sum[r] = L::zero();
    sums[r] = 0.0f;
  }
  if (token.has_delta) {
    for (int64_t c = 0; c < full; c += L::kWidth) {
      const Reg x = L::load(token.decayed_k + c);
      for (int r = 0; r < kRows; ++r) {
        const float* row = state + r * stride + c;
        __builtin_prefetch(row + kPrefetchRows * stride);
        sum[r] = L::fma(L::load(row), x, sum[r]);
      }
    }
    for (int r = 0; r < kRows && rest > 0; ++r) {
      sum[r] = L::fma(L::load_n(state + r * stride + full, rest), L::load(token.decayed_k + full),
                      sum[r]);
    }
    L::sum8(sum, sums);
  }
  for (int r = 0; r < kRows; ++r) {
    step[r] = L::set(token.beta * (v[r] - sums[r]));
    sum[r] = L::zero();
  }
  for (int64_t c = 0; c < full; c += L::kWidth) {
    const Reg k = L::load(token.k + c);
    const Reg q = L::load(token.q + c);
    const Reg decay = L::load(token.decay + c);
    for (int r = 0; r < kRows; ++r) {
      float* row = state + r * stride + c;
      const Reg fresh = L::fma(step[r], k, L::mul(L::load(row), decay));
      sum[r] = L::fma(fresh, q, sum[r]);
      if constexpr (kKind == StepKind::kUpdate) {
        L::store(row, fresh);
      }
    }
  }
  for (int r = 0; r < kRows && rest > 0; ++r) {
    float* row = state + r * stride + full;
    const Reg old = L::mul(L::load_n(row, rest), L::load(token.decay + full));
    const Reg fresh = L::fma(step[r], L::load(token.k + full), old);
    sum[r] = L::fma(fresh, L::load(token.q + full), sum[r]);
    if constexpr (kKind == StepKind::kUpdate) {
      L::store_n(row, fresh, rest);
    }
  }
  L::sum8(sum, sums);
  for (int r = 0; r < kRows; ++r) {
    out[r] = sums[r];
  }
}

/// One token (row 0 of the scratch) through the whole state [V, K] of a head: out [V].
///   r = S (decay k);   S' = S decay + beta (v - r) k;   out = S' q
template <typename L, StepKind kKind>
void recurrent_step(const KdaProblem& p, const KdaScratch& s, float* state, float* out) {
  for (int64_t c = 0; c < s.key_pad; c += L::kWidth) {
    L::store(s.tail + c, L::mul(L::load(s.decay + c), L::load(s.k + c)));
  }
  const StepToken token{.q = s.q,
                        .k = s.k,
                        .decay = s.decay,
                        .decayed_k = s.tail,
                        .beta = s.beta[0],
                        .has_delta = p.has_delta};
  int64_t v = 0;
  for (; v + 8 <= p.values; v += 8) {
    step_rows<L, kKind, 8>(token, p.keys, state + v * p.state_row, p.state_row, s.u + v, out + v);
  }
  for (; v < p.values; ++v) {
    step_rows<L, kKind, 1>(token, p.keys, state + v * p.state_row, p.state_row, s.u + v, out + v);
  }
}

}  // namespace
}  // namespace triax::sequence
