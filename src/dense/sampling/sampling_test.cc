// The sampler against a plain one that sorts everything, hand-made cases, and statistics.
#include "dense/sampling/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "dense/sampling/scan.h"

namespace triax::dense {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<float> random_logits(size_t size, uint64_t seed, double scale) {
  Rng rng(seed);
  std::vector<float> logits(size);
  for (float& x : logits) {
    x = static_cast<float>(scale * rng.normal());
  }
  return logits;
}

// Weights exp((l - max) / T) of all, 0 for what the filters drop: everything sorted, in double.
std::vector<double> filtered_weights(const SamplingParams& p, const std::vector<float>& logits) {
  const auto max = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  std::vector<double> weights(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    weights[i] =
        std::exp((static_cast<double>(logits[i]) - max) / static_cast<double>(p.temperature));
  }
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
  });
  size_t keep = p.top_k > 0 ? std::min(order.size(), static_cast<size_t>(p.top_k)) : order.size();
  double total = 0.0;
  for (size_t i = 0; i < keep; ++i) {
    total += weights[order[i]];
  }
  if (p.top_p < 1.0f) {
    double sum = 0.0;
    size_t n = 0;
    while (n < keep && sum < static_cast<double>(p.top_p) * total) {
      sum += weights[order[n++]];
    }
    keep = n;
  }
  while (keep > 1 && weights[order[keep - 1]] < static_cast<double>(p.min_p)) {
    --keep;
  }
  std::vector<double> kept(logits.size(), 0.0);
  for (size_t i = 0; i < keep; ++i) {
    kept[order[i]] = weights[order[i]];
  }
  return kept;
}

int32_t plain_draw(const SamplingParams& p, const std::vector<float>& logits, Rng& rng) {
  const std::vector<double> weights = filtered_weights(p, logits);
  const double target = rng.uniform() * std::accumulate(weights.begin(), weights.end(), 0.0);
  double sum = 0.0;
  for (size_t i = 0; i < weights.size(); ++i) {
    sum += weights[i];
    if (sum > target) {
      return static_cast<int32_t>(i);
    }
  }
  return -1;
}

int32_t draw(Sampler& sampler, const std::vector<float>& logits) {
  const Result<SampledToken> token = sampler.sample(logits);
  EXPECT_TRUE(token.ok()) << token.status().message();
  return token.ok() ? token->id : -1;
}

int32_t greedy(SamplingParams params, const std::vector<float>& logits) {
  params.temperature = 0.0f;
  Sampler sampler(params);
  return draw(sampler, logits);
}

// All tokens that many draws give.
std::set<int32_t> support(const SamplingParams& params, const std::vector<float>& logits) {
  Sampler sampler(params);
  std::set<int32_t> ids;
  for (int i = 0; i < 3000; ++i) {
    ids.insert(draw(sampler, logits));
  }
  return ids;
}

using Ids = std::set<int32_t>;

TEST(Sampler, EqualsThePlainSamplerForAllFilters) {
  for (const size_t size : {1UL, 2UL, 63UL, 1500UL}) {
    for (const double scale : {0.1, 1.0, 4.0}) {
      const std::vector<float> logits = random_logits(size, size, scale);
      for (const float temperature : {0.3f, 1.0f, 2.5f}) {
        for (const int32_t top_k : {0, 1, 5, 100, 5000}) {
          for (const float top_p : {0.01f, 0.5f, 0.95f, 0.9999f, 1.0f}) {
            for (const float min_p : {0.0f, 0.05f, 1.0f}) {
              const SamplingParams params = {.temperature = temperature,
                                             .top_k = top_k,
                                             .top_p = top_p,
                                             .min_p = min_p,
                                             .seed = 7};
              Sampler sampler(params);
              Rng rng(7);
              for (int i = 0; i < 3; ++i) {
                ASSERT_EQ(draw(sampler, logits), plain_draw(params, logits, rng))
                    << size << " " << scale << " T " << temperature << " k " << top_k << " p "
                    << top_p << " min " << min_p;
              }
            }
          }
        }
      }
    }
  }
}

TEST(Sampler, EqualsThePlainSamplerOnAWholeVocabulary) {
  for (const double scale : {0.5, 3.0, 8.0}) {
    const std::vector<float> logits = random_logits(163840, 3, scale);
    for (const auto& [k, p, m] : {std::tuple{0, 1.0f, 0.0f},
                                  {0, 0.95f, 0.0f},
                                  {0, 0.6f, 0.01f},
                                  {40, 0.95f, 0.0f},
                                  {0, 1.0f, 0.02f}}) {
      const SamplingParams params = {.top_k = k, .top_p = p, .min_p = m, .seed = 11};
      Sampler sampler(params);
      Rng rng(11);
      for (int i = 0; i < 2; ++i) {
        EXPECT_EQ(draw(sampler, logits), plain_draw(params, logits, rng)) << scale << " p " << p;
      }
    }
  }
}

TEST(Sampler, TakesTheLargestLogitAtTemperatureZero) {
  EXPECT_EQ(greedy({}, {1.0f, 5.0f, 3.0f}), 1);
  EXPECT_EQ(greedy({}, {-kInfinity, -9.0f}), 1);
  std::vector<float> ties(100, 1.0f);
  ties[37] = ties[38] = ties[99] = 2.0f;
  EXPECT_EQ(greedy({}, ties), 37);
  ties[99] = 3.0f;
  EXPECT_EQ(greedy({}, ties), 99);
  // 0 and -0 are equal.
  EXPECT_EQ(greedy({}, {-1.0f, -0.0f, 0.0f}), 1);
}

TEST(Sampler, DrawsWithTheProbabilitiesOfTheSoftmax) {
  constexpr int kDraws = 40000;
  for (const auto& [k, p, m, temperature] : {std::tuple{0, 1.0f, 0.0f, 0.8f},
                                             {20, 1.0f, 0.0f, 1.5f},
                                             {0, 0.9f, 0.0f, 1.0f},
                                             {0, 1.0f, 0.1f, 1.0f}}) {
    const SamplingParams params = {
        .temperature = temperature, .top_k = k, .top_p = p, .min_p = m, .seed = 2024};
    const std::vector<float> logits = random_logits(40, 5, 1.0);
    const std::vector<double> weights = filtered_weights(params, logits);
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    std::vector<int> counts(logits.size());
    Sampler sampler(params);
    for (int i = 0; i < kDraws; ++i) {
      ++counts[static_cast<size_t>(draw(sampler, logits))];
    }
    double chi_square = 0.0;
    double freedom = -1.0;
    for (size_t i = 0; i < counts.size(); ++i) {
      const double expected = weights[i] / total * kDraws;
      if (expected == 0.0) {
        EXPECT_EQ(counts[i], 0) << i;
        continue;
      }
      chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
      freedom += 1.0;
    }
    // Mean `freedom`, variance 2 `freedom`: four standard deviations.
    EXPECT_LT(chi_square, freedom + 4.0 * std::sqrt(2.0 * freedom)) << k << " " << p << " " << m;
    EXPECT_GT(freedom, 3.0);
  }
}

TEST(Sampler, TopKKeepsTheLowestIdsAmongEqualLogits) {
  const std::vector<float> logits = {1.0f, 2.0f, 2.0f, 1.0f, 1.0f, 2.0f};
  EXPECT_EQ(support({.top_k = 1}, logits), (Ids{1}));
  EXPECT_EQ(support({.top_k = 2}, logits), (Ids{1, 2}));
  EXPECT_EQ(support({.top_k = 4}, logits), (Ids{0, 1, 2, 5}));
  EXPECT_EQ(support({.top_k = 6}, logits), (Ids{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(support({.top_k = 1000}, logits), (Ids{0, 1, 2, 3, 4, 5}));
}

TEST(Sampler, TopPKeepsTheSmallestSetThatReachesIt) {
  const std::vector<float> equal(4, 0.25f);
  EXPECT_EQ(support({.top_p = 1e-6f}, equal), (Ids{0}));
  EXPECT_EQ(support({.top_p = 0.25f}, equal), (Ids{0}));
  EXPECT_EQ(support({.top_p = 0.26f}, equal), (Ids{0, 1}));
  EXPECT_EQ(support({.top_p = 0.5f}, equal), (Ids{0, 1}));
  EXPECT_EQ(support({.top_p = 0.75f}, equal), (Ids{0, 1, 2}));
  EXPECT_EQ(support({.top_p = 0.76f}, equal), (Ids{0, 1, 2, 3}));
  // Probabilities 1/2, 1/4, 1/8, 1/8, out of order.
  const auto half = static_cast<float>(std::log(2.0));
  const std::vector<float> halves = {half, 3.0f * half, half, 2.0f * half};
  EXPECT_EQ(support({.top_p = 0.49f}, halves), (Ids{1}));
  EXPECT_EQ(support({.top_p = 0.51f}, halves), (Ids{1, 3}));
  EXPECT_EQ(support({.top_p = 0.76f}, halves), (Ids{0, 1, 3}));
  EXPECT_EQ(support({.top_p = 0.9f}, halves), (Ids{0, 1, 2, 3}));
}

TEST(Sampler, TopPCountsWithinWhatTopKLeaves) {
  const std::vector<float> equal(8, 1.0f);
  EXPECT_EQ(support({.top_k = 4, .top_p = 0.5f}, equal), (Ids{0, 1}));
  EXPECT_EQ(support({.top_p = 0.5f}, equal), (Ids{0, 1, 2, 3}));
}

TEST(Sampler, MinPDropsWhatIsBelowItsShareOfTheLargest) {
  const auto half = static_cast<float>(std::log(2.0));
  const std::vector<float> logits = {0.0f, -half, -2.0f * half, -3.0f * half};
  EXPECT_EQ(support({.min_p = 1.0f}, logits), (Ids{0}));
  EXPECT_EQ(support({.min_p = 0.51f}, logits), (Ids{0}));
  EXPECT_EQ(support({.min_p = 0.49f}, logits), (Ids{0, 1}));
  EXPECT_EQ(support({.min_p = 0.2f}, logits), (Ids{0, 1, 2}));
  EXPECT_EQ(support({.top_k = 3, .min_p = 0.01f}, logits), (Ids{0, 1, 2}));
  // The temperature comes first: at 0.5 the shares are squared.
  EXPECT_EQ(support({.temperature = 0.5f, .min_p = 0.2f}, logits), (Ids{0, 1}));
}

TEST(Sampler, MinusInfinityForbidsAToken) {
  const std::vector<float> logits = {0.0f, -kInfinity, 0.0f, -kInfinity};
  EXPECT_EQ(support({}, logits), (Ids{0, 2}));
  EXPECT_EQ(support({.top_k = 3}, logits), (Ids{0, 2}));
  EXPECT_EQ(support({.top_p = 0.99f}, logits), (Ids{0, 2}));
  EXPECT_EQ(support({.min_p = 0.1f}, logits), (Ids{0, 2}));
  EXPECT_EQ(support({.logit_bias = {{0, -kInfinity}}}, logits), (Ids{2}));
}

TEST(Sampler, AddsBiasBeforePenalties) {
  EXPECT_EQ(greedy({.logit_bias = {{2, 100.0f}}}, {1.0f, 5.0f, 3.0f}), 2);
  // (1 + 9) / 2 = 5 > 4; penalising first would give 1 / 2 + 9 = 9.5 > 9.
  SamplingParams params = {
      .temperature = 0.0f, .repetition_penalty = 2.0f, .logit_bias = {{0, 9.0f}}};
  Sampler below(params);
  const std::vector<int32_t> prompt = {0};
  below.observe_prompt(prompt);
  EXPECT_EQ(draw(below, {1.0f, 4.0f}), 0);
  Sampler above(params);
  above.observe_prompt(prompt);
  EXPECT_EQ(draw(above, {1.0f, 9.0f}), 1);
}

TEST(Sampler, RepetitionDividesPositiveAndMultipliesNegativeLogits) {
  const SamplingParams params = {.temperature = 0.0f, .repetition_penalty = 2.0f};
  const std::vector<int32_t> prompt = {1, 1, 1, -5, 1000};
  for (const auto& [seen, other, expected] :
       {std::tuple{8.0f, 3.9f, 1}, {8.0f, 4.1f, 0}, {-2.0f, -4.1f, 1}, {-2.0f, -3.9f, 0}}) {
    Sampler sampler(params);
    sampler.observe_prompt(prompt);
    EXPECT_EQ(draw(sampler, {other, seen}), expected) << seen << " " << other;
  }
}

TEST(Sampler, RepetitionAppliesOnceHoweverOftenATokenWasSeen) {
  Sampler sampler({.temperature = 0.0f, .repetition_penalty = 2.0f});
  const std::vector<int32_t> prompt = {1, 1};
  sampler.observe_prompt(prompt);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(draw(sampler, {3.9f, 8.0f}), 1);
  }
}

TEST(Sampler, PresenceCountsOnceAndFrequencyEveryTime) {
  const std::vector<float> logits = {0.0f, 1.5f};
  Sampler presence({.temperature = 0.0f, .presence_penalty = 1.0f});
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(draw(presence, logits), 1);  // 1.5 - 1 stays above 0
  }
  Sampler frequency({.temperature = 0.0f, .frequency_penalty = 1.0f});
  // 1.5, then 0.5, then -0.5 against 0, then -0.5 against -1.
  const std::vector<int32_t> expected = {1, 1, 0, 1, 0};
  for (const int32_t id : expected) {
    EXPECT_EQ(draw(frequency, logits), id);
  }
}

TEST(Sampler, PromptTokensDoNotCountForPresenceAndFrequency) {
  Sampler sampler({.temperature = 0.0f, .presence_penalty = 2.0f, .frequency_penalty = 2.0f});
  const std::vector<int32_t> prompt = {1, 1, 1};
  sampler.observe_prompt(prompt);
  EXPECT_EQ(draw(sampler, {0.0f, 0.5f}), 1);
  EXPECT_EQ(draw(sampler, {0.0f, 0.5f}), 0);
}

TEST(Sampler, ReportsLogProbabilitiesOfTheRawLogits) {
  for (const size_t size : {1UL, 17UL, 1025UL, 163840UL}) {
    std::vector<float> logits = random_logits(size, 9, 5.0);
    for (float& x : logits) {
      x += 1000.0f;
    }
    double sum = 0.0;
    for (const float x : logits) {
      sum += std::exp(static_cast<double>(x) - 1000.0);
    }
    Sampler sampler(
        {.temperature = 0.4f, .top_k = 3, .repetition_penalty = 1.5f, .top_logprobs = 20});
    const Result<SampledToken> token = sampler.sample(logits);
    ASSERT_TRUE(token.ok());
    const auto logprob = [&](int32_t id) {
      return static_cast<double>(logits[static_cast<size_t>(id)]) - 1000.0 - std::log(sum);
    };
    // Half an ulp of the result and the sum's own 1e-11.
    const auto bound = [&](double x) { return std::fabs(x) * 0x1.0p-24 + 1e-10; };
    EXPECT_NEAR(static_cast<double>(token->logprob), logprob(token->id), bound(logprob(token->id)));
    ASSERT_EQ(token->top.size(), std::min<size_t>(20, size));
    for (size_t i = 0; i < token->top.size(); ++i) {
      const double expected = logprob(token->top[i].id);
      EXPECT_NEAR(static_cast<double>(token->top[i].logprob), expected, bound(expected));
    }
  }
}

TEST(Sampler, OrdersAlternativesByLogitThenId) {
  std::vector<float> logits = {1.0f, 3.0f, 2.0f, 3.0f, -kInfinity, 2.0f, 2.0f};
  for (int32_t count = 0; count <= 9; ++count) {
    Sampler sampler({.top_logprobs = count});
    const Result<SampledToken> token = sampler.sample(logits);
    ASSERT_TRUE(token.ok());
    std::vector<int32_t> expected = {1, 3, 2, 5, 6, 0};  // the forbidden one is no alternative
    expected.resize(std::min<size_t>(expected.size(), static_cast<size_t>(count)));
    std::vector<int32_t> found;
    for (const TokenLogprob& entry : token->top) {
      found.push_back(entry.id);
    }
    EXPECT_EQ(found, expected);
  }
}

TEST(Sampler, RefusesUnusableLogitsAndForgetsTheAttempt) {
  Sampler sampler({.temperature = 1.0f, .frequency_penalty = 0.5f, .seed = 4});
  Sampler undisturbed({.temperature = 1.0f, .frequency_penalty = 0.5f, .seed = 4});
  const std::vector<float> good = random_logits(100, 6, 1.0);
  for (const auto& [logits, message] :
       {std::pair<std::vector<float>, const char*>{{}, "sample: there are no logits"},
        {{0.0f, kNaN}, "sample: logit of token 1 is nan, expected a finite number or -inf"},
        {{0.0f, 1.0f, kInfinity},
         "sample: logit of token 2 is inf, expected a finite number or "
         "-inf"},
        {{-kInfinity, -kInfinity}, "sample: every logit is -inf"}}) {
    const Result<SampledToken> token = sampler.sample(logits);
    ASSERT_FALSE(token.ok());
    EXPECT_EQ(token.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(token.status().message(), message);
    EXPECT_EQ(draw(sampler, good), draw(undisturbed, good));
  }
  std::vector<float> late = random_logits(163840, 6, 1.0);
  late[163839] = kNaN;
  EXPECT_FALSE(sampler.sample(late).ok());
}

TEST(Sampler, RefusesABiasThatLeavesNothingOrNamesNoToken) {
  Sampler nothing({.logit_bias = {{0, -kInfinity}, {1, -kInfinity}}});
  const std::vector<float> logits = {1.0f, 2.0f};
  EXPECT_EQ(nothing.sample(logits).status().message(), "sample: every adjusted logit is -inf");
  Sampler outside({.logit_bias = {{2, 1.0f}}});
  EXPECT_EQ(outside.sample(logits).status().message(),
            "sample: logit_bias names token 2, the vocabulary has 2");
}

TEST(Sampler, RepeatsItselfForOneSeedAndNotForAnother) {
  const std::vector<float> logits = random_logits(5000, 8, 1.0);
  const auto sequence = [&](uint64_t seed) {
    Sampler sampler({.top_p = 0.95f, .seed = seed});
    std::vector<int32_t> ids;
    for (int i = 0; i < 50; ++i) {
      ids.push_back(draw(sampler, logits));
    }
    return ids;
  };
  EXPECT_EQ(sequence(1), sequence(1));
  EXPECT_NE(sequence(1), sequence(2));
}

TEST(Sampler, StandsExtremeLogitsAndTemperatures) {
  const std::vector<float> logits = {-3e38f, 3e38f, 0.0f, 2.9e38f};
  for (const float temperature : {1e-45f, 1e-6f, 1.0f, 1e6f}) {
    for (const float top_p : {0.5f, 1.0f}) {
      EXPECT_EQ(support({.temperature = temperature, .top_p = top_p}, logits), (Ids{1}));
    }
  }
  const std::vector<float> flat = {-1.0f, 1.0f, 0.5f};
  EXPECT_EQ(support({.temperature = 3e38f}, flat), (Ids{0, 1, 2}));
  EXPECT_EQ(support({.temperature = 3e38f, .top_p = 0.6f}, flat), (Ids{1, 2}));
}

TEST(SamplingParams, NamesTheFieldOutOfRange) {
  const auto message = [](const SamplingParams& p) { return p.validate().message(); };
  EXPECT_TRUE(SamplingParams().validate().ok());
  EXPECT_EQ(message({.temperature = -1.0f}),
            "sampling: temperature is -1, expected a finite number, at least 0");
  EXPECT_EQ(message({.top_p = 0.0f}), "sampling: top_p is 0, expected above 0 and at most 1");
  for (const SamplingParams& bad : {SamplingParams{.temperature = kNaN},
                                    {.temperature = kInfinity},
                                    {.top_k = -1},
                                    {.top_p = 1.5f},
                                    {.top_p = kNaN},
                                    {.min_p = -0.1f},
                                    {.min_p = 1.1f},
                                    {.min_p = kNaN},
                                    {.repetition_penalty = 0.0f},
                                    {.repetition_penalty = kNaN},
                                    {.presence_penalty = 2.1f},
                                    {.presence_penalty = kNaN},
                                    {.frequency_penalty = -2.1f},
                                    {.top_logprobs = 21},
                                    {.top_logprobs = -1},
                                    {.logit_bias = {{-1, 0.0f}}},
                                    {.logit_bias = {{1, kNaN}}},
                                    {.logit_bias = {{1, kInfinity}}}}) {
    EXPECT_EQ(bad.validate().code(), StatusCode::kInvalidArgument);
  }
}

std::vector<const internal::Scan*> scans() {
  std::vector<const internal::Scan*> all = {&internal::scan_portable()};
  for (const Isa isa : supported_isas()) {
    if (isa == Isa::kAvx2) {
      all.push_back(&internal::scan_avx2());
    } else if (isa == Isa::kAvx512) {
      all.push_back(&internal::scan_avx512());
    }
  }
  return all;
}

TEST(Scan, WeighsWithinItsBoundAndWithTheSameBitsOnEveryInstructionSet) {
  for (const int64_t size : {1, 15, 16, 17, 1023, 1024, 1025, 5000}) {
    std::vector<float> logits = random_logits(static_cast<size_t>(size), 12, 100.0);
    logits[static_cast<size_t>(size / 2)] = -kInfinity;
    logits[static_cast<size_t>(size - 1)] = 500.0f;
    std::vector<double> first;
    double first_sum = 0.0;
    for (const internal::Scan* scan : scans()) {
      std::vector<double> weights(static_cast<size_t>(size) + 1, -1.0);
      std::vector<double> sums(static_cast<size_t>(internal::scan_blocks(size)) + 1, -1.0);
      const double sum = scan->weigh(logits.data(), size, 500.0f, 0.9, weights.data(), sums.data());
      EXPECT_EQ(scan->weigh(logits.data(), size, 500.0f, 0.9, nullptr, nullptr), sum);
      EXPECT_EQ(weights.back(), -1.0);
      EXPECT_EQ(sums.back(), -1.0);
      for (size_t i = 0; i < logits.size(); ++i) {
        const double x = (static_cast<double>(logits[i]) - 500.0) * 0.9;
        const double expected = x < -700.0 ? 0.0 : std::exp(x);
        ASSERT_NEAR(weights[i], expected, 1e-11 * expected) << x;
      }
      if (first.empty()) {
        first = weights;
        first_sum = sum;
      }
      EXPECT_EQ(weights, first);
      EXPECT_EQ(sum, first_sum);
    }
  }
}

TEST(Scan, FindsTheLargestWhereverItIs) {
  for (const internal::Scan* scan : scans()) {
    for (const int64_t size : {1, 15, 16, 17, 100}) {
      for (int64_t place = 0; place < size; ++place) {
        std::vector<float> logits(static_cast<size_t>(size), -5.0f);
        logits[static_cast<size_t>(place)] = -1.0f;
        const internal::Extent extent = scan->extent(logits.data(), size);
        EXPECT_TRUE(extent.valid);
        EXPECT_EQ(extent.max, -1.0f);
        EXPECT_EQ(scan->first_equal(logits.data(), size, -1.0f), place);
        EXPECT_EQ(scan->first_equal(logits.data(), size, 2.0f), size);
        for (const float bad : {kNaN, kInfinity}) {
          logits[static_cast<size_t>(place)] = bad;
          EXPECT_FALSE(scan->extent(logits.data(), size).valid) << size << " " << place;
        }
      }
    }
  }
}

TEST(Sampling, OnlyAllowedIdsAreDrawnWithTheSameProportions) {
  std::vector<float> logits(200);
  for (size_t i = 0; i < logits.size(); ++i) {
    logits[i] = static_cast<float>(i % 13) * 0.3f;
  }
  std::vector<uint64_t> mask = {0x8000000000000011U, ~uint64_t{0}};  // 0, 4, 63, 64 to 127
  const auto allowed = [&](int32_t id) { return id == 0 || id == 4 || (id >= 63 && id < 128); };
  std::vector<float> forbidden = logits;
  for (int32_t id = 0; id < 200; ++id) {
    if (!allowed(id)) {
      forbidden[static_cast<size_t>(id)] = -std::numeric_limits<float>::infinity();
    }
  }
  for (const SamplingParams& params :
       {SamplingParams{.temperature = 0.0f}, SamplingParams{.temperature = 0.7f, .top_k = 20},
        SamplingParams{.top_p = 0.9f, .presence_penalty = 0.5f}}) {
    Sampler masked(params);
    Sampler truth(params);
    masked.allow_only(mask);
    EXPECT_FALSE(masked.draws_from_raw());
    for (int i = 0; i < 200; ++i) {
      const Result<SampledToken> a = masked.sample(logits);
      const Result<SampledToken> b = truth.sample(forbidden);
      ASSERT_TRUE(a.ok() && b.ok());
      ASSERT_EQ(a->id, b->id);
      ASSERT_TRUE(allowed(a->id));
    }
  }
  Sampler none(SamplingParams{});
  std::fill(mask.begin(), mask.end(), 0);
  none.allow_only(mask);
  EXPECT_FALSE(none.sample(logits).ok());
  none.allow_only({});
  EXPECT_TRUE(none.sample(logits).ok());
}

}  // namespace
}  // namespace triax::dense
