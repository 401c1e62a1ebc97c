// MLA as the paper writes it, in double: expand every key and value, softmax, gate.
#include <algorithm>
#include <cmath>
#include <vector>

#include "sequence/mla/mla_internal.h"

namespace triax::sequence {
namespace {

/// Keys [tokens, D + E] and values [tokens, V] of one head.
struct Expanded {
  std::vector<double> keys;
  std::vector<double> values;
};

/// [k_nope | v](j) = kv_b(h) c(j);  key = [k_nope ; e(j)]
Expanded expand(const MlaProblem& p, int64_t n, int64_t h, int64_t tokens) {
  Expanded out;
  std::vector<float> row(static_cast<size_t>(p.latent));
  const int64_t key_dim = p.nope + p.shared;
  out.keys.resize(static_cast<size_t>(tokens * key_dim));
  out.values.resize(static_cast<size_t>(tokens * p.value));
  for (int64_t i = 0; i < p.nope + p.value; ++i) {
    dequantize_row(p.args->kv_b, h * (p.nope + p.value) + i, row.data());
    for (int64_t j = 0; j < tokens; ++j) {
      const float* c = p.latent_row(n, j);
      double sum = 0.0;
      for (int64_t r = 0; r < p.latent; ++r) {
        sum += static_cast<double>(row[static_cast<size_t>(r)]) * static_cast<double>(c[r]);
      }
      double& to = i < p.nope ? out.keys[static_cast<size_t>(j * key_dim + i)]
                              : out.values[static_cast<size_t>(j * p.value + i - p.nope)];
      to = sum;
    }
  }
  for (int64_t j = 0; j < tokens; ++j) {
    for (int64_t e = 0; e < p.shared; ++e) {
      out.keys[static_cast<size_t>(j * key_dim + p.nope + e)] =
          static_cast<double>(p.latent_row(n, j)[p.latent + e]);
    }
  }
  return out;
}

/// out = softmax_j(scale q . key(j)) values [ * sigmoid(gate) ] over the first `tokens` tokens.
void attend(const MlaProblem& p, const Expanded& kv, int64_t tokens, int64_t t, int64_t h) {
  const int64_t key_dim = p.nope + p.shared;
  std::vector<double> weights(static_cast<size_t>(tokens));
  for (int64_t j = 0; j < tokens; ++j) {
    double score = 0.0;
    for (int64_t d = 0; d < key_dim; ++d) {
      score +=
          static_cast<double>(p.query(t, h)[d]) * kv.keys[static_cast<size_t>(j * key_dim + d)];
    }
    weights[static_cast<size_t>(j)] = static_cast<double>(p.args->scale) * score;
  }
  const double max = *std::max_element(weights.begin(), weights.end());
  double sum = 0.0;
  for (double& w : weights) {
    w = std::exp(w - max);
    sum += w;
  }
  for (int64_t v = 0; v < p.value; ++v) {
    double value = 0.0;
    for (int64_t j = 0; j < tokens; ++j) {
      value += weights[static_cast<size_t>(j)] * kv.values[static_cast<size_t>(j * p.value + v)];
    }
    value /= sum;
    if (const float* gate = p.gate(t, h)) {
      value /= 1.0 + std::exp(-static_cast<double>(gate[v]));
    }
    p.out(t, h)[v] = static_cast<float>(value);
  }
}

}  // namespace

void mla_reference(const MlaProblem& problem) {
  for (int64_t n = 0; n < problem.sequences(); ++n) {
    const int64_t length = problem.new_tokens(n);
    for (int64_t h = 0; length > 0 && h < problem.heads; ++h) {
      const Expanded kv = expand(problem, n, h, problem.start(n) + length);
      for (int64_t i = 0; i < length; ++i) {
        attend(problem, kv, problem.start(n) + i + 1, problem.first_token(n) + i, h);
      }
    }
  }
}

}  // namespace triax::sequence
