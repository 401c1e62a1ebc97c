// Problems for the tests of MLA: ragged batches over shuffled pages, and an oracle in double with
// bounds from the inputs.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "sequence/mla/mla.h"
#include "testing/testing.h"

namespace triax::sequence {
namespace {

constexpr double kUnit = 0x1.0p-24;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Sizes {
  int64_t heads = 2;
  int64_t nope = 128;
  int64_t shared = 64;
  int64_t latent = 128;
  int64_t value = 128;
  int64_t width() const { return latent + shared; }
};

/// Tokens before the call, and new ones.
struct Piece {
  int64_t start = 0;
  int64_t length = 0;
};

struct Options {
  Sizes sizes = {};
  std::vector<Piece> pieces = {};
  MatrixFormat format = MatrixFormat::kF32;
  bool gate = true;
  double query_scale = 1.0;
  bool equal_keys = false;
};

size_t at(int64_t i) { return static_cast<size_t>(i); }

/// A ragged batch whose pages lie shuffled in a pool that is NaN wherever no token was written.
struct Batch {
  explicit Batch(Options o) : options(std::move(o)) {
    const Sizes& s = options.sizes;
    cu_seqlens.push_back(0);
    int64_t pages = 3;
    for (const Piece& piece : options.pieces) {
      cu_seqlens.push_back(cu_seqlens.back() + piece.length);
      starts.push_back(piece.start);
      pages += (piece.start + piece.length + kLatentPage - 1) / kLatentPage;
    }
    tokens = cu_seqlens.back();
    q = testing::random_tensor({tokens + 1, s.heads, s.nope + s.shared}, 1, options.query_scale);
    gate = testing::random_tensor({tokens + 1, s.heads, s.value}, 2, 2.0);
    kv_b = testing::random_matrix(options.format, s.heads * (s.nope + s.value), s.latent, 3,
                                  1.0 / std::sqrt(static_cast<double>(s.latent)));
    pool = Tensor::f32({pages, kLatentPage, s.width()});
    std::fill_n(pool.data<float>(), pool.view().elements(), kNan);
    std::vector<int32_t> ids(at(pages));
    std::iota(ids.begin(), ids.end(), 0);
    Rng rng(4);
    for (size_t i = ids.size() - 1; i > 0; --i) {
      std::swap(ids[i], ids[at(static_cast<int64_t>(rng.below(i + 1)))]);
    }
    size_t next = 0;
    for (const Piece& piece : options.pieces) {
      const int64_t count = (piece.start + piece.length + kLatentPage - 1) / kLatentPage;
      const auto from = ids.begin() + static_cast<std::ptrdiff_t>(next);
      table_storage.emplace_back(from, from + count);
      next += at(count);
      fill(table_storage.size() - 1, piece.start + piece.length);
    }
    tables.assign(table_storage.begin(), table_storage.end());
  }

  void fill(size_t n, int64_t count) {
    Tensor latents = testing::random_tensor({count, options.sizes.width()}, 5 + n);
    for (int64_t j = 0; j < count; ++j) {
      const float* from =
          latents.data<float>() + (options.equal_keys ? 0 : j * options.sizes.width());
      std::copy_n(from, options.sizes.width(), latent(n, j));
    }
  }

  float* latent(size_t n, int64_t j) {
    return pool.data<float>() +
           (table_storage[n][at(j / kLatentPage)] * kLatentPage + j % kLatentPage) *
               options.sizes.width();
  }

  MlaArgs args(TensorView out) {
    const Sizes& s = options.sizes;
    MlaArgs a;
    a.q = q.view().rows(0, tokens);
    a.kv_b = kv_b.view;
    a.value_dim = s.value;
    a.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(s.nope + s.shared)));
    a.cu_seqlens = cu_seqlens;
    a.starts = starts;
    a.pages.pool = pool;
    a.pages.tables = tables;
    if (options.gate) {
      a.gate_logit = gate.view().rows(0, tokens);
    }
    a.out = out;
    return a;
  }

  Options options;
  int64_t tokens = 0;
  std::vector<int64_t> cu_seqlens, starts;
  Tensor q, gate, pool;
  OwnedMatrix kv_b;
  std::vector<std::vector<int32_t>> table_storage;
  std::vector<std::span<const int32_t>> tables;
};

/// The result in double and how far a float32 computation may be from it.
struct Oracle {
  std::vector<double> out, bound;  // [T, H, V]
};

/// One head's keys and values in double, and the same sums over absolute values.
struct Head {
  Head(Batch& batch, size_t n, int64_t h, int64_t count) : sizes(batch.options.sizes) {
    const int64_t rows = sizes.nope + sizes.value;
    std::vector<float> w(at(sizes.latent));
    value.resize(at(count * rows));
    size.resize(at(count * rows));
    for (int64_t i = 0; i < rows; ++i) {
      dequantize_row(batch.kv_b.view, h * rows + i, w.data());
      for (int64_t j = 0; j < count; ++j) {
        const float* c = batch.latent(n, j);
        double sum = 0.0;
        double abs = 0.0;
        for (int64_t r = 0; r < sizes.latent; ++r) {
          const double product = static_cast<double>(w[at(r)]) * static_cast<double>(c[r]);
          sum += product;
          abs += std::fabs(product);
        }
        value[at(j * rows + i)] = sum;
        size[at(j * rows + i)] = abs;
      }
    }
  }
  Sizes sizes;
  std::vector<double> value, size;  // [count, D + V]
};

/// With every score within d of the true one, weights move by a factor within e^(2d), and as they
/// sum to 1 the output moves by at most (e^(2d) - 1) sum_j p_j |v_j - out|, and never past a v_j.
void oracle_token(Batch& batch, const Head& head, size_t n, int64_t t, int64_t h, int64_t seen,
                  Oracle& oracle) {
  const Sizes& s = head.sizes;
  const int64_t rows = s.nope + s.value;
  const double scale = static_cast<double>(batch.args({}).scale);
  const float* q = batch.q.data<float>() + (t * s.heads + h) * (s.nope + s.shared);
  std::vector<double> p(at(seen));
  double drift = 0.0;
  for (int64_t j = 0; j < seen; ++j) {
    double score = 0.0;
    double abs = 0.0;
    for (int64_t d = 0; d < s.nope; ++d) {
      score += static_cast<double>(q[d]) * head.value[at(j * rows + d)];
      abs += std::fabs(static_cast<double>(q[d])) * head.size[at(j * rows + d)];
    }
    for (int64_t e = 0; e < s.shared; ++e) {
      const double product = static_cast<double>(q[s.nope + e]) *
                             static_cast<double>(batch.latent(n, j)[s.latent + e]);
      score += product;
      abs += std::fabs(product);
    }
    p[at(j)] = scale * score;
    const auto terms = static_cast<double>(s.latent + s.nope + s.shared + 8);
    drift = std::max(drift, terms * kUnit * std::fabs(scale) * abs);
  }
  const double max = *std::max_element(p.begin(), p.end());
  double sum = 0.0;
  for (double& x : p) {
    sum += x = std::exp(x - max);
  }
  const double spread = std::expm1(2.0 * drift) + 16.0 * kUnit;
  for (int64_t v = 0; v < s.value; ++v) {
    double out = 0.0;
    double abs = 0.0;
    for (int64_t j = 0; j < seen; ++j) {
      out += p[at(j)] / sum * head.value[at(j * rows + s.nope + v)];
      abs += p[at(j)] / sum * head.size[at(j * rows + s.nope + v)];
    }
    double apart = 0.0;
    double widest = 0.0;
    for (int64_t j = 0; j < seen; ++j) {
      const double distance = std::fabs(head.value[at(j * rows + s.nope + v)] - out);
      apart += p[at(j)] / sum * distance;
      widest = std::max(widest, distance);
    }
    const double moved = drift > 300.0 ? widest : std::min(widest, spread * apart);
    const auto terms = static_cast<double>(s.latent + 2 * seen + 16);
    const size_t i = at((t * s.heads + h) * s.value + v);
    const double g = batch.options.gate
                         ? 1.0 / (1.0 + std::exp(-static_cast<double>(batch.gate.data<float>()[i])))
                         : 1.0;
    oracle.out[i] = g * out;
    oracle.bound[i] = g * (moved + terms * kUnit * abs) + 1e-30;
  }
}

Oracle make_oracle(Batch& batch) {
  const Sizes& s = batch.options.sizes;
  Oracle oracle;
  oracle.out.resize(at(batch.tokens * s.heads * s.value));
  oracle.bound.resize(oracle.out.size());
  for (size_t n = 0; n < batch.starts.size(); ++n) {
    const Piece& piece = batch.options.pieces[n];
    for (int64_t h = 0; piece.length > 0 && h < s.heads; ++h) {
      const Head head(batch, n, h, piece.start + piece.length);
      for (int64_t i = 0; i < piece.length; ++i) {
        oracle_token(batch, head, n, batch.cu_seqlens[n] + i, h, piece.start + i + 1, oracle);
      }
    }
  }
  return oracle;
}

}  // namespace
}  // namespace triax::sequence
