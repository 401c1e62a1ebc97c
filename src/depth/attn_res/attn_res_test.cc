// Properties of Attention Residuals on every backend, against an oracle with computed bounds.
#include "depth/attn_res/attn_res.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "testing/mirror.h"
#include "testing/testing.h"

namespace triax::depth {
namespace {

using testing::GuardedOutput;
using testing::TestDevice;

/// Redirects the sources; what it returns holds them.
std::vector<ConstTensorView> mirror_sources(testing::Mirror& mirror,
                                            std::span<const ConstTensorView>& sources) {
  std::vector<ConstTensorView> copies(sources.begin(), sources.end());
  for (ConstTensorView& source : copies) {
    mirror.in(&source);
  }
  sources = copies;
  return copies;
}

/// With a delta the last source is written, too.
void mirror_running(testing::Mirror& mirror, ConstTensorView delta, ConstTensorView source,
                    TensorView& running) {
  if (!delta.empty()) {
    running = TensorView(const_cast<float*>(source.data<float>()), DType::kF32, source.shape());
    mirror.out(&running);
  }
}

Status mirrored(const Device& device, AttnResArgs args) {
  testing::Mirror mirror(device);
  TensorView running;
  mirror_running(mirror, args.delta, args.sources.back(), running);
  const auto sources = mirror_sources(mirror, args.sources);
  mirror.in(&args.query).in(&args.delta).out(&args.out);
  return mirror.run([&] { return attn_res(device, args); });
}

Status mirrored(const Device& device, AttnResBankArgs args) {
  testing::Mirror mirror(device);
  const auto sources = mirror_sources(mirror, args.sources);
  mirror.in(&args.queries).out(&args.acc).out(&args.max).out(&args.sum);
  return mirror.run([&] { return attn_res_bank(device, args); });
}

Status mirrored(const Device& device, AttnResMergeArgs args) {
  testing::Mirror mirror(device);
  TensorView running;
  mirror_running(mirror, args.delta, args.partial, running);
  mirror.in(&args.acc).in(&args.max).in(&args.sum).in(&args.partial).in(&args.query);
  mirror.in(&args.delta).out(&args.out);
  return mirror.run([&] { return attn_res_merge(device, args); });
}

constexpr double kUnit = 0x1.0p-24;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kEps = 1e-5f;

size_t at(int64_t i) { return static_cast<size_t>(i); }

/// B sources of [T, D], rows `pad` floats further apart than D, and Q queries.
struct Problem {
  Problem(int64_t b, int64_t t, int64_t d, int64_t q = 1, double scale = 1.0, int64_t pad = 0)
      : tokens(t), dim(d) {
    for (int64_t i = 0; i < b; ++i) {
      storage.push_back(testing::random_tensor({t + 1, d + pad}, 10 + at(i), scale));
    }
    for (Tensor& tensor : storage) {
      // An odd pad also misaligns the first element.
      sources.push_back(tensor.view().slice(1, pad, d + pad).rows(0, t));
    }
    queries = testing::random_tensor({q, d}, 1, 3.0 / std::sqrt(static_cast<double>(d)));
  }
  ConstTensorView query(int64_t q) const {
    return ConstTensorView(queries.data<float>() + q * dim, {dim});
  }
  const float* source(size_t i, int64_t t) const {
    return static_cast<const float*>(sources[i].raw()) + t * sources[i].stride(0);
  }
  int64_t tokens, dim;
  std::vector<Tensor> storage;
  std::vector<ConstTensorView> sources;
  Tensor queries;
};

struct Scored {
  std::vector<double> weights;  // sum to 1
  double max = 0.0;
  double log_sum = 0.0;  // of exp(s - max)
  double drift = 0.0;    // how far a float32 score may be from the true one
};

Scored score(const Problem& p, int64_t t, int64_t q) {
  Scored r;
  for (size_t i = 0; i < p.sources.size(); ++i) {
    double dot = 0.0;
    double abs = 0.0;
    double squares = 0.0;
    for (int64_t d = 0; d < p.dim; ++d) {
      const auto v = static_cast<double>(p.source(i, t)[d]);
      const double product = static_cast<double>(p.query(q).data<float>()[d]) * v;
      dot += product;
      abs += std::fabs(product);
      squares += v * v;
    }
    const double norm = std::sqrt(squares / static_cast<double>(p.dim) + static_cast<double>(kEps));
    r.weights.push_back(dot / norm);
    r.drift = std::max(r.drift, static_cast<double>(2 * p.dim + 8) * kUnit * abs / norm);
  }
  r.max = *std::max_element(r.weights.begin(), r.weights.end());
  double sum = 0.0;
  for (double& w : r.weights) {
    sum += w = std::exp(w - r.max);
  }
  r.log_sum = std::log(sum);
  for (double& w : r.weights) {
    w /= sum;
  }
  return r;
}

/// With every score within d of the true one the output moves by at most
/// (e^(2d) - 1) sum_i p_i |v_i - out|, besides the rounding of the sum.
void expect_mix(const Problem& p, int64_t q, ConstTensorView out) {
  for (int64_t t = 0; t < p.tokens; ++t) {
    const Scored s = score(p, t, q);
    const double spread = std::expm1(2.0 * s.drift) + 16.0 * kUnit;
    for (int64_t d = 0; d < p.dim; ++d) {
      double mean = 0.0;
      double abs = 0.0;
      for (size_t i = 0; i < p.sources.size(); ++i) {
        mean += s.weights[i] * static_cast<double>(p.source(i, t)[d]);
        abs += s.weights[i] * std::fabs(static_cast<double>(p.source(i, t)[d]));
      }
      double apart = 0.0;
      for (size_t i = 0; i < p.sources.size(); ++i) {
        apart += s.weights[i] * std::fabs(static_cast<double>(p.source(i, t)[d]) - mean);
      }
      const double bound =
          spread * apart + static_cast<double>(3 * p.sources.size() + 16) * kUnit * abs + 1e-37;
      const auto x =
          static_cast<double>(static_cast<const float*>(out.raw())[t * out.stride(0) + d]);
      ASSERT_LE(std::fabs(x - mean), bound) << "token " << t << ", element " << d;
    }
  }
}

struct Banked {
  Banked(const Problem& p, int64_t q)
      : acc(Tensor::f32({q, p.tokens, p.dim})),
        max(Tensor::f32({q, p.tokens})),
        sum(Tensor::f32({q, p.tokens})) {
    for (Tensor* tensor : {&acc, &max, &sum}) {
      std::fill_n(tensor->data<float>(), tensor->view().elements(), kNan);
    }
  }
  Tensor acc, max, sum;
};

class AttnResTest : public ::testing::TestWithParam<TestDevice> {
 protected:
  const Device& device() const { return device_.get(); }

  Tensor naive(const Problem& p, int64_t q) {
    Tensor out = Tensor::f32({p.tokens, p.dim});
    std::fill_n(out.data<float>(), out.view().elements(), kNan);
    const Status status = mirrored(device(), AttnResArgs{p.sources, p.query(q), kEps, out});
    EXPECT_TRUE(status.ok()) << status.message();
    return out;
  }

  static Banked bank(const Device& device, const Problem& p, size_t sources) {
    Banked banked(p, p.queries.size(0));
    const Status status =
        mirrored(device, AttnResBankArgs{std::span(p.sources).first(sources), p.queries, kEps,
                                         banked.acc, banked.max, banked.sum});
    EXPECT_TRUE(status.ok()) << status.message();
    return banked;
  }

  static AttnResMergeArgs merge_args(const Problem& p, Banked& banked, int64_t q) {
    AttnResMergeArgs args;
    args.acc = ConstTensorView(banked.acc.data<float>() + q * p.tokens * p.dim, {p.tokens, p.dim});
    args.max = ConstTensorView(banked.max.data<float>() + q * p.tokens, {p.tokens});
    args.sum = ConstTensorView(banked.sum.data<float>() + q * p.tokens, {p.tokens});
    args.partial = p.sources.back();
    args.query = p.query(q);
    args.eps = kEps;
    return args;
  }

  Tensor merge(const Problem& p, Banked& banked, int64_t q) {
    Tensor out = Tensor::f32({p.tokens, p.dim});
    AttnResMergeArgs args = merge_args(p, banked, q);
    args.out = out;
    const Status status = mirrored(device(), args);
    EXPECT_TRUE(status.ok()) << status.message();
    return out;
  }

 private:
  OwnedDevice device_ = GetParam().open();
};

/// With a delta, mix and merge are those of the sum, bit for bit, where the device takes one.
TEST_P(AttnResTest, AddsADeltaFirst) {
  for (const int64_t dim : {32, 96, 512, 1024}) {
    constexpr int64_t kTokens = 5;
    Problem p(3, kTokens, dim);
    const Tensor delta = testing::random_tensor({kTokens, dim}, 99);
    Tensor out = Tensor::f32({kTokens, dim});
    const AttnResArgs with = {p.sources, p.query(0), kEps, out, delta.view()};
    if (!attn_res_adds(device(), 3, dim)) {
      EXPECT_FALSE(mirrored(device(), with).ok());
      continue;
    }
    Banked banked = bank(device(), p, 2);
    float* running = p.storage.back().data<float>();
    const std::vector<float> before(running, running + kTokens * dim);
    ASSERT_TRUE(mirrored(device(), with).ok());
    for (int64_t i = 0; i < kTokens * dim; ++i) {
      ASSERT_EQ(running[i], before[at(i)] + delta.data<float>()[i]) << "D " << dim;
    }
    const Tensor expected = naive(p, 0);
    const Tensor expected_merge = merge(p, banked, 0);
    std::ranges::copy(before, running);
    AttnResMergeArgs merging = merge_args(p, banked, 0);
    Tensor merged = Tensor::f32({kTokens, dim});
    merging.out = merged;
    merging.delta = delta.view();
    ASSERT_TRUE(mirrored(device(), merging).ok());
    for (int64_t i = 0; i < kTokens * dim; ++i) {
      ASSERT_EQ(running[i], before[at(i)] + delta.data<float>()[i]) << "D " << dim;
      ASSERT_EQ(out.data<float>()[i], expected.data<float>()[i]) << "D " << dim;
      ASSERT_EQ(merged.data<float>()[i], expected_merge.data<float>()[i]) << "D " << dim;
    }
  }
}

TEST_P(AttnResTest, MatchesTheOracleForAnySize) {
  for (int64_t dim : {1, 7, 15, 16, 17, 63, 64, 65, 100, 513, 1024}) {
    for (int64_t sources : {1, 2, 3, 4, 5, 9}) {
      SCOPED_TRACE(std::to_string(dim) + " x " + std::to_string(sources));
      const Problem p(sources, 3, dim);
      expect_mix(p, 0, naive(p, 0));
    }
  }
  for (int64_t tokens : {0, 1, 63, 100}) {
    const Problem p(9, tokens, 96);
    expect_mix(p, 0, naive(p, 0));
  }
}

TEST_P(AttnResTest, ManySourcesAsInFullAttentionResiduals) {
  // A GPU's launch carries no more; 93 layers of K3 make 187 sources.
  const Problem p(GetParam().backend == Backend::kCuda ? 192 : 300, 2, 130);
  expect_mix(p, 0, naive(p, 0));
}

TEST_P(AttnResTest, StridedAndMisalignedRows) {
  const Problem p(5, 7, 101, 1, 1.0, 3);
  GuardedOutput out(7, 101, 110, 5);
  ASSERT_TRUE(mirrored(device(), AttnResArgs{p.sources, p.query(0), kEps, out.view()}).ok());
  EXPECT_TRUE(out.guards_intact());
  expect_mix(p, 0, out.view());
}

TEST_P(AttnResTest, TinyZeroAndLargeSources) {
  for (double scale : {0.0, 1e-6, 1e-3, 1e6}) {
    SCOPED_TRACE(scale);
    const Problem p(4, 3, 200, 1, scale);
    expect_mix(p, 0, naive(p, 0));
  }
}

TEST_P(AttnResTest, SaturatedSoftmaxTakesOneSource) {
  Problem p(9, 5, 256);
  for (float& x : std::span(p.queries.data<float>(), 256)) {
    x *= 1e4f;
  }
  expect_mix(p, 0, naive(p, 0));
}

TEST_P(AttnResTest, EqualSourcesAreTheirMix) {
  Problem p(9, 4, 333);
  for (ConstTensorView& source : p.sources) {
    source = p.sources[0];
  }
  const Tensor out = naive(p, 0);
  for (int64_t i = 0; i < 4 * 333; ++i) {
    const float v = p.storage[0].data<float>()[i];
    EXPECT_NEAR(out.data<float>()[i], v, 32.0 * kUnit * std::fabs(static_cast<double>(v)));
  }
}

TEST_P(AttnResTest, TheBankHoldsTheUnnormalisedSoftmax) {
  const Problem p(5, 6, 200, 3);
  Banked banked = bank(device(), p, 5);
  for (int64_t q = 0; q < 3; ++q) {
    Tensor out = Tensor::f32({6, 200});
    for (int64_t t = 0; t < 6; ++t) {
      const Scored s = score(p, t, q);
      const auto max = static_cast<double>(banked.max.data<float>()[q * 6 + t]);
      const auto sum = static_cast<double>(banked.sum.data<float>()[q * 6 + t]);
      EXPECT_NEAR(max, s.max, s.drift);
      EXPECT_NEAR(max + std::log(sum), s.max + s.log_sum, 2.0 * s.drift + 16.0 * kUnit);
      for (int64_t d = 0; d < 200; ++d) {
        out.data<float>()[t * 200 + d] = static_cast<float>(
            static_cast<double>(banked.acc.data<float>()[(q * 6 + t) * 200 + d]) / sum);
      }
    }
    expect_mix(p, q, out);
  }
}

TEST_P(AttnResTest, TwoPhasesEqualTheWholeMix) {
  for (int64_t tokens : {1, 2, 20}) {
    for (int64_t queries : {1, 3, 8, 13, 24}) {
      for (int64_t sources : {2, 5, 9}) {
        const Problem p(sources, tokens, 300, queries);
        Banked banked = bank(device(), p, p.sources.size() - 1);
        for (int64_t q = 0; q < queries; ++q) {
          const Tensor merged = merge(p, banked, q);
          expect_mix(p, q, merged);
          const Tensor whole = naive(p, q);
          double size = 0.0;
          for (int64_t i = 0; i < tokens * 300; ++i) {
            size = std::max(size, std::fabs(static_cast<double>(whole.data<float>()[i])));
          }
          EXPECT_LE(testing::max_abs_difference(merged, whole), 1e-6 * size);
        }
      }
    }
  }
}

TEST_P(AttnResTest, TheMergeMayOverwriteTheBank) {
  const Problem p(4, 5, 77, 2);
  Banked banked = bank(device(), p, 3);
  const Tensor expected = merge(p, banked, 1);
  const TensorView acc(banked.acc.data<float>() + 5 * 77, {5, 77});
  const float* max = banked.max.data<float>() + 5;
  const float* sum = banked.sum.data<float>() + 5;
  ASSERT_TRUE(
      mirrored(device(), AttnResMergeArgs{acc, ConstTensorView(max, {5}), ConstTensorView(sum, {5}),
                                          p.sources[3], p.query(1), kEps, acc})
          .ok());
  EXPECT_TRUE(testing::bitwise_equal(acc, expected));
}

TEST_P(AttnResTest, BitsDoNotDependOnThreadsQueriesOrTokens) {
  const Problem p(9, 21, 515, 13);
  const OwnedDevice other = GetParam().open(2);
  const Banked once = bank(device(), p, 9);
  const Banked again = bank(other, p, 9);
  EXPECT_TRUE(testing::bitwise_equal(once.acc, again.acc));
  EXPECT_TRUE(testing::bitwise_equal(once.sum, again.sum));
  for (int64_t q : {0, 7, 12}) {
    Problem single(9, 1, 515);
    for (size_t i = 0; i < 9; ++i) {
      single.sources[i] = p.sources[i].rows(20, 21);
    }
    std::copy_n(p.query(q).data<float>(), 515, single.queries.data<float>());
    Banked alone = bank(device(), single, 9);
    EXPECT_TRUE(testing::bitwise_equal(
        alone.acc, ConstTensorView(once.acc.data<float>() + (q * 21 + 20) * 515, {1, 1, 515})));
    EXPECT_EQ(alone.max.data<float>()[0], once.max.data<float>()[q * 21 + 20]);
  }
}

TEST_P(AttnResTest, BadArgumentsAreNamedAndNothingIsWritten) {
  struct Bad {
    std::string names;
    std::function<void(AttnResArgs&)> spoil;
  };
  const Problem p(3, 4, 32, 2);
  std::vector<ConstTensorView> odd = p.sources;
  odd[2] = odd[2].rows(0, 3);
  const Bad all[] = {
      {"'sources'", [&](AttnResArgs& a) { a.sources = {}; }},
      {"'sources[2]'", [&](AttnResArgs& a) { a.sources = odd; }},
      {"'query'", [&](AttnResArgs& a) { a.query = a.query.rows(0, 31); }},
      {"'query'", [&](AttnResArgs& a) { a.query = p.queries; }},
      {"'out'", [&](AttnResArgs& a) { a.out = a.out.rows(0, 3); }},
      {"'eps'", [&](AttnResArgs& a) { a.eps = kNan; }},
  };
  for (const Bad& bad : all) {
    GuardedOutput out(4, 32);
    AttnResArgs args{p.sources, p.query(0), kEps, out.view()};
    bad.spoil(args);
    const Status status = attn_res(device(), args);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(bad.names), std::string::npos) << status.message();
    EXPECT_TRUE(out.guards_intact());
    EXPECT_TRUE(std::isnan(out.view().data<float>()[0]));
  }
}

TEST_P(AttnResTest, BadPhasesAreRefused) {
  const Problem p(3, 4, 32, 2);
  Banked banked(p, 2);
  AttnResBankArgs good{p.sources, p.queries, kEps, banked.acc, banked.max, banked.sum};
  AttnResBankArgs args = good;
  args.queries = p.query(0);
  EXPECT_EQ(attn_res_bank(device(), args).code(), StatusCode::kInvalidArgument);
  args = good;
  args.max = args.max.rows(0, 1);
  EXPECT_EQ(attn_res_bank(device(), args).code(), StatusCode::kInvalidArgument);
  args = good;
  args.acc = args.acc.with_stride(0, 4 * 32 + 1);
  EXPECT_EQ(attn_res_bank(device(), args).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(std::isnan(banked.acc.data<float>()[0]));
  EXPECT_TRUE(std::isnan(banked.sum.data<float>()[0]));
  const TensorView acc(banked.acc.data<float>(), {4, 32});
  const ConstTensorView one(banked.max.data<float>(), {4});
  const ConstTensorView few(banked.max.data<float>(), {3});
  EXPECT_EQ(attn_res_merge(device(), {acc, one, few, p.sources[0], p.query(0), kEps, acc}).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(attn_res_merge(device(), {acc, one, one, p.queries, p.query(0), kEps, acc}).code(),
            StatusCode::kInvalidArgument);
  EXPECT_TRUE(std::isnan(banked.acc.data<float>()[0]));
}

INSTANTIATE_TEST_SUITE_P(Devices, AttnResTest, ::testing::ValuesIn(testing::test_devices()),
                         [](const auto& test) { return test.param.name(); });

}  // namespace
}  // namespace triax::depth
