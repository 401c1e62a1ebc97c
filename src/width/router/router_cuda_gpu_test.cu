#include <gtest/gtest.h>

#include <numeric>

#include "dense/linear/weights_testing.h"
#include "testing/gpu.h"
#include "width/router/router_cuda.h"

namespace triax::width {
namespace {

using dense::GpuMatrix;
using testing::GpuArray;

size_t at(int64_t i) { return static_cast<size_t>(i); }

struct Routes {
  std::vector<int32_t> ids;    // [T, k]
  std::vector<float> weights;  // [T, k]
};

struct Options {
  int64_t count;
  bool renormalize;
  RouteWeights from;
  bool fast = false;  // the form for Hopper
};

constexpr float kScaling = 2.5f;

Routes run(const GpuMatrix& gate, const std::vector<float>& x, const std::vector<float>& bias,
           const Options& options) {
  const int64_t tokens = static_cast<int64_t>(x.size()) / gate.view().cols;
  GpuArray<float> in(x), gpu_bias(bias), logits(at(tokens * gate.view().rows)),
      weights(at(tokens * options.count));
  GpuArray<int32_t> ids(at(tokens * options.count));
  const RouterLogitsCuda router = {in.data(), gate.view().cols, tokens, gate.view(), logits.data()};
  const auto fast = options.fast ? triax_cuda_router_logits_sm90 : triax_cuda_router_logits;
  EXPECT_EQ(fast(&router, nullptr), 0);
  const RouterSelectCuda select = {
      .logits = logits.data(),
      .tokens = tokens,
      .experts = gate.view().rows,
      .choice = {gpu_bias.data(), options.renormalize, kScaling, options.from},
      .count = options.count,
      .ids = ids.data(),
      .ids_stride = options.count,
      .weights = weights.data(),
      .weights_stride = options.count};
  EXPECT_EQ(triax_cuda_router_select(&select, nullptr), 0);
  testing::gpu_check(cudaDeviceSynchronize(), "route");
  EXPECT_TRUE(ids.guards_intact() && weights.guards_intact() && logits.guards_intact());
  return {ids.get(), weights.get()};
}

/// One token in double: scores, then the order of keys.
void expect_token(const GpuMatrix& gate, const float* x, const std::vector<float>& bias,
                  const Options& options, const int32_t* ids, const float* weights) {
  const int64_t experts = gate.view().rows;
  std::vector<double> score(at(experts)), key(at(experts));
  for (int64_t e = 0; e < experts; ++e) {
    double logit = 0.0;
    for (int64_t d = 0; d < gate.view().cols; ++d) {
      logit += gate.at(e, d) * x[d];
    }
    score[at(e)] = 1.0 / (1.0 + std::exp(-logit));
    key[at(e)] = score[at(e)] + bias[at(e)];
  }
  std::vector<int32_t> order(at(experts));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return key[at(a)] > key[at(b)]; });
  const std::vector<double>& from = options.from == RouteWeights::kBiased ? key : score;
  double sum = 0.0;
  for (int64_t j = 0; j < options.count; ++j) {
    // Where float32 cannot tell two keys apart either may come first.
    ASSERT_NEAR(key[at(ids[j])], key[at(order[at(j)])], 2e-6);
    sum += from[at(ids[j])];
  }
  for (int64_t j = 0; j < options.count; ++j) {
    const double weight = from[at(ids[j])] / (options.renormalize ? sum : 1.0) * kScaling;
    ASSERT_NEAR(weights[j], weight, 1e-5);
  }
  std::vector<int32_t> distinct(ids, ids + options.count);
  std::sort(distinct.begin(), distinct.end());
  ASSERT_TRUE(std::adjacent_find(distinct.begin(), distinct.end()) == distinct.end());
}

TEST(RouteCuda, ChoosesAsTheReference) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  for (const MatrixFormat format : dense::kAllFormats) {
    for (const auto& [experts, count] :
         {std::pair<int64_t, int64_t>{1, 1}, {16, 4}, {65, 65}, {896, 16}, {1030, 5}}) {
      const GpuMatrix gate(format, experts, 96, 1);
      const auto bias = testing::random_floats(at(experts), 3, 0.1f);
      const auto x = testing::random_floats(19 * 96, 2, 0.1f);
      for (const Options& options : {Options{count, true, RouteWeights::kUnbiased},
                                     Options{count, false, RouteWeights::kBiased}}) {
        const Routes routes = run(gate, x, bias, options);
        for (int64_t t = 0; t < 19; ++t) {
          expect_token(gate, &x[at(t * 96)], bias, options, &routes.ids[at(t * count)],
                       &routes.weights[at(t * count)]);
        }
      }
    }
  }
}

TEST(RouteCuda, TensorCoresChooseAsTheReference) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  for (const auto& [experts, cols, tokens] : {std::tuple<int64_t, int64_t, int64_t>{1, 128, 1},
                                              {65, 384, 19},
                                              {256, 2304, 64},
                                              {300, 256, 65},
                                              {896, 7168, 3},
                                              {256, 256, 1031}}) {
    const GpuMatrix gate(MatrixFormat::kBf16, experts, cols, 1);
    const auto bias = testing::random_floats(at(experts), 3, 0.1f);
    const auto x = testing::random_floats(at(tokens * cols), 2, 0.1f);
    const Options options = {std::min<int64_t>(experts, 16), true, RouteWeights::kUnbiased, true};
    const Routes routes = run(gate, x, bias, options);
    for (int64_t t = 0; t < tokens; ++t) {
      expect_token(gate, &x[at(t * cols)], bias, options, &routes.ids[at(t * options.count)],
                   &routes.weights[at(t * options.count)]);
    }
  }
}

TEST(RouteCuda, TiesGoToTheLowerIdAndNanToTheEnd) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  const GpuMatrix gate(MatrixFormat::kF32, 70, 8, 1);
  const std::vector<float> zeros(8, 0.0f);
  std::vector<float> bias(70, 0.0f);
  bias[50] = 1.0f;
  bias[3] = NAN;
  const Options options = {70, true, RouteWeights::kUnbiased};
  std::vector<int32_t> expected = {50};
  for (int32_t e = 0; e < 70; ++e) {
    if (e != 50 && e != 3) {
      expected.push_back(e);
    }
  }
  expected.push_back(3);
  EXPECT_EQ(run(gate, zeros, bias, options).ids, expected);
}

TEST(RouteCuda, DoesNotDependOnTheNumberOfTokens) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  for (const bool fast : {false, true}) {
    const int64_t tokens = fast ? 1040 : 13;
    const GpuMatrix gate(MatrixFormat::kBf16, 264, 512, 1);
    const auto bias = testing::random_floats(264, 3, 0.1f);
    const auto x = testing::random_floats(at(tokens * 512), 2, 0.1f);
    const Options options = {8, true, RouteWeights::kUnbiased, fast};
    const Routes all = run(gate, x, bias, options);
    for (int64_t t = 0; t < tokens; t += fast ? 13 : 1) {
      const int64_t count = std::min<int64_t>(t % 5 == 0 ? 21 : 1, tokens - t);
      const std::vector<float> rows(x.begin() + t * 512, x.begin() + (t + count) * 512);
      const Routes some = run(gate, rows, bias, options);
      EXPECT_TRUE(std::equal(some.ids.begin(), some.ids.end(), all.ids.begin() + t * 8));
      EXPECT_TRUE(
          std::equal(some.weights.begin(), some.weights.end(), all.weights.begin() + t * 8));
    }
  }
}

}  // namespace
}  // namespace triax::width
