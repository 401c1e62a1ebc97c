// rms_norm on every backend against sums in double.
#include "dense/norm/norm.h"

#include <gtest/gtest.h>

#include "testing/mirror.h"
#include "testing/testing.h"

namespace triax::dense {
namespace {

using triax::testing::GuardedOutput;
using triax::testing::random_tensor;
using triax::testing::TestDevice;

Status mirrored(const Device& device, RmsNormArgs args) {
  triax::testing::Mirror mirror(device);
  mirror.in(&args.in).in(&args.weight).out(&args.out);
  return mirror.run([&] { return rms_norm(device, args); });
}

constexpr double kEps = 0x1.0p-24;  // half an ulp of float, relative

class RmsNorm : public ::testing::TestWithParam<TestDevice> {
 protected:
  OwnedDevice device_ = GetParam().open();
};

INSTANTIATE_TEST_SUITE_P(Devices, RmsNorm, ::testing::ValuesIn(triax::testing::test_devices()),
                         [](const auto& device) { return device.param.name(); });

// Every output carries at most four roundings: the scale, two products and the result.
void expect_close(ConstTensorView in, const float* weight, float eps, ConstTensorView out) {
  for (int64_t t = 0; t < in.size(0); ++t) {
    const float* x = in.data<float>() + t * in.stride(0);
    double sum = 0.0;
    for (int64_t d = 0; d < in.size(1); ++d) {
      sum += static_cast<double>(x[d]) * static_cast<double>(x[d]);
    }
    const double norm = std::sqrt(sum / static_cast<double>(in.size(1)) + static_cast<double>(eps));
    for (int64_t d = 0; d < in.size(1); ++d) {
      const double expected = static_cast<double>(x[d]) / norm * static_cast<double>(weight[d]);
      const double found = static_cast<double>(out.data<float>()[t * out.stride(0) + d]);
      ASSERT_LE(std::fabs(found - expected), 4.0 * kEps * std::fabs(expected) + 0x1.0p-149)
          << "t " << t << " d " << d << " of " << in.size(1);
    }
  }
}

TEST_P(RmsNorm, IsTheFormulaForEverySize) {
  for (const int64_t size : {1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 100, 2304}) {
    for (const int64_t rows : {0, 1, 5, 63}) {
      const Tensor in = random_tensor({rows, size}, 1);
      const Tensor weight = random_tensor({size}, 2);
      GuardedOutput out(rows, size, size + 3, 1);
      ASSERT_TRUE(mirrored(device_, {in, weight, 1e-5f, out.view()}).ok());
      EXPECT_TRUE(out.guards_intact());
      expect_close(in, weight.data<float>(), 1e-5f, out.view());
    }
  }
}

TEST_P(RmsNorm, ReadsStridedAndMisalignedRows) {
  const Tensor memory = random_tensor({9, 120}, 3);
  const ConstTensorView in = memory.view().slice(1, 3, 103);
  const Tensor weights = random_tensor({101}, 4);
  const ConstTensorView weight = weights.view().slice(0, 1, 101);
  GuardedOutput out(9, 100, 111, 3);
  ASSERT_TRUE(mirrored(device_, {in, weight, 1e-6f, out.view()}).ok());
  EXPECT_TRUE(out.guards_intact());
  expect_close(in, weight.data<float>(), 1e-6f, out.view());
}

TEST_P(RmsNorm, HoldsItsBoundForExtremeInputs) {
  for (const double scale : {1e-30, 1e-5, 1e18, 1e20, 1e30}) {
    const Tensor in = random_tensor({3, 200}, 5, scale);
    const Tensor weight = random_tensor({200}, 6);
    GuardedOutput out(3, 200);
    ASSERT_TRUE(mirrored(device_, {in, weight, 1e-5f, out.view()}).ok());
    expect_close(in, weight.data<float>(), 1e-5f, out.view());
  }
  Tensor zero = Tensor::f32({1, 40});
  const Tensor weight = random_tensor({40}, 7);
  GuardedOutput out(1, 40);
  ASSERT_TRUE(mirrored(device_, {zero, weight, 1e-5f, out.view()}).ok());
  for (int64_t d = 0; d < 40; ++d) {
    EXPECT_EQ(out.view().data<float>()[d], 0.0f);
  }
}

TEST_P(RmsNorm, WorksInPlace) {
  Tensor in = random_tensor({70, 333}, 8);
  const Tensor weight = random_tensor({333}, 9);
  GuardedOutput out(70, 333);
  ASSERT_TRUE(mirrored(device_, {in, weight, 1e-5f, out.view()}).ok());
  ASSERT_TRUE(mirrored(device_, {in, weight, 1e-5f, in}).ok());
  EXPECT_TRUE(triax::testing::bitwise_equal(in, out.view()));
}

TEST_P(RmsNorm, GivesTheSameBitsForAnySplitAndThreadCount) {
  const Tensor in = random_tensor({63, 777}, 10);
  const Tensor weight = random_tensor({777}, 11);
  GuardedOutput whole(63, 777);
  ASSERT_TRUE(mirrored(device_, {in, weight, 1e-5f, whole.view()}).ok());
  OwnedDevice other = GetParam().open(2);
  GuardedOutput parts(63, 777);
  for (int64_t begin = 0; begin < 63; begin += 10) {
    const int64_t end = std::min<int64_t>(63, begin + 10);
    ASSERT_TRUE(
        mirrored(other, {in.view().rows(begin, end), weight, 1e-5f, parts.view().rows(begin, end)})
            .ok());
  }
  EXPECT_TRUE(triax::testing::bitwise_equal(whole.view(), parts.view()));
}

TEST_P(RmsNorm, RefusesWrongShapesAndWritesNothing) {
  const Tensor in = random_tensor({4, 32}, 12);
  const Tensor weight = random_tensor({31}, 13);
  GuardedOutput out(4, 32);
  const Status status = rms_norm(device_, {in, weight, 1e-5f, out.view()});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "rms_norm: 'weight' has shape [31], expected [D=32]");
  EXPECT_TRUE(std::isnan(out.view().data<float>()[0]));
  const Tensor good = random_tensor({32}, 13);
  EXPECT_EQ(rms_norm(device_, {in, good, -1.0f, out.view()}).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(std::isnan(out.view().data<float>()[0]));
}

}  // namespace
}  // namespace triax::dense
