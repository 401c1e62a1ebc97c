// What kda promises bit for bit: any batch, thread count, later tokens, split on the grid, repeat.
#include <gtest/gtest.h>

#include "sequence/kda/kda_case.h"

namespace triax::sequence {
namespace {

using testing::bitwise_equal;
using testing::random_tensor;
using testing::test_devices;
using testing::TestDevice;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class KdaInvariance : public ::testing::TestWithParam<TestDevice> {
 protected:
  OwnedDevice device_ = GetParam().open();
};

std::vector<int64_t> awkward_lengths() { return {1, 2, 15, 16, 17, 63, 64, 65, 0, 127, 129}; }

TEST_P(KdaInvariance, ASequenceIsTheSameAloneAndInAnyBatch) {  // faults 8, 18
  const KdaCase c = random_case({.lengths = awkward_lengths()}, 20);
  const KdaResult whole = run(device_, c);
  for (size_t n = 0; n < c.slots.size(); ++n) {
    SCOPED_TRACE(n);
    const auto i = static_cast<int64_t>(n);
    const int64_t length = c.cu_seqlens[n + 1] - c.cu_seqlens[n];
    const KdaCase alone = c.part(i, 0, length, c.states.view().rows(i, i + 1));
    const KdaResult result = run(device_, alone);
    EXPECT_TRUE(
        bitwise_equal(result.out, whole.out.view().rows(c.cu_seqlens[n], c.cu_seqlens[n + 1])));
    EXPECT_TRUE(bitwise_equal(result.states, whole.states.view().rows(i, i + 1)));
  }
}

TEST_P(KdaInvariance, TheThreadCountDoesNotMatter) {
  const KdaCase c =
      random_case({.heads = 3, .keys = 48, .values = 64, .lengths = awkward_lengths()}, 21);
  const KdaResult one = run(device_, c);
  for (int threads : {1, 2, 4}) {
    OwnedDevice other = GetParam().open(threads);
    const KdaResult result = run(other, c);
    EXPECT_TRUE(bitwise_equal(one.out, result.out));
    EXPECT_TRUE(bitwise_equal(one.states, result.states));
  }
}

TEST_P(KdaInvariance, HowHeadsAreGroupedInDecodeDoesNotMatter) {
  const KdaCase c =
      random_case({.heads = 13, .keys = 48, .values = 33, .lengths = {1, 1, 0, 1}}, 26);
  const KdaResult first = run(device_, c);
  for (int threads : {1, 2, 3, 8}) {  // groups of 8, 6, 4 and 1 of 52 heads
    OwnedDevice other = GetParam().open(threads);
    const KdaResult result = run(other, c);
    EXPECT_TRUE(bitwise_equal(first.out, result.out));
    EXPECT_TRUE(bitwise_equal(first.states, result.states));
  }
}

TEST_P(KdaInvariance, AHundredRunsGiveTheSameBits) {  // faults 8, 11
  const KdaCase c =
      random_case({.heads = 1, .keys = 16, .values = 16, .lengths = awkward_lengths()}, 22);
  const KdaResult first = run(device_, c);
  for (int i = 0; i < 100; ++i) {
    const KdaResult again = run(device_, c);
    ASSERT_TRUE(bitwise_equal(first.out, again.out));
    ASSERT_TRUE(bitwise_equal(first.states, again.states));
  }
}

TEST_P(KdaInvariance, OutputsDoNotDependOnLaterTokens) {  // fault 4
  for (int64_t start : {0, 40}) {
    const KdaCase c = random_case({.lengths = {150}, .starts = {start}}, 23);
    const KdaResult whole = run(device_, c);
    for (int64_t length : {1, 2, 3, 16, 17, 23, 24, 25, 50, 64, 65, 66, 100, 128, 149}) {
      SCOPED_TRACE(length);
      const KdaResult prefix = run(device_, c.part(0, 0, length, c.states));
      EXPECT_TRUE(bitwise_equal(prefix.out, whole.out.view().rows(0, length)));
      KdaCase poisoned = c.part(0, 0, 150, c.states);
      for (Tensor* x : {&poisoned.q, &poisoned.k, &poisoned.v, &poisoned.decay_logit}) {
        float* data = x->data<float>();
        std::fill(data + length * c.heads * x->size(2), data + x->view().elements(), kNan);
      }
      EXPECT_TRUE(bitwise_equal(run(device_, poisoned).out.view().rows(0, length),
                                whole.out.view().rows(0, length)));
    }
  }
}

TEST_P(KdaInvariance, ASplitOnTheGridGivesTheSameBits) {  // fault 4
  for (Rule rule : {Rule::kLinear, Rule::kDelta, Rule::kGatedDelta, Rule::kKda}) {
    for (int64_t start : {0, 30}) {
      const KdaCase c = random_case({.rule = rule, .lengths = {195}, .starts = {start}}, 24);
      const KdaResult whole = run(device_, c);
      Tensor state = copy_of(c.states);
      for (int64_t begin = 0; begin < 195;) {
        const int64_t end = std::min<int64_t>(195, (start + begin) / 64 * 64 + 64 - start);
        const KdaResult piece = run(device_, c.part(0, begin, end, state));
        EXPECT_TRUE(bitwise_equal(piece.out, whole.out.view().rows(begin, end)));
        state = copy_of(piece.states);
        begin = end;
      }
      EXPECT_TRUE(bitwise_equal(state, whole.states));
    }
  }
}

TEST_P(KdaInvariance, ARequestedStateIsTheFinalStateOfARunCutThere) {  // fault 16
  KdaCase c = random_case({.lengths = {130, 64, 200}, .starts = {0, 64, 10}, .spare_slots = 4}, 25);
  c.requests = {{0, 64, 5}, {0, 128, 3}, {1, 128, 6}, {2, 192, 4}};
  const KdaResult whole = run(device_, c);
  for (const KdaStateRequest& r : c.requests) {
    SCOPED_TRACE(r.slot);
    const KdaCase cut =
        c.part(r.sequence, 0, r.position - c.starts[static_cast<size_t>(r.sequence)],
               c.states.view().rows(r.sequence, r.sequence + 1));
    EXPECT_TRUE(
        bitwise_equal(run(device_, cut).states, whole.states.view().rows(r.slot, r.slot + 1)));
  }
  c.requests.clear();
  EXPECT_TRUE(bitwise_equal(run(device_, c).out, whole.out));
}

TEST_P(KdaInvariance, OneDecodeStepIsTheSameInAnyBatchAndAfterAnyPrefill) {
  const KdaCase c = random_case({.heads = 4, .lengths = std::vector<int64_t>(9, 1)}, 26);
  const KdaResult whole = run(device_, c);
  for (int64_t n = 0; n < 9; ++n) {
    const KdaResult alone = run(device_, c.part(n, 0, 1, c.states.view().rows(n, n + 1)));
    EXPECT_TRUE(bitwise_equal(alone.out, whole.out.view().rows(n, n + 1)));
    EXPECT_TRUE(bitwise_equal(alone.states, whole.states.view().rows(n, n + 1)));
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, KdaInvariance, ::testing::ValuesIn(test_devices()),
                         [](const auto& tested) { return tested.param.name(); });

}  // namespace
}  // namespace triax::sequence
