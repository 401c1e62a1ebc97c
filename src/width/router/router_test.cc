// The router on every backend against sums in double.
#include "width/router/router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <vector>

#include "testing/mirror.h"
#include "testing/testing.h"

namespace triax::width {
namespace {

using triax::testing::bitwise_equal;
using triax::testing::GuardedOutput;
using triax::testing::random_matrix;
using triax::testing::random_tensor;
using triax::testing::TestDevice;

Status mirrored(const Device& device, RouteArgs args) {
  triax::testing::Mirror mirror(device);
  mirror.in(&args.in).in(&args.gate).in(&args.bias).out(&args.ids).out(&args.weights);
  return mirror.run([&] { return route(device, args); });
}

constexpr double kEps = 0x1.0p-24;
constexpr MatrixFormat kFormats[] = {MatrixFormat::kF32, MatrixFormat::kF16, MatrixFormat::kBf16,
                                     MatrixFormat::kMxfp4, MatrixFormat::kInt8};

class Router : public ::testing::TestWithParam<TestDevice> {
 protected:
  OwnedDevice device_ = GetParam().open();
};

INSTANTIATE_TEST_SUITE_P(Devices, Router, ::testing::ValuesIn(triax::testing::test_devices()),
                         [](const auto& device) { return device.param.name(); });

// Guarded outputs of a call.
struct Routes {
  Routes(int64_t tokens, int64_t k)
      : count(k),
        stride(k + 3),
        memory(static_cast<size_t>(tokens * stride) + 8, kGuard),
        weights(tokens, k, k + 2, 1) {}

  static constexpr int32_t kGuard = -77;
  TensorView ids(int64_t tokens) {
    return TensorView(memory.data() + 4, {tokens, count}).with_stride(0, stride);
  }
  int32_t id(int64_t t, int64_t j) const { return memory[static_cast<size_t>(4 + t * stride + j)]; }
  float weight(int64_t t, int64_t j) {
    return weights.view().data<float>()[t * weights.view().stride(0) + j];
  }
  bool guards_intact() const {
    for (size_t i = 0; i < memory.size(); ++i) {
      const bool inside =
          i >= 4 && static_cast<int64_t>(i - 4) % stride < count && i + 4 < memory.size();
      if (!inside && memory[i] != kGuard) {
        return false;
      }
    }
    return weights.guards_intact();
  }

  int64_t count, stride;
  std::vector<int32_t> memory;
  GuardedOutput weights;
};

// Score of every expert for one token, and how far float arithmetic may be from it.
struct Scores {
  std::vector<double> s, biased, error;
};

Scores scores_of(const RouteArgs& args, int64_t t) {
  const auto experts = static_cast<size_t>(args.gate.rows);
  const auto size = static_cast<size_t>(args.gate.cols);
  const float* x = args.in.data<float>() + t * args.in.stride(0);
  Scores scores = {std::vector<double>(experts), std::vector<double>(experts),
                   std::vector<double>(experts)};
  std::vector<float> row(size);
  for (size_t e = 0; e < experts; ++e) {
    dequantize_row(args.gate, static_cast<int64_t>(e), row.data());
    double logit = 0.0;
    double magnitude = 0.0;
    for (size_t d = 0; d < size; ++d) {
      const double product = static_cast<double>(x[d]) * static_cast<double>(row[d]);
      logit += product;
      magnitude += std::fabs(product);
    }
    const double s = 1.0 / (1.0 + std::exp(-logit));
    const auto bias = static_cast<double>(args.bias.data<float>()[e]);
    scores.s[e] = s;
    scores.biased[e] = s + bias;
    // At least 8 lanes, each a chain of additions; the slope of the sigmoid is s (1 - s).
    const double logit_error = (static_cast<double>(size) / 8.0 + 10.0) * kEps * magnitude;
    scores.error[e] = 1.1 * s * (1.0 - s) * logit_error + 6.0 * kEps * s +
                      2.0 * kEps * std::fabs(s + bias) + 1e-38;
  }
  return scores;
}

void expect_top_k(const Scores& scores, int64_t t, const Routes& routes) {
  std::set<int32_t> chosen;
  for (int64_t j = 0; j < routes.count; ++j) {
    const int32_t id = routes.id(t, j);
    ASSERT_TRUE(id >= 0 && id < static_cast<int32_t>(scores.s.size())) << id;
    EXPECT_TRUE(chosen.insert(id).second) << "expert " << id << " twice";
  }
  const auto beyond = [&](int32_t better, int32_t worse) {
    const auto a = static_cast<size_t>(better);
    const auto b = static_cast<size_t>(worse);
    return scores.biased[b] - scores.biased[a] > scores.error[a] + scores.error[b];
  };
  for (int64_t j = 1; j < routes.count; ++j) {
    EXPECT_FALSE(beyond(routes.id(t, j - 1), routes.id(t, j))) << "order at " << j;
  }
  const int32_t last = routes.id(t, routes.count - 1);
  for (int32_t e = 0; e < static_cast<int32_t>(scores.s.size()); ++e) {
    EXPECT_FALSE(!chosen.contains(e) && beyond(last, e)) << "expert " << e << " left out";
  }
}

void expect_weights(const RouteArgs& args, const Scores& scores, int64_t t, Routes& routes) {
  const std::vector<double>& from =
      args.weights_from == RouteWeights::kBiased ? scores.biased : scores.s;
  double sum = 0.0;
  double sum_error = 0.0;
  for (int64_t j = 0; j < routes.count; ++j) {
    sum += from[static_cast<size_t>(routes.id(t, j))];
    sum_error += scores.error[static_cast<size_t>(routes.id(t, j))];
  }
  for (int64_t j = 0; j < routes.count; ++j) {
    const auto id = static_cast<size_t>(routes.id(t, j));
    double expected = from[id] * static_cast<double>(args.scaling_factor);
    double bound = scores.error[id] * static_cast<double>(args.scaling_factor);
    if (args.renormalize) {
      expected /= sum + 1e-20;
      bound = (bound + std::fabs(expected) * sum_error) / (sum - sum_error);
    }
    bound += static_cast<double>(routes.count + 4) * kEps * std::fabs(expected);
    EXPECT_NEAR(static_cast<double>(routes.weight(t, j)), expected, bound) << "route " << j;
  }
}

void expect_routes(const RouteArgs& args, Routes& routes) {
  for (int64_t t = 0; t < args.in.size(0); ++t) {
    const Scores scores = scores_of(args, t);
    expect_top_k(scores, t, routes);
    expect_weights(args, scores, t, routes);
  }
}

TEST_P(Router, IsTopKOfBiasedScoresForEverySize) {
  for (const auto& [experts, k] : {std::pair<int64_t, int64_t>{1, 1},
                                   {2, 1},
                                   {7, 7},
                                   {12, 3},
                                   {13, 4},
                                   {31, 8},
                                   {100, 16},
                                   {256, 8}}) {
    for (const int64_t size : {1, 7, 16, 63, 100, 160}) {
      for (const int64_t tokens : {0, 1, 4, 5, 63}) {
        const Tensor in = random_tensor({tokens, size}, 1);
        const OwnedMatrix gate = random_matrix(MatrixFormat::kBf16, experts, size, 2, 0.3);
        const Tensor bias = random_tensor({experts}, 3, 0.1);
        Routes routes(tokens, k);
        const RouteArgs args = {.in = in,
                                .gate = gate.view,
                                .bias = bias,
                                .ids = routes.ids(tokens),
                                .weights = routes.weights.view()};
        ASSERT_TRUE(mirrored(device_, args).ok());
        EXPECT_TRUE(routes.guards_intact());
        expect_routes(args, routes);
      }
    }
  }
}

TEST_P(Router, TakesEveryFormatExactly) {
  const Tensor memory = random_tensor({9, 200}, 4);
  const ConstTensorView in = memory.view().slice(1, 3, 163);
  const Tensor bias = random_tensor({40}, 5, 0.1);
  for (const MatrixFormat format : kFormats) {
    const OwnedMatrix gate = random_matrix(format, 40, 160, 6, 0.2);
    OwnedMatrix plain = make_matrix(MatrixFormat::kF32, 40, 160);
    for (int64_t e = 0; e < 40; ++e) {
      dequantize_row(gate.view, e, reinterpret_cast<float*>(plain.data.data<uint8_t>()) + e * 160);
    }
    Routes routes(9, 6);
    RouteArgs args = {.in = in,
                      .gate = gate.view,
                      .bias = bias,
                      .ids = routes.ids(9),
                      .weights = routes.weights.view()};
    ASSERT_TRUE(mirrored(device_, args).ok());
    expect_routes(args, routes);
    Routes same(9, 6);
    args.gate = plain.view;
    args.ids = same.ids(9);
    args.weights = same.weights.view();
    ASSERT_TRUE(mirrored(device_, args).ok());
    EXPECT_EQ(routes.memory, same.memory) << matrix_format_name(format);
    EXPECT_TRUE(bitwise_equal(routes.weights.view(), same.weights.view()));
  }
}

TEST_P(Router, WeighsByItsSettings) {
  const Tensor in = random_tensor({5, 64}, 7);
  const OwnedMatrix gate = random_matrix(MatrixFormat::kF32, 20, 64, 8, 0.2);
  Tensor bias = random_tensor({20}, 9, 0.3);
  for (int64_t e = 0; e < 20; ++e) {
    bias.data<float>()[e] = std::fabs(bias.data<float>()[e]);
  }
  for (const bool renormalize : {true, false}) {
    for (const float scaling_factor : {1.0f, 2.446f}) {
      for (const RouteWeights from : {RouteWeights::kUnbiased, RouteWeights::kBiased}) {
        Routes routes(5, 4);
        const RouteArgs args = {.in = in,
                                .gate = gate.view,
                                .bias = bias,
                                .renormalize = renormalize,
                                .scaling_factor = scaling_factor,
                                .weights_from = from,
                                .ids = routes.ids(5),
                                .weights = routes.weights.view()};
        ASSERT_TRUE(mirrored(device_, args).ok());
        expect_routes(args, routes);
      }
    }
  }
}

TEST_P(Router, BreaksTiesByTheLowerId) {
  // Equal rows everywhere, so that experts in every place of a tile must give equal bits.
  const int64_t experts = 41;
  const int64_t size = 77;
  const Tensor row = random_tensor({1, size}, 10);
  OwnedMatrix gate = make_matrix(MatrixFormat::kF32, experts, size);
  float* data = reinterpret_cast<float*>(gate.data.data<uint8_t>());
  for (int64_t e = 0; e < experts; ++e) {
    std::copy_n(row.data<float>(), size, data + e * size);
  }
  Tensor bias = Tensor::f32({experts});
  bias.data<float>()[30] = 0.5f;
  bias.data<float>()[17] = 0.5f;
  const Tensor in = random_tensor({6, size}, 11, 0.1);
  Routes routes(6, 10);
  const RouteArgs args = {.in = in,
                          .gate = gate.view,
                          .bias = bias,
                          .ids = routes.ids(6),
                          .weights = routes.weights.view()};
  ASSERT_TRUE(mirrored(device_, args).ok());
  const int32_t expected[] = {17, 30, 0, 1, 2, 3, 4, 5, 6, 7};
  for (int64_t t = 0; t < 6; ++t) {
    for (int64_t j = 0; j < 10; ++j) {
      EXPECT_EQ(routes.id(t, j), expected[j]) << t;
    }
  }
}

TEST_P(Router, KeepsTheBiasInFloat) {
  // Differences of 2^-23 decide: bfloat16, and even adding in the wrong order, would lose them.
  const int64_t experts = 16;
  Tensor in = Tensor::f32({1, 32});
  const OwnedMatrix gate = random_matrix(MatrixFormat::kBf16, experts, 32, 12);
  Tensor bias = Tensor::f32({experts});
  for (int64_t e = 0; e < experts; ++e) {
    bias.data<float>()[e] = 0.5f + static_cast<float>(e * 5 % experts) * 0x1.0p-23f;
  }
  Routes routes(1, experts);
  const RouteArgs args = {.in = in,
                          .gate = gate.view,
                          .bias = bias,
                          .ids = routes.ids(1),
                          .weights = routes.weights.view()};
  ASSERT_TRUE(mirrored(device_, args).ok());
  for (int64_t j = 0; j < experts; ++j) {
    EXPECT_EQ(routes.id(0, j) * 5 % experts, experts - 1 - j);
    EXPECT_FLOAT_EQ(routes.weight(0, j), 1.0f / 16.0f);  // the bias does not weigh
  }
}

TEST_P(Router, GivesTheSameBitsForAnySplitOrderAndThreadCount) {
  const int64_t tokens = 135;
  const Tensor in = random_tensor({tokens, 100}, 13);
  const OwnedMatrix gate = random_matrix(MatrixFormat::kBf16, 67, 100, 14, 0.3);
  const Tensor bias = random_tensor({67}, 15, 0.1);
  Routes whole(tokens, 5);
  RouteArgs args = {.in = in,
                    .gate = gate.view,
                    .bias = bias,
                    .ids = whole.ids(tokens),
                    .weights = whole.weights.view()};
  ASSERT_TRUE(mirrored(device_, args).ok());
  OwnedDevice other = GetParam().open(2);
  for (const int64_t part : {1, 2, 3, 7}) {
    Routes parts(tokens, 5);
    for (int64_t begin = 0; begin < tokens; begin += part) {
      const int64_t end = std::min(tokens, begin + part);
      args.in = in.view().rows(begin, end);
      args.ids = parts.ids(tokens).rows(begin, end);
      args.weights = parts.weights.view().rows(begin, end);
      ASSERT_TRUE(mirrored(other, args).ok());
    }
    EXPECT_EQ(whole.memory, parts.memory);
    EXPECT_TRUE(bitwise_equal(whole.weights.view(), parts.weights.view()));
  }
}

TEST_P(Router, StandsSaturatedScores) {
  const OwnedMatrix gate = random_matrix(MatrixFormat::kF32, 20, 64, 16, 1.0);
  const Tensor bias = Tensor::f32({20});
  for (const double scale : {0.0, 1e4, 1e15}) {
    const Tensor in = random_tensor({3, 64}, 17, scale);
    Routes routes(3, 6);
    const RouteArgs args = {.in = in,
                            .gate = gate.view,
                            .bias = bias,
                            .ids = routes.ids(3),
                            .weights = routes.weights.view()};
    ASSERT_TRUE(mirrored(device_, args).ok());
    for (int64_t t = 0; t < 3; ++t) {
      float sum = 0.0f;
      for (int64_t j = 0; j < 6; ++j) {
        EXPECT_TRUE(std::isfinite(routes.weight(t, j)));
        sum += routes.weight(t, j);
      }
      EXPECT_NEAR(sum, 1.0f, 1e-5f);
    }
    expect_top_k(scores_of(args, 0), 0, routes);
  }
}

TEST_P(Router, RefusesWrongArgumentsAndWritesNothing) {
  const Tensor in = random_tensor({2, 32}, 18);
  const OwnedMatrix gate = random_matrix(MatrixFormat::kBf16, 8, 32, 19);
  const Tensor bias = Tensor::f32({8});
  const auto message_of = [&](RouteArgs args, int64_t k) {
    Routes routes(2, k);
    args.ids = routes.ids(2);
    args.weights = routes.weights.view();
    const Status status = route(device_, args);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(routes.id(0, 0), Routes::kGuard);
    EXPECT_TRUE(std::isnan(routes.weight(0, 0)));
    return status.message();
  };
  EXPECT_EQ(message_of({.in = in, .gate = gate.view, .bias = bias, .ids = {}, .weights = {}}, 9),
            "route: k is 9, expected at most E=8");
  const Tensor short_bias = Tensor::f32({7});
  EXPECT_EQ(
      message_of({.in = in, .gate = gate.view, .bias = short_bias, .ids = {}, .weights = {}}, 2),
      "route: 'bias' has shape [7], expected [E=8]");
  const OwnedMatrix wide = random_matrix(MatrixFormat::kBf16, 8, 33, 20);
  EXPECT_EQ(message_of({.in = in, .gate = wide.view, .bias = bias, .ids = {}, .weights = {}}, 2),
            "route: matrix 'gate' has shape [8, 33], expected [E=8, D=32]");
}

}  // namespace
}  // namespace triax::width
