// Properties of MLA on every backend, against an oracle in double with bounds from the inputs.
#include "sequence/mla/mla.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "testing/testing.h"

namespace triax::sequence {
namespace {

using testing::GuardedOutput;
using testing::TestDevice;

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

void expect_within(const Oracle& oracle, ConstTensorView out, double factor = 1.0) {
  const int64_t row = out.size(1) * out.size(2);
  for (size_t i = 0; i < oracle.out.size(); ++i) {
    const auto k = static_cast<int64_t>(i);
    const double x = static_cast<double>(
        static_cast<const float*>(out.raw())[k / row * out.stride(0) + k % row]);
    ASSERT_LE(std::fabs(x - oracle.out[i]), factor * oracle.bound[i])
        << "token " << k / row << ", element " << k % row << ": " << x << ", expected "
        << oracle.out[i];
  }
}

class MlaTest : public ::testing::TestWithParam<TestDevice> {
 protected:
  const Device& device() const { return device_.get(); }

  /// The result in a fresh tensor.
  Tensor run(Batch& batch) { return run_on(device(), batch); }

  static Tensor run_on(const Device& device, Batch& batch) {
    const Sizes& s = batch.options.sizes;
    Tensor out = Tensor::f32({batch.tokens, s.heads, s.value});
    std::fill_n(out.data<float>(), out.view().elements(), kNan);
    const Status status = mla(device, batch.args(out));
    EXPECT_TRUE(status.ok()) << status.message();
    return out;
  }

  void expect_oracle(const Options& options) {
    Batch batch(options);
    const Tensor out = run(batch);
    expect_within(make_oracle(batch), out);
  }

 private:
  OwnedDevice device_{GetParam().backend, GetParam().isa, GetParam().threads};
};

/// Sequence n of a batch, tokens [begin, end) of its new ones, with a table and pool as they are.
struct Alone {
  Alone(Batch& batch, size_t n, int64_t begin, int64_t end)
      : cu_seqlens{0, end - begin}, starts{batch.starts[n] + begin}, tables{batch.tables[n]} {
    const Sizes& s = batch.options.sizes;
    const int64_t first = batch.cu_seqlens[n];
    out = Tensor::f32({end - begin, s.heads, s.value});
    args = batch.args(out);
    args.q = batch.q.view().rows(first + begin, first + end);
    if (batch.options.gate) {
      args.gate_logit = batch.gate.view().rows(first + begin, first + end);
    }
    args.cu_seqlens = cu_seqlens;
    args.starts = starts;
    args.pages.tables = tables;
  }
  std::vector<int64_t> cu_seqlens, starts;
  std::vector<std::span<const int32_t>> tables;
  Tensor out;
  MlaArgs args;
};

TEST_P(MlaTest, MatchesTheOracleForAnyLength) {
  for (int64_t length : {1, 2, 15, 17, 33, 63, 64, 65, 100, 130}) {
    SCOPED_TRACE(length);
    expect_oracle({.pieces = {{0, length}}});
  }
}

TEST_P(MlaTest, MatchesTheOracleWithTokensBefore) {
  for (const Piece& piece : {Piece{63, 1}, Piece{64, 1}, Piece{299, 1}, Piece{577, 1}, Piece{1, 2},
                             Piece{63, 2}, Piece{500, 40}, Piece{520, 3}}) {
    SCOPED_TRACE(piece.start);
    expect_oracle({.sizes = {.latent = 64, .value = 64}, .pieces = {piece}});
  }
}

TEST_P(MlaTest, MatchesTheOracleForAnySize) {
  const std::vector<Sizes> all = {
      {.heads = 1, .latent = 512},
      {.heads = 3, .latent = 64},
      {.heads = 17, .nope = 16, .shared = 8, .latent = 32, .value = 16},
      {.heads = 35, .nope = 8, .shared = 4, .latent = 32, .value = 8},
      {.heads = 2, .nope = 100, .shared = 64, .latent = 128, .value = 100},
      {.heads = 1, .nope = 1, .shared = 1, .latent = 1, .value = 1},
      {.heads = 2, .nope = 13, .shared = 0, .latent = 19, .value = 37},
      {.heads = 3, .nope = 65, .shared = 7, .latent = 95, .value = 127}};
  for (const Sizes& sizes : all) {
    SCOPED_TRACE(sizes.latent);
    expect_oracle({.sizes = sizes, .pieces = {{70, 1}, {2, 37}}});
  }
}

TEST_P(MlaTest, MatchesTheOracleForEveryWeightFormat) {
  for (MatrixFormat format : {MatrixFormat::kF32, MatrixFormat::kF16, MatrixFormat::kBf16,
                              MatrixFormat::kInt8, MatrixFormat::kMxfp4}) {
    for (int64_t latent : {96, 512}) {
      SCOPED_TRACE(std::string(matrix_format_name(format)));
      expect_oracle({.sizes = {.heads = 1, .latent = latent},
                     .pieces = {{30, 1}, {0, 20}},
                     .format = format});
    }
  }
}

TEST_P(MlaTest, SurvivesSaturatedSoftmax) {
  for (double scale : {30.0, 1e3, 1e6}) {
    SCOPED_TRACE(scale);
    expect_oracle({.pieces = {{99, 1}, {10, 90}}, .query_scale = scale});
  }
}

TEST_P(MlaTest, EqualKeysGiveTheirValue) {
  for (double scale : {1.0, 1e4}) {
    Batch batch(
        {.pieces = {{140, 1}, {3, 130}}, .gate = false, .query_scale = scale, .equal_keys = true});
    const Oracle oracle = make_oracle(batch);
    const Tensor out = run(batch);
    expect_within(oracle, out);
    const Sizes& s = batch.options.sizes;
    const Head head(batch, 0, 1, 1);
    for (int64_t v = 0; v < s.value; ++v) {
      const auto at_v = at(s.nope + v);
      EXPECT_NEAR(static_cast<double>(out.data<float>()[s.value + v]), head.value[at_v],
                  static_cast<double>(s.latent + 300) * kUnit * head.size[at_v]);
    }
  }
}

TEST_P(MlaTest, WorksWithoutGate) { expect_oracle({.pieces = {{65, 1}, {0, 50}}, .gate = false}); }

TEST_P(MlaTest, ExtremeGatesSaturate) {
  Batch batch({.pieces = {{65, 1}, {0, 20}}});
  const float values[] = {1e4f, -1e4f, 88.0f, -88.0f, 0.0f, -30.0f};
  for (int64_t i = 0; i < batch.gate.view().elements(); ++i) {
    batch.gate.data<float>()[i] = values[i % 6];
  }
  expect_within(make_oracle(batch), run(batch));
}

TEST_P(MlaTest, NothingToDo) {
  const Sizes s;
  Batch none({.pieces = {}});
  Batch empty({.pieces = {{0, 0}, {70, 0}}});
  for (Batch* batch : {&none, &empty}) {
    GuardedOutput out(1, s.heads * s.value);
    MlaArgs args = batch->args(out.view().split_last(s.heads, s.value));
    args.q = batch->q.view();
    args.gate_logit = batch->gate.view();
    ASSERT_TRUE(mla(device(), args).ok());
    EXPECT_TRUE(out.guards_intact());
    EXPECT_TRUE(std::isnan(out.view().data<float>()[0]));
  }
  Batch zero({.pieces = {}});
  ASSERT_TRUE(mla(device(), zero.args(Tensor::f32({0, s.heads, s.value}))).ok());
}

TEST_P(MlaTest, StridedMisalignedAndNothingBeyond) {
  const Sizes s{.heads = 3, .nope = 100, .shared = 12, .latent = 100, .value = 100};
  Batch batch({.sizes = s, .pieces = {{70, 1}, {0, 0}, {5, 70}}});
  const int64_t depth = s.nope + s.shared;
  std::vector<float> q(at(1 + (batch.tokens + 1) * (s.heads * (depth + 3) + 5)), kNan);
  for (int64_t t = 0; t < batch.tokens; ++t) {
    for (int64_t h = 0; h < s.heads; ++h) {
      std::copy_n(batch.q.data<float>() + (t * s.heads + h) * depth, depth,
                  q.data() + 1 + t * (s.heads * (depth + 3) + 5) + h * (depth + 3));
    }
  }
  GuardedOutput out(batch.tokens + 1, s.heads * s.value, s.heads * s.value + 7, 3);
  MlaArgs args = batch.args(out.view().split_last(s.heads, s.value));
  args.q = ConstTensorView(q.data() + 1, {batch.tokens + 1, s.heads, depth})
               .with_stride(0, s.heads * (depth + 3) + 5)
               .with_stride(1, depth + 3);
  args.gate_logit = batch.gate;
  Tensor pool = Tensor::f32({batch.pool.size(0), kLatentPage, s.width() + 9});
  for (int64_t row = 0; row < batch.pool.size(0) * kLatentPage; ++row) {
    std::copy_n(batch.pool.data<float>() + row * s.width(), s.width(),
                pool.data<float>() + row * (s.width() + 9) + 5);
  }
  args.pages.pool = pool.view().slice(2, 5, s.width() + 5);
  ASSERT_TRUE(mla(device(), args).ok());
  EXPECT_TRUE(out.guards_intact());
  const float* beyond = out.view().data<float>() + batch.tokens * out.view().stride(0);
  EXPECT_TRUE(
      std::all_of(beyond, beyond + s.heads * s.value, [](float x) { return std::isnan(x); }));
  expect_within(make_oracle(batch), args.out);
}

TEST_P(MlaTest, ABatchGivesTheBitsOfItsSequences) {
  Batch batch({.sizes = {.heads = 3, .latent = 64},
               .pieces = {{599, 1}, {0, 40}, {63, 1}, {0, 0}, {64, 2}, {0, 1}, {510, 33}}});
  const Tensor whole = run(batch);
  for (size_t n = 0; n < batch.starts.size(); ++n) {
    Alone alone(batch, n, 0, batch.options.pieces[n].length);
    ASSERT_TRUE(mla(device(), alone.args).ok());
    EXPECT_TRUE(testing::bitwise_equal(
        alone.out, whole.view().rows(batch.cu_seqlens[n], batch.cu_seqlens[n + 1])))
        << "sequence " << n;
  }
}

TEST_P(MlaTest, BitsDoNotDependOnThreadsOrRuns) {
  Batch batch({.sizes = {.heads = 3, .latent = 64}, .pieces = {{1400, 1}, {500, 70}, {3, 1}}});
  const Tensor once = run(batch);
  EXPECT_TRUE(testing::bitwise_equal(once, run(batch)));
  const OwnedDevice other(GetParam().backend, GetParam().isa, 2);
  EXPECT_TRUE(testing::bitwise_equal(once, run_on(other, batch)));
}

TEST_P(MlaTest, LaterTokensDoNotMatter) {
  Batch batch({.sizes = {.latent = 64}, .pieces = {{490, 90}}});
  const Tensor whole = run(batch);
  for (int64_t length : {2, 16, 22, 23, 40, 89}) {
    Alone prefix(batch, 0, 0, length);
    ASSERT_TRUE(mla(device(), prefix.args).ok());
    EXPECT_TRUE(testing::bitwise_equal(prefix.out, whole.view().rows(0, length))) << length;
  }
}

TEST_P(MlaTest, AnySplitGivesTheSame) {
  Batch batch({.pieces = {{0, 150}}});
  const Oracle oracle = make_oracle(batch);
  const Tensor whole = run(batch);
  const std::vector<std::vector<int64_t>> splits = {
      {2, 148}, {64, 86}, {65, 20, 65}, {149, 1}, {1, 62, 1, 1, 85}, std::vector<int64_t>(150, 1)};
  for (const std::vector<int64_t>& split : splits) {
    int64_t begin = 0;
    Tensor out = Tensor::f32({150, 2, 128});
    for (int64_t length : split) {
      Alone part(batch, 0, begin, begin + length);
      part.args.out = out.view().rows(begin, begin + length);
      ASSERT_TRUE(mla(device(), part.args).ok());
      if (length > 1) {
        EXPECT_TRUE(
            testing::bitwise_equal(part.args.out, whole.view().rows(begin, begin + length)));
      }
      begin += length;
    }
    expect_within(oracle, out);
  }
}

TEST_P(MlaTest, ShortContinuationsMayAttendInLatentSpace) {
  Batch batch({.pieces = {{300, 9}, {62, 3}, {0, 17}, {0, 1}}});
  const Oracle oracle = make_oracle(batch);
  Tensor out = Tensor::f32({batch.tokens, 2, 128});
  MlaArgs args = batch.args(out);
  args.absorbed_tokens_max = 9;
  ASSERT_TRUE(mla(device(), args).ok());
  expect_within(oracle, out);
  // Token by token it is the same computation.
  for (int64_t i = 0; i < 9; ++i) {
    Alone one(batch, 0, i, i + 1);
    ASSERT_TRUE(mla(device(), one.args).ok());
    EXPECT_TRUE(testing::bitwise_equal(one.out, out.view().rows(i, i + 1))) << i;
  }
}

TEST_P(MlaTest, AsManySequencesAsThereAre) {
  // So many and so wide that the partial sums do not fit their budget at once.
  constexpr int64_t kCount = 300;
  Batch batch({.sizes = {.heads = 1, .nope = 1, .shared = 0, .latent = 2048, .value = 1},
               .pieces = {{40, 1}},
               .gate = false});
  const Tensor q = testing::random_tensor({kCount, 1, 1}, 8);
  Tensor out = Tensor::f32({kCount, 1, 1});
  std::vector<int64_t> cu_seqlens, starts;
  for (int64_t i = 0; i <= kCount; ++i) {
    cu_seqlens.push_back(i);
    starts.push_back(i % 41);
  }
  const std::vector<std::span<const int32_t>> tables(at(kCount), batch.tables[0]);
  MlaArgs args = batch.args(out);
  args.q = q;
  args.cu_seqlens = cu_seqlens;
  args.starts = std::span(starts).first(at(kCount));
  args.pages.tables = tables;
  ASSERT_TRUE(mla(device(), args).ok());
  for (int64_t i : {0, 17, 255, 256, 299}) {
    Tensor alone = Tensor::f32({1, 1, 1});
    args.q = q.view().rows(i, i + 1);
    args.out = alone;
    args.cu_seqlens = std::span(cu_seqlens).first(2);
    args.starts = std::span(starts).subspan(at(i), 1);
    args.pages.tables = std::span(tables).first(1);
    ASSERT_TRUE(mla(device(), args).ok());
    EXPECT_TRUE(testing::bitwise_equal(alone, out.view().rows(i, i + 1))) << i;
  }
}

TEST_P(MlaTest, BadArgumentsAreNamedAndNothingIsWritten) {
  struct Bad {
    std::string names;
    std::function<void(MlaArgs&)> spoil;
  };
  Batch batch({.pieces = {{64, 1}, {0, 4}}});
  const Sizes& s = batch.options.sizes;
  const std::vector<int64_t> falling = {0, 3, 2}, late = {1, 2, 5}, beyond = {0, 1, 6},
                             negative = {-1, 0};
  const std::vector<int32_t> outside = {0, 99}, below = {-1, 0}, one = {0};
  std::vector<std::span<const int32_t>> tables = batch.tables;
  const auto table = [&](const std::vector<int32_t>& pages) {
    return [&](MlaArgs& a) {
      tables[0] = pages;
      a.pages.tables = tables;
    };
  };
  const Bad all[] = {
      {"'q'", [&](MlaArgs& a) { a.q = batch.kv_b.data; }},
      {"'out'", [&](MlaArgs& a) { a.q = a.q.slice(1, 0, 1); }},
      {"'out'", [&](MlaArgs& a) { a.out = a.out.slice(2, 0, s.value - 1); }},
      {"'out'", [&](MlaArgs& a) { a.value_dim = s.value + 1; }},
      {"'gate_logit'", [&](MlaArgs& a) { a.gate_logit = a.gate_logit.slice(1, 0, 1); }},
      {"kv_b", [&](MlaArgs& a) { a.kv_b.rows -= 1; }},
      {"kv_b", [&](MlaArgs& a) { a.kv_b.data = nullptr; }},
      {"sizes", [&](MlaArgs& a) { a.kv_b.cols = s.width() + 1; }},
      {"pool", [&](MlaArgs& a) { a.pages.pool = a.pages.pool.slice(1, 0, 63); }},
      {"scale", [&](MlaArgs& a) { a.scale = kNan; }},
      {"absorbed_tokens_max", [&](MlaArgs& a) { a.absorbed_tokens_max = 0; }},
      {"falls", [&](MlaArgs& a) { a.cu_seqlens = falling; }},
      {"begins", [&](MlaArgs& a) { a.cu_seqlens = late; }},
      {"ends", [&](MlaArgs& a) { a.cu_seqlens = beyond; }},
      {"cu_seqlens", [&](MlaArgs& a) { a.cu_seqlens = a.cu_seqlens.first(2); }},
      {"cu_seqlens", [&](MlaArgs& a) { a.cu_seqlens = {}; }},
      {"starts", [&](MlaArgs& a) { a.starts = negative; }},
      {"pages", [&](MlaArgs& a) { a.pages.tables = a.pages.tables.first(1); }},
      {"99", table(outside)},
      {"-1", table(below)},
      {"expected 2", table(one)},
  };
  for (const Bad& bad : all) {
    GuardedOutput out(batch.tokens, s.heads * s.value);
    MlaArgs args = batch.args(out.view().split_last(s.heads, s.value));
    bad.spoil(args);
    const Status status = mla(device(), args);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << bad.names;
    EXPECT_NE(status.message().find(bad.names), std::string::npos) << status.message();
    const float* data = out.view().data<float>();
    EXPECT_TRUE(std::all_of(data, data + batch.tokens * s.heads * s.value,
                            [](float x) { return std::isnan(x); }));
    EXPECT_TRUE(out.guards_intact());
  }
}

TEST_P(MlaTest, AppendWritesItsRowsOnly) {
  const std::vector<Piece> pieces = {{63, 2}, {0, 0}, {0, 300}, {5, 1}};
  Batch batch({.sizes = {.latent = 33, .value = 1}, .pieces = pieces});
  const int64_t width = batch.options.sizes.width();
  std::fill_n(batch.pool.data<float>(), batch.pool.view().elements(), -7.0f);
  const Tensor rows = testing::random_tensor({batch.tokens + 2, width + 5}, 9);
  MlaAppendArgs args;
  args.latents = rows.view().slice(1, 0, width);
  args.cu_seqlens = batch.cu_seqlens;
  args.starts = batch.starts;
  args.pages = batch.args({}).pages;
  ASSERT_TRUE(mla_append(device(), args).ok());
  for (size_t n = 0; n < pieces.size(); ++n) {
    for (int64_t i = 0; i < pieces[n].length; ++i) {
      float* row = batch.latent(n, pieces[n].start + i);
      EXPECT_TRUE(std::equal(row, row + width,
                             rows.data<float>() + (batch.cu_seqlens[n] + i) * (width + 5)));
      std::fill_n(row, width, -7.0f);
    }
  }
  const float* pool = batch.pool.data<float>();
  EXPECT_TRUE(
      std::all_of(pool, pool + batch.pool.view().elements(), [](float x) { return x == -7.0f; }));
}

TEST_P(MlaTest, AppendRefusesBadTables) {
  Batch batch({.sizes = {.latent = 32}, .pieces = {{60, 10}}});
  std::fill_n(batch.pool.data<float>(), batch.pool.view().elements(), -7.0f);
  const Tensor rows = testing::random_tensor({10, batch.options.sizes.width()}, 9);
  for (const std::vector<int32_t>& table : {std::vector<int32_t>{0}, {0, 50}, {-1, 0}}) {
    const std::vector<std::span<const int32_t>> tables = {table};
    MlaAppendArgs args{rows, batch.cu_seqlens, batch.starts, {batch.pool, tables}};
    EXPECT_EQ(mla_append(device(), args).code(), StatusCode::kInvalidArgument);
  }
  const Tensor narrow = Tensor::f32({10, 3});
  MlaAppendArgs args{narrow, batch.cu_seqlens, batch.starts, {batch.pool, batch.tables}};
  EXPECT_EQ(mla_append(device(), args).code(), StatusCode::kInvalidArgument);
  const float* pool = batch.pool.data<float>();
  EXPECT_TRUE(
      std::all_of(pool, pool + batch.pool.view().elements(), [](float x) { return x == -7.0f; }));
}

INSTANTIATE_TEST_SUITE_P(Devices, MlaTest, ::testing::ValuesIn(testing::test_devices()),
                         [](const auto& test) { return test.param.name(); });

}  // namespace
}  // namespace triax::sequence
