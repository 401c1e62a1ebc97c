// Accuracy of kda on every backend against the oracle in double, within computed bounds.
#include <gtest/gtest.h>

#include "sequence/kda/kda_case.h"

namespace triax::sequence {
namespace {

using testing::bitwise_equal;
using testing::test_devices;
using testing::TestDevice;

class Kda : public ::testing::TestWithParam<TestDevice> {
 protected:
  void expect_within_bounds(const KdaCase& c) {
    EXPECT_EQ(compare(run(device_, c), oracle(c), c), "");
  }
  void fill(Tensor& x, float value) { std::fill_n(x.data<float>(), x.view().elements(), value); }

  OwnedDevice device_ = GetParam().open();
};

TEST_P(Kda, MatchesTheRecurrenceForAllRulesAndGates) {
  for (Rule rule : {Rule::kLinear, Rule::kDelta, Rule::kGatedDelta, Rule::kKda}) {
    for (DecayGate gate : {DecayGate::kBounded, DecayGate::kSoftplus}) {
      SCOPED_TRACE(static_cast<int>(rule) * 10 + static_cast<int>(gate));
      expect_within_bounds(random_case({.rule = rule, .gate = gate, .lengths = {150, 1}}, 1));
    }
  }
}

TEST_P(Kda, MatchesForHeadSizesThatAreNoMultipleOfTheLanes) {
  const int64_t sizes[][2] = {{16, 16}, {60, 100}, {100, 60},  {1, 1},   {7, 63},
                              {63, 7},  {129, 65}, {256, 256}, {128, 64}};
  for (const auto& size : sizes) {
    SCOPED_TRACE(size[0]);
    expect_within_bounds(
        random_case({.heads = 1, .keys = size[0], .values = size[1], .lengths = {70, 1}}, 2));
  }
}

TEST_P(Kda, MatchesForEveryLengthUpTo130) {  // faults 8, 10
  KdaShape shape{.heads = 1, .keys = 32, .values = 32};
  for (int64_t length = 0; length <= 130; ++length) {
    shape.lengths.push_back(length);
  }
  expect_within_bounds(random_case(shape, 3));
}

TEST_P(Kda, MatchesWhenASequenceStartsInsideAChunk) {
  KdaShape shape{.heads = 1, .keys = 32, .values = 48};
  for (int64_t start : {0, 1, 15, 16, 17, 40, 62, 63, 64, 1000001}) {
    shape.starts.push_back(start);
    shape.lengths.push_back(80);
  }
  expect_within_bounds(random_case(shape, 4));
}

TEST_P(Kda, AllGatesAtTheBoundStayExact) {  // fault 1
  KdaCase c = random_case({.lengths = {130}}, 5);
  fill(c.decay_logit, 40.0f);
  expect_within_bounds(c);
}

TEST_P(Kda, GatesAlternatingBetweenTheBoundAndZeroStayExact) {  // fault 1
  KdaCase c = random_case({.lengths = {130, 130}}, 6);
  fill(c.dt_bias, 0.0f);
  fill(c.a_log, 0.0f);
  for (int64_t i = 0; i < c.decay_logit.view().elements(); ++i) {
    const int64_t t = i / (c.heads * c.keys);
    const int64_t period = t < 130 ? 1 : 20;  // every token; and whole blocks
    c.decay_logit.data<float>()[i] = t / period % 2 == 0 ? 90.0f : -90.0f;
  }
  expect_within_bounds(c);
}

TEST_P(Kda, TheUnboundedGateNeitherOverflowsNorTruncates) {  // fault 2
  KdaCase c = random_case({.gate = DecayGate::kSoftplus, .lengths = {130, 130, 130}}, 7);
  fill(c.dt_bias, 0.0f);
  fill(c.a_log, 0.0f);
  for (int64_t i = 0; i < c.decay_logit.view().elements(); ++i) {
    const int64_t t = i / (c.heads * c.keys);
    float& z = c.decay_logit.data<float>()[i];
    if (t < 130) {
      z = 20.0f;
    } else if (t < 260) {
      z = 1000.0f;  // g = -1000 at every token
    } else {
      z = t % 130 < 20 ? 1000.0f : -8.0f;  // slow decay after a jump that a running sum would lose
    }
  }
  expect_within_bounds(c);
}

TEST_P(Kda, AHugeRateSaturatesTheGate) {
  for (DecayGate gate : {DecayGate::kBounded, DecayGate::kSoftplus}) {
    KdaCase c = random_case({.gate = gate, .lengths = {70}}, 8);
    fill(c.a_log, 100.0f);
    c.decay_logit.data<float>()[5] = -c.dt_bias.data<float>()[5];  // 0 * exp(100)
    expect_within_bounds(c);
  }
}

TEST_P(Kda, RepeatedKeysWithBetaNearOneStayExact) {
  KdaCase c = random_case({.rule = Rule::kDelta, .lengths = {200}}, 9);
  fill(c.beta_logit, 18.0f);
  for (int64_t t = 1; t < 200; ++t) {
    std::copy_n(c.k.data<float>(), c.heads * c.keys, c.k.data<float>() + t * c.heads * c.keys);
  }
  expect_within_bounds(c);
}

TEST_P(Kda, LargeValuesThatNearlyCancelKeepTheirDifference) {  // fault 5
  KdaCase c = random_case({.rule = Rule::kDelta, .lengths = {66}}, 10);
  fill(c.states, 0.0f);
  fill(c.beta_logit, 20.0f);
  for (int64_t i = 0; i < c.k.view().elements(); ++i) {  // one key for all tokens, one query
    c.k.data<float>()[i] = i % c.keys == 3 ? 1.0f : 0.0f;
    c.q.data<float>()[i] = c.k.data<float>()[i];
  }
  for (int64_t i = 0; i < c.v.view().elements(); ++i) {
    c.v.data<float>()[i] = i / (c.heads * c.values) % 2 == 0 ? 4096.0f : 4098.0f;
  }
  const KdaOracle truth = oracle(c);
  EXPECT_EQ(compare(run(device_, c), truth, c), "");
  EXPECT_LT(truth.out_bound[0], 0.1 / std::sqrt(128.0)) << "the bound must tell 4096 from 4098";
}

TEST_P(Kda, BetaKeepsFloat32) {  // fault 6
  KdaCase c = random_case({.rule = Rule::kDelta, .lengths = {128}}, 11);
  fill(c.beta_logit, 0.495f);  // sigmoid: 0.6213; in bf16: 0.6211
  const KdaOracle truth = oracle(c);
  EXPECT_EQ(compare(run(device_, c), truth, c), "");
  KdaCase rounded = random_case({.rule = Rule::kDelta, .lengths = {128}}, 11);
  const double beta = to_float(to_bf16(1.0f / (1.0f + std::exp(-0.495f))));
  fill(rounded.beta_logit, static_cast<float>(std::log(beta / (1.0 - beta))));
  EXPECT_NE(compare(run(device_, rounded), truth, c), "") << "the bound must see a rounded beta";
}

TEST_P(Kda, SlowDecayOver4096TokensDoesNotDrift) {  // fault 7
  KdaCase c = random_case(
      {.gate = DecayGate::kSoftplus, .heads = 1, .keys = 16, .values = 16, .lengths = {4096, 4096}},
      12);
  // exp(-rate * log 2) = 0.99992 in every channel.
  fill(c.decay_logit, 0.0f);
  fill(c.dt_bias, 0.0f);
  fill(c.a_log, static_cast<float>(std::log(-std::log(0.99992) / std::log(2.0))));
  fill(c.beta_logit, -6.0f);  // little is written: what is there must last
  const KdaOracle truth = oracle(c);
  EXPECT_EQ(compare(run(device_, c), truth, c), "");
  fill(c.a_log, -30.0f);  // what a decay in bf16 makes of it: 1
  EXPECT_NE(compare(run(device_, c), truth, c), "") << "the bound must see a decay of 1";
}

TEST_P(Kda, TokenByTokenOver16384TokensDoesNotDrift) {  // fault 21
  KdaCase c = random_case({.heads = 1, .keys = 8, .values = 8, .lengths = {16384}}, 13);
  fill(c.a_log, -6.0f);
  const KdaOracle truth = oracle(c);
  KdaResult result{Tensor::f32({16384, 1, 8}), copy_of(c.states)};
  KdaArgs args = c.args(result.states, result.out);
  const int64_t one[] = {0, 1};
  args.cu_seqlens = one;
  for (int64_t t = 0; t < 16384; ++t) {
    args.q = c.q.view().rows(t, t + 1);
    args.k = c.k.view().rows(t, t + 1);
    args.v = c.v.view().rows(t, t + 1);
    args.decay_logit = c.decay_logit.view().rows(t, t + 1);
    args.beta_logit = c.beta_logit.view().rows(t, t + 1);
    args.out = result.out.view().rows(t, t + 1);
    args.starts = {&t, 1};
    ASSERT_TRUE(mirrored(device_, args).ok());
  }
  EXPECT_EQ(compare(result, truth, c), "");
}

TEST_P(Kda, PrefillThenDecodeIsPrefillOfOneMore) {
  for (int64_t length : {1, 15, 16, 63, 64, 65, 100}) {
    SCOPED_TRACE(length);
    KdaCase c = random_case({.lengths = {length + 1}}, 14);
    const KdaOracle truth = oracle(c);
    KdaResult result{Tensor::f32({length + 1, c.heads, c.values}), Tensor()};
    const KdaResult head = run(device_, c.part(0, 0, length, c.states));
    const KdaResult tail = run(device_, c.part(0, length, length + 1, head.states));
    std::copy_n(head.out.data<float>(), head.out.view().elements(), result.out.data<float>());
    std::copy_n(tail.out.data<float>(), tail.out.view().elements(),
                result.out.data<float>() + head.out.view().elements());
    result.states = copy_of(tail.states);
    EXPECT_EQ(compare(result, truth, c), "");
  }
}

TEST_P(Kda, TinyAndHugeInputsAreNormalised) {
  KdaCase c = random_case({.lengths = {70}}, 15);
  for (int64_t i = 0; i < c.q.view().elements(); ++i) {
    const int64_t t = i / (c.heads * c.keys);
    const float scale = t % 3 == 0 ? 1e-12f : t % 3 == 1 ? 1e15f : 1e-3f;
    c.q.data<float>()[i] *= scale;
    c.k.data<float>()[i] *= scale;
  }
  std::fill_n(c.k.data<float>(), c.keys, 0.0f);  // an all-zero key
  expect_within_bounds(c);
}

INSTANTIATE_TEST_SUITE_P(Devices, Kda, ::testing::ValuesIn(test_devices()),
                         [](const auto& tested) { return tested.param.name(); });

}  // namespace
}  // namespace triax::sequence
