// The short convolution on every backend: accuracy within computed bounds, splits bit for bit.
#include "sequence/short_conv/short_conv.h"

#include <gtest/gtest.h>

#include <cmath>

#include "testing/mirror.h"
#include "testing/testing.h"

namespace triax::sequence {
namespace {

using testing::bitwise_equal;
using testing::GuardedOutput;
using testing::random_tensor;
using testing::test_devices;
using testing::TestDevice;

Status mirrored(const Device& device, ShortConvArgs args) {
  testing::Mirror mirror(device);
  mirror.in(&args.in).in(&args.weight).out(&args.windows).out(&args.out);
  return mirror.run([&] { return short_conv(device, args); });
}

Tensor clone(const Tensor& x) {
  Tensor copy(DType::kF32, x.view().shape());
  std::copy_n(x.data<float>(), x.view().elements(), copy.data<float>());
  return copy;
}

class ShortConv : public ::testing::TestWithParam<TestDevice> {
 protected:
  void run(ConstTensorView in, const Tensor& weight, std::vector<int64_t> cu,
           std::vector<int32_t> slots, Tensor& windows, TensorView out) {
    const Status status = mirrored(device_, {.in = in,
                                             .weight = weight,
                                             .cu_seqlens = cu,
                                             .slots = slots,
                                             .windows = windows,
                                             .out = out});
    ASSERT_TRUE(status.ok()) << status.message();
  }

  OwnedDevice device_ = GetParam().open();
};

/// One sequence in double. |silu'| <= 1.1, so the sum's error of 4 roundings of sum |w u| passes
/// on with that factor; SiLU itself adds a few units of its own value.
void expect_close(const Tensor& in, const Tensor& weight, const Tensor& window,
                  ConstTensorView out) {
  const int64_t channels = in.size(1);
  for (int64_t t = 0; t < in.size(0); ++t) {
    for (int64_t c = 0; c < channels; ++c) {
      double sum = 0.0;
      double size = 0.0;
      for (int64_t i = 0; i < 4; ++i) {
        const int64_t from = t - 3 + i;
        const double u = from < 0 ? window.data<float>()[(from + 3) * channels + c]
                                  : in.data<float>()[from * channels + c];
        sum += u * weight.data<float>()[i * channels + c];
        size += std::fabs(u * weight.data<float>()[i * channels + c]);
      }
      const double truth = sum / (1.0 + std::exp(-sum));
      const double bound = 0x1.0p-24 * (1.1 * 4.0 * size + 8.0 * std::fabs(truth)) + 1e-44;
      ASSERT_NEAR(out.data<float>()[t * out.stride(0) + c], truth, bound) << t << ", " << c;
    }
  }
}

TEST_P(ShortConv, IsTheSumOfFourTapsThroughSilu) {
  for (int64_t channels : {1, 15, 16, 17, 63, 100, 511, 512, 513, 1100}) {
    for (int64_t tokens : {0, 1, 2, 3, 4, 63}) {
      const Tensor in = random_tensor({tokens, channels}, 1, 3.0);
      const Tensor weight = random_tensor({4, channels}, 2);
      Tensor windows = random_tensor({1, 3, channels}, 3);
      const Tensor before = clone(windows);
      GuardedOutput out(tokens, channels, channels + 7, 3);
      run(in, weight, {0, tokens}, {0}, windows, out.view());
      EXPECT_TRUE(out.guards_intact());
      expect_close(in, weight, before, out.view());
      for (int64_t i = 0; i < 3; ++i) {  // the window: the last three raw inputs
        const int64_t from = tokens - 3 + i;
        const float* row = from < 0 ? before.data<float>() + (from + 3) * channels
                                    : in.data<float>() + from * channels;
        EXPECT_TRUE(std::equal(row, row + channels, windows.data<float>() + i * channels));
      }
    }
  }
}

TEST_P(ShortConv, SiluIsAccurateFarFromZero) {
  Tensor in = Tensor::f32({1, 4000});
  for (int64_t c = 0; c < 4000; ++c) {
    in.data<float>()[c] = static_cast<float>(c - 2000) / 20.0f;
  }
  Tensor weight = Tensor::f32({4, 4000});
  std::fill_n(weight.data<float>() + 3 * 4000, 4000, 1.0f);
  Tensor windows = Tensor::f32({1, 3, 4000});
  Tensor out = Tensor::f32({1, 4000});
  run(in, weight, {0, 1}, {0}, windows, out);
  for (int64_t c = 0; c < 4000; ++c) {
    const double x = in.data<float>()[c];
    const double truth = x / (1.0 + std::exp(-x));
    ASSERT_NEAR(out.data<float>()[c], truth,
                4.0 * 0x1.0p-24 * std::fabs(truth) + 0x1.0p-149 * std::fabs(x))
        << x;
  }
}

TEST_P(ShortConv, AnySplitGivesTheSameBits) {
  constexpr int64_t kChannels = 530;
  const Tensor in = random_tensor({20, kChannels}, 4);
  const Tensor weight = random_tensor({4, kChannels}, 5);
  const Tensor start = random_tensor({1, 3, kChannels}, 6);
  Tensor whole_windows = clone(start);
  Tensor whole = Tensor::f32({20, kChannels});
  run(in, weight, {0, 20}, {0}, whole_windows, whole);
  for (const std::vector<int64_t>& cuts :
       {std::vector<int64_t>{1, 2, 3, 20}, {5, 5, 6, 20}, {2, 4, 19, 20}, {17, 18, 19, 20}}) {
    Tensor windows = clone(start);
    Tensor out = Tensor::f32({20, kChannels});
    int64_t begin = 0;
    for (int64_t end : cuts) {
      run(in.view().rows(begin, end), weight, {0, end - begin}, {0}, windows,
          out.view().rows(begin, end));
      begin = end;
    }
    EXPECT_TRUE(bitwise_equal(out, whole));
    EXPECT_TRUE(bitwise_equal(windows, whole_windows));
  }
}

TEST_P(ShortConv, TheBatchAndTheThreadCountDoNotMatter) {
  constexpr int64_t kChannels = 1025;
  const std::vector<int64_t> cu = {0, 1, 1, 8, 10, 40};
  const Tensor in = random_tensor({40, kChannels}, 7);
  const Tensor weight = random_tensor({4, kChannels}, 8);
  const Tensor start = random_tensor({6, 3, kChannels}, 9);
  Tensor windows = clone(start);
  Tensor out = Tensor::f32({40, kChannels});
  run(in, weight, cu, {4, 0, 2, 5, 1}, windows, out);
  const std::vector<int32_t> slots = {4, 0, 2, 5, 1};
  for (size_t n = 0; n < slots.size(); ++n) {
    OwnedDevice other = GetParam().open(2);
    Tensor alone_windows = clone(start);
    Tensor alone = Tensor::f32({cu[n + 1] - cu[n], kChannels});
    const int64_t lengths[] = {0, cu[n + 1] - cu[n]};
    ASSERT_TRUE(mirrored(other, {.in = in.view().rows(cu[n], cu[n + 1]),
                                 .weight = weight,
                                 .cu_seqlens = lengths,
                                 .slots = {&slots[n], 1},
                                 .windows = alone_windows,
                                 .out = alone})
                    .ok());
    EXPECT_TRUE(bitwise_equal(alone, out.view().rows(cu[n], cu[n + 1])));
    EXPECT_TRUE(bitwise_equal(alone_windows.view().rows(slots[n], slots[n] + 1),
                              windows.view().rows(slots[n], slots[n] + 1)));
  }
  EXPECT_TRUE(bitwise_equal(windows.view().rows(3, 4), start.view().rows(3, 4)));
  EXPECT_TRUE(bitwise_equal(windows.view().rows(0, 1), start.view().rows(0, 1)));
}

TEST_P(ShortConv, AStepOfManyChannelsHasTheBitsOfALongerCall) {
  for (int64_t channels : {2047, 2049, 4103}) {
    const Tensor in = random_tensor({2, channels}, 18);
    const Tensor weight = random_tensor({4, channels}, 19);
    Tensor windows = random_tensor({1, 3, channels}, 20);
    Tensor step_windows = clone(windows);
    Tensor out = Tensor::f32({2, channels});
    run(in, weight, {0, 2}, {0}, windows, out);
    for (int64_t t = 0; t < 2; ++t) {
      GuardedOutput step(1, channels, channels, t + 1);
      run(in.view().rows(t, t + 1), weight, {0, 1}, {0}, step_windows, step.view());
      EXPECT_TRUE(step.guards_intact());
      EXPECT_TRUE(bitwise_equal(step.view(), out.view().rows(t, t + 1)));
    }
    EXPECT_TRUE(bitwise_equal(step_windows, windows));
  }
}

TEST_P(ShortConv, SlotMinusOneWritesZerosAndRowsAfterTheEndStay) {
  const Tensor in = random_tensor({10, 40}, 10);
  const Tensor weight = random_tensor({4, 40}, 11);
  Tensor windows = random_tensor({2, 3, 40}, 12);
  const Tensor before = clone(windows);
  Tensor out = random_tensor({10, 40}, 13);
  const Tensor out_before = clone(out);
  run(in, weight, {0, 3, 7}, {-1, 1}, windows, out);
  EXPECT_TRUE(bitwise_equal(out.view().rows(0, 3), Tensor::f32({3, 40})));
  EXPECT_TRUE(bitwise_equal(out.view().rows(7, 10), out_before.view().rows(7, 10)));
  EXPECT_TRUE(bitwise_equal(windows.view().rows(0, 1), before.view().rows(0, 1)));
}

TEST_P(ShortConv, BadArgumentsAreRefusedByNameAndNothingIsWritten) {
  const Tensor in = random_tensor({10, 40}, 14);
  const Tensor weight = random_tensor({4, 40}, 15);
  Tensor windows = random_tensor({2, 3, 40}, 16);
  const Tensor windows_before = clone(windows);
  Tensor out = random_tensor({10, 40}, 17);
  const Tensor out_before = clone(out);
  const int64_t cu[] = {0, 3, 7}, falling[] = {0, 7, 3};
  const int32_t slots[] = {0, 1}, twice[] = {1, 1}, big[] = {0, 2};
  const auto refuses = [&](const char* what, auto change) {
    ShortConvArgs args{.in = in,
                       .weight = weight,
                       .cu_seqlens = cu,
                       .slots = slots,
                       .windows = windows,
                       .out = out};
    change(args);
    const Status status = short_conv(device_, args);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << what;
    EXPECT_NE(status.message().find(what), std::string::npos) << status.message();
  };
  refuses("'weight' has shape [3, 40], expected [4, C=40]",
          [&](ShortConvArgs& a) { a.weight = weight.view().rows(0, 3); });
  refuses("'windows'", [&](ShortConvArgs& a) { a.windows = TensorView(); });
  refuses("'out' has shape", [&](ShortConvArgs& a) { a.out = out.view().rows(0, 9); });
  refuses("falls from 7 to 3", [&](ShortConvArgs& a) { a.cu_seqlens = falling; });
  refuses("already taken", [&](ShortConvArgs& a) { a.slots = twice; });
  refuses("'slots' entry 1 is 2, expected in [-1, 2)", [&](ShortConvArgs& a) { a.slots = big; });
  EXPECT_TRUE(bitwise_equal(windows, windows_before));
  EXPECT_TRUE(bitwise_equal(out, out_before));
}

INSTANTIATE_TEST_SUITE_P(Devices, ShortConv, ::testing::ValuesIn(test_devices()),
                         [](const auto& tested) { return tested.param.name(); });

}  // namespace
}  // namespace triax::sequence
