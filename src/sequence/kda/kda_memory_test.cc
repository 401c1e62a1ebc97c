// What kda reads and writes: strides, guards, slots, edges; and the arguments it refuses.
#include <gtest/gtest.h>

#include "sequence/kda/kda_case.h"

namespace triax::sequence {
namespace {

using testing::bitwise_equal;
using testing::GuardedOutput;
using testing::random_tensor;
using testing::test_devices;
using testing::TestDevice;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class KdaMemory : public ::testing::TestWithParam<TestDevice> {
 protected:
  OwnedDevice device_ = GetParam().open();
};

/// The same numbers with every token row `pad` floats longer, the rest NaN, `shift` floats in.
struct Strided {
  Strided(ConstTensorView x, int64_t pad, int64_t shift) {
    const int64_t row = x.size(1) * x.size(2);
    memory = Tensor::f32({x.size(0) * (row + pad) + shift + 16});
    float* data = memory.data<float>() + shift;
    std::fill_n(memory.data<float>(), memory.size(0), kNan);
    for (int64_t t = 0; t < x.size(0); ++t) {
      std::copy_n(x.data<float>() + t * row, row, data + t * (row + pad));
    }
    view = TensorView(data, {x.size(0), x.size(1), x.size(2)}).with_stride(0, row + pad);
  }
  Tensor memory;
  TensorView view;
};

TEST_P(KdaMemory, SlicesOfAFusedTensorGiveTheSameBitsAndInputsStay) {  // fault 17
  const KdaCase c = random_case({.lengths = {70, 1}}, 30);
  const KdaResult plain = run(device_, c);
  const int64_t tokens = c.tokens();
  const int64_t row = c.heads * c.keys;
  Tensor fused = Tensor::f32({tokens, 3 * row});
  for (int64_t t = 0; t < tokens; ++t) {
    float* to = fused.data<float>() + t * 3 * row;
    std::copy_n(c.q.data<float>() + t * row, row, to);
    std::copy_n(c.k.data<float>() + t * row, row, to + row);
    std::copy_n(c.v.data<float>() + t * row, row, to + 2 * row);
  }
  const Tensor before = copy_of(fused);
  const auto part = [&](int64_t i) {
    return fused.view().slice(1, i * row, (i + 1) * row).split_last(c.heads, c.keys);
  };
  Tensor out = Tensor::f32({tokens, c.heads, c.values});
  Tensor states = copy_of(c.states);
  KdaArgs args = c.args(states, out);
  args.q = part(0);
  args.k = part(1);
  args.v = part(2);
  ASSERT_TRUE(mirrored(device_, args).ok());
  EXPECT_TRUE(bitwise_equal(out, plain.out));
  EXPECT_TRUE(bitwise_equal(states, plain.states));
  EXPECT_TRUE(bitwise_equal(fused, before));
}

TEST_P(KdaMemory, MisalignedRowsWithPoisonBetweenThemGiveTheSameBits) {  // faults 10, 14
  for (int64_t size : {60, 100, 128}) {
    const KdaCase c =
        random_case({.heads = 1, .keys = size, .values = size, .lengths = {83, 1, 2}}, 31);
    const KdaResult plain = run(device_, c);
    const Strided q(c.q, 5, 1), k(c.k, 3, 3), v(c.v, 1, 7), g(c.decay_logit, 9, 5);
    GuardedOutput out(c.tokens(), size, size + 3, 1);
    Tensor states = copy_of(c.states);
    KdaArgs args = c.args(states, out.view().split_last(1, size));
    args.q = q.view;
    args.k = k.view;
    args.v = v.view;
    args.decay_logit = g.view;
    ASSERT_TRUE(mirrored(device_, args).ok());
    EXPECT_TRUE(out.guards_intact());
    EXPECT_TRUE(bitwise_equal(
        out.view(), plain.out.view().slice(1, 0, 1).split_last(1, size).rows(0, c.tokens())));
    EXPECT_TRUE(bitwise_equal(states, plain.states));
  }
}

TEST_P(KdaMemory, AStatePoolWithGapsIsRespected) {
  const KdaCase c = random_case({.lengths = {70, 1}, .spare_slots = 1}, 32);
  const KdaResult plain = run(device_, c);
  const int64_t row = c.keys + 5;
  const int64_t slot = c.heads * c.values * row + 40;
  GuardedOutput guard(3, slot, slot + 8, 3);
  float* data = guard.view().data<float>();
  std::fill_n(data, 3 * (slot + 8) - 8, -12345.678f);  // GuardedOutput's own guard value
  TensorView pool = TensorView(data, {3, c.heads, c.values, c.keys})
                        .with_stride(0, slot + 8)
                        .with_stride(1, c.values * row)
                        .with_stride(2, row);
  const Tensor fresh = copy_of(c.states);
  for (int64_t i = 0; i < 3 * c.heads * c.values; ++i) {
    const int64_t n = i / (c.heads * c.values);
    std::copy_n(fresh.data<float>() + i * c.keys, c.keys,
                data + n * (slot + 8) + i % (c.heads * c.values) * row);
  }
  Tensor out = Tensor::f32({c.tokens(), c.heads, c.values});
  ASSERT_TRUE(mirrored(device_, c.args(pool, out)).ok());
  EXPECT_TRUE(bitwise_equal(out, plain.out));
  EXPECT_TRUE(bitwise_equal(pool, plain.states));
  for (int64_t i = 0; i < 3 * c.heads * c.values; ++i) {
    const int64_t n = i / (c.heads * c.values);
    const float* end = data + n * (slot + 8) + i % (c.heads * c.values) * row + c.keys;
    ASSERT_EQ(std::count(end, end + 5, -12345.678f), 5);
  }
  EXPECT_TRUE(guard.guards_intact());
}

TEST_P(KdaMemory, OutMayBeV) {
  const KdaCase c = random_case({.lengths = {1, 100, 64}}, 33);
  const KdaResult plain = run(device_, c);
  Tensor states = copy_of(c.states);
  Tensor out = copy_of(c.v);
  KdaArgs args = c.args(states, out);
  args.v = out;
  ASSERT_TRUE(mirrored(device_, args).ok());
  EXPECT_TRUE(bitwise_equal(out, plain.out));
  EXPECT_TRUE(bitwise_equal(states, plain.states));
}

TEST_P(KdaMemory, OffsetsBeyond32BitsAreRight) {  // fault 12
  if (GetParam().backend == Backend::kCuda) {
    GTEST_SKIP() << "a copy of 17 GB; kda_cuda_gpu_test.cu has the case";
  }
  const KdaCase c = random_case({.heads = 1, .keys = 64, .values = 64, .lengths = {2, 1}}, 34);
  const KdaResult plain = run(device_, c);
  // Three rows of a lazily mapped tensor, 2^31 + 64 elements apart.
  constexpr int64_t kStride = (int64_t{1} << 31) + 64;
  Tensor wide = Tensor::f32({2 * kStride + 5 * 64});
  const auto column = [&](int64_t i) {
    return TensorView(wide.data<float>() + i * 64, {3, 1, 64}).with_stride(0, kStride);
  };
  const Tensor* inputs[] = {&c.q, &c.k, &c.v, &c.decay_logit};
  for (int64_t i = 0; i < 4; ++i) {
    for (int64_t t = 0; t < 3; ++t) {
      std::copy_n(inputs[i]->data<float>() + t * 64, 64, wide.data<float>() + t * kStride + i * 64);
    }
  }
  Tensor states = copy_of(c.states);
  KdaArgs args = c.args(states, column(4));
  args.q = column(0);
  args.k = column(1);
  args.v = column(2);
  args.decay_logit = column(3);
  ASSERT_TRUE(mirrored(device_, args).ok());
  EXPECT_TRUE(bitwise_equal(column(4), plain.out));
  EXPECT_TRUE(bitwise_equal(states, plain.states));
}

TEST_P(KdaMemory, EmptySequencesLeaveTheirState) {  // fault 11
  const KdaCase c = random_case({.lengths = {0, 5, 0, 4}}, 35);
  const KdaResult result = run(device_, c);
  EXPECT_TRUE(bitwise_equal(result.states.view().rows(0, 1), c.states.view().rows(0, 1)));
  EXPECT_TRUE(bitwise_equal(result.states.view().rows(2, 3), c.states.view().rows(2, 3)));
  EXPECT_FALSE(bitwise_equal(result.states.view().rows(1, 2), c.states.view().rows(1, 2)));
  for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{0}, {0, 0, 0}, {}}) {
    const KdaCase empty = random_case({.lengths = lengths, .spare_slots = 1}, 36);
    EXPECT_TRUE(bitwise_equal(run(device_, empty).states, empty.states));
  }
}

TEST_P(KdaMemory, SlotMinusOneWritesZerosAndTouchesNoState) {  // fault 15
  KdaCase c = random_case({.lengths = {1, 70, 1, 66, 0}, .spare_slots = 3}, 37);
  c.slots = {6, -1, -1, 0, -1};
  const KdaResult result = run(device_, c);
  const Tensor zeros = Tensor::f32({71, c.heads, c.values});
  EXPECT_TRUE(bitwise_equal(result.out.view().rows(1, 72), zeros));
  for (int64_t slot = 0; slot < 8; ++slot) {
    const bool same = bitwise_equal(result.states.view().rows(slot, slot + 1),
                                    c.states.view().rows(slot, slot + 1));
    EXPECT_EQ(same, slot != 0 && slot != 6) << slot;
  }
}

TEST_P(KdaMemory, RowsAfterTheLastSequenceAreNotWritten) {  // fault 20
  KdaCase c = random_case({.lengths = {30, 1, 40}}, 38);
  const KdaResult whole = run(device_, c);
  c.cu_seqlens = {0, 30, 31, 50};
  std::fill(c.v.data<float>() + 50 * c.heads * c.values, c.v.data<float>() + c.v.view().elements(),
            kNan);
  const KdaResult result = run(device_, c);
  EXPECT_TRUE(bitwise_equal(result.out.view().rows(0, 50), whole.out.view().rows(0, 50)));
  const float* rest = result.out.data<float>() + 50 * c.heads * c.values;
  EXPECT_TRUE(
      std::all_of(rest, rest + 21 * c.heads * c.values, [](float x) { return std::isnan(x); }));
}

TEST_P(KdaMemory, ManyShortSequencesStayInsideTheirScratch) {  // fault 9
  KdaShape shape{.heads = 1, .keys = 16, .values = 16};
  for (int64_t n = 0; n < 127; ++n) {
    shape.lengths.push_back(n % 3 == 0 ? 16 : n % 3 == 1 ? 32 : 64);
  }
  const KdaCase c = random_case(shape, 39);
  EXPECT_EQ(compare(run(device_, c), oracle(c), c), "");
  // The next size in the same workspace.
  const KdaCase other = random_case({.heads = 1, .lengths = {80, 129}}, 40);
  EXPECT_EQ(compare(run(device_, other), oracle(other), other), "");
}

TEST_P(KdaMemory, BetaIsTakenAsALogit) {  // fault 17
  KdaCase c = random_case({.rule = Rule::kDelta, .lengths = {4}}, 41);
  std::fill_n(c.beta_logit.data<float>(), 4 * c.heads, 0.5f);
  const KdaOracle truth = oracle(c);
  EXPECT_EQ(compare(run(device_, c), truth, c), "");
  std::fill_n(c.beta_logit.data<float>(), 4 * c.heads, 0.0f);  // its sigmoid is 0.5
  EXPECT_NE(compare(run(device_, c), truth, c), "");
}

TEST_P(KdaMemory, BadArgumentsAreRefusedByNameAndNothingIsWritten) {
  const KdaCase c = random_case({.lengths = {3, 100}, .spare_slots = 1}, 42);
  Tensor states = copy_of(c.states);
  Tensor out = random_tensor({103, 2, 128}, 1);
  const Tensor out_before = copy_of(out);
  const auto refuses = [&](const char* what, auto change) {
    KdaArgs args = c.args(states, out);
    change(args);
    const Status status = kda(device_, args);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << what;
    EXPECT_NE(status.message().find(what), std::string::npos) << status.message();
  };
  const Tensor other = Tensor::f32({103, 2, 64});
  const int64_t falling[] = {0, 50, 3}, late[] = {1, 3, 103}, beyond[] = {0, 3, 104}, one[] = {0};
  const int64_t negative[] = {0, -1};
  const int32_t twice[] = {1, 1}, big[] = {0, 3}, low[] = {-2, 0}, padded[] = {0, -1};
  refuses("'k' has shape", [&](KdaArgs& a) { a.k = other; });
  refuses("'v' has shape", [&](KdaArgs& a) { a.v = other.view().rows(0, 4); });
  refuses("'out' has shape", [&](KdaArgs& a) { a.out = out.view().rows(0, 4); });
  refuses("'decay_logit' has shape", [&](KdaArgs& a) { a.decay_logit = ConstTensorView(); });
  refuses("'states' has shape", [&](KdaArgs& a) { a.states = TensorView(); });
  refuses("'q' has stride", [&](KdaArgs& a) { a.q = a.q.with_stride(2, 2); });
  refuses("lower_bound is 0", [&](KdaArgs& a) { a.lower_bound = 0.0f; });
  refuses("falls from 50 to 3", [&](KdaArgs& a) { a.cu_seqlens = falling; });
  refuses("'cu_seqlens' runs from 1", [&](KdaArgs& a) { a.cu_seqlens = late; });
  refuses("to 104, expected", [&](KdaArgs& a) { a.cu_seqlens = beyond; });
  refuses("'cu_seqlens' has 1 entries", [&](KdaArgs& a) { a.cu_seqlens = one; });
  refuses("'starts' has 1 entries", [&](KdaArgs& a) { a.starts = one; });
  refuses("'starts' entry 1 is -1", [&](KdaArgs& a) { a.starts = negative; });
  refuses("'slots' entry 1 is 1", [&](KdaArgs& a) { a.slots = twice; });
  refuses("'slots' entry 1 is 3", [&](KdaArgs& a) { a.slots = big; });
  refuses("'slots' entry 0 is -2", [&](KdaArgs& a) { a.slots = low; });
  const KdaStateRequest requests[] = {{2, 64, 2}, {1, 63, 2}, {1, 128, 2},
                                      {0, 0, 2},  {1, 64, 1}, {1, 64, 3}};
  const char* messages[] = {"names sequence 2",
                            "names position 63",
                            "names position 128",
                            "names position 0",
                            "'state_requests' entry 0 is 1",
                            "'state_requests' entry 0 is 3"};
  for (size_t i = 0; i < std::size(requests); ++i) {
    refuses(messages[i], [&](KdaArgs& a) { a.state_requests = {&requests[i], 1}; });
  }
  const KdaStateRequest fine = {1, 64, 2};
  refuses("(slot -1)", [&](KdaArgs& a) {
    a.slots = padded;
    a.state_requests = {&fine, 1};
  });
  EXPECT_TRUE(bitwise_equal(states, c.states));
  EXPECT_TRUE(bitwise_equal(out, out_before));
}

INSTANTIATE_TEST_SUITE_P(Devices, KdaMemory, ::testing::ValuesIn(test_devices()),
                         [](const auto& tested) { return tested.param.name(); });

}  // namespace
}  // namespace triax::sequence
