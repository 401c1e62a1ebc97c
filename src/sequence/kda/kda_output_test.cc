// The gated norm of a KDA layer on every backend, within computed bounds.
#include <gtest/gtest.h>

#include <cmath>

#include "sequence/kda/kda.h"
#include "testing/mirror.h"
#include "testing/testing.h"

namespace triax::sequence {
namespace {

using testing::bitwise_equal;
using testing::GuardedOutput;
using testing::random_tensor;
using testing::test_devices;
using testing::TestDevice;

Status mirrored(const Device& device, KdaOutputArgs args) {
  testing::Mirror mirror(device);
  mirror.in(&args.in).in(&args.weight).in(&args.gate_logit).out(&args.out);
  return mirror.run([&] { return kda_output(device, args); });
}

class KdaOutput : public ::testing::TestWithParam<TestDevice> {
 protected:
  /// Within (V / 2 + 12) units of rounding of the formula in double.
  void expect_close(const Tensor& in, const Tensor& weight, const Tensor& gate,
                    ConstTensorView out) {
    const int64_t size = in.size(2);
    for (int64_t row = 0; row < in.size(0) * in.size(1); ++row) {
      const float* x = in.data<float>() + row * size;
      double sum = 0.0;
      for (int64_t i = 0; i < size; ++i) {
        sum += static_cast<double>(x[i]) * x[i];
      }
      const float* y =
          out.data<float>() + row / in.size(1) * out.stride(0) + row % in.size(1) * size;
      for (int64_t i = 0; i < size; ++i) {
        const double g = gate.data<float>()[row * size + i];
        const double truth = x[i] / std::sqrt(sum / static_cast<double>(size) + 1e-5f) *
                             weight.data<float>()[i] / (1.0 + std::exp(-g));
        const double bound =
            (0.5 * static_cast<double>(size) + 12.0) * 0x1.0p-24 * std::fabs(truth) + 1e-37;
        ASSERT_NEAR(y[i], truth, bound) << "row " << row << ", element " << i;
      }
    }
  }

  OwnedDevice device_ = GetParam().open();
};

TEST_P(KdaOutput, IsTheNormTimesWeightTimesSigmoid) {
  for (int64_t size : {1, 15, 16, 17, 63, 100, 128, 256}) {
    for (int64_t tokens : {0, 1, 63}) {
      const Tensor in = random_tensor({tokens, 3, size}, 1, 2.0);
      const Tensor weight = random_tensor({size}, 2);
      Tensor gate = random_tensor({tokens, 3, size}, 3, 4.0);
      if (tokens > 0) {
        gate.data<float>()[0] = -80.0f;
        gate.data<float>()[size] = 200.0f;
      }
      GuardedOutput out(tokens, 3 * size, 3 * size + 5, 3);
      ASSERT_TRUE(mirrored(device_, {.in = in,
                                     .weight = weight,
                                     .gate_logit = gate,
                                     .out = out.view().split_last(3, size)})
                      .ok());
      EXPECT_TRUE(out.guards_intact());
      expect_close(in, weight, gate, out.view());
    }
  }
}

TEST_P(KdaOutput, OutMayBeInAndTheBatchDoesNotMatter) {
  Tensor in = random_tensor({40, 3, 128}, 4);
  const Tensor weight = random_tensor({128}, 5);
  const Tensor gate = random_tensor({40, 3, 128}, 6);
  Tensor out = Tensor::f32({40, 3, 128});
  for (int64_t t = 0; t < 40; ++t) {
    ASSERT_TRUE(mirrored(device_, {.in = in.view().rows(t, t + 1),
                                   .weight = weight,
                                   .gate_logit = gate.view().rows(t, t + 1),
                                   .out = out.view().rows(t, t + 1)})
                    .ok());
  }
  ASSERT_TRUE(mirrored(device_, {.in = in, .weight = weight, .gate_logit = gate, .out = in}).ok());
  EXPECT_TRUE(bitwise_equal(in, out));
}

TEST_P(KdaOutput, OneTokensHeadsMayFallIntoSeveralTasks) {
  Tensor in = random_tensor({2, 96, 128}, 9);
  const Tensor weight = random_tensor({128}, 10);
  const Tensor gate = random_tensor({2, 96, 128}, 11);
  Tensor out = Tensor::f32({2, 96, 128});
  ASSERT_TRUE(mirrored(device_, {.in = in, .weight = weight, .gate_logit = gate, .out = out}).ok());
  expect_close(in, weight, gate, out.view());
  OwnedDevice other = GetParam().open(3);
  ASSERT_TRUE(
      mirrored(other.get(), {.in = in, .weight = weight, .gate_logit = gate, .out = in}).ok());
  EXPECT_TRUE(bitwise_equal(in, out));
}

TEST_P(KdaOutput, BadShapesAreRefusedByName) {
  const Tensor in = random_tensor({4, 3, 16}, 7);
  Tensor out = random_tensor({4, 3, 16}, 8);
  const Tensor before = random_tensor({4, 3, 16}, 8);
  const Status status = kda_output(
      device_, {.in = in, .weight = Tensor::f32({15}).view(), .gate_logit = in, .out = out.view()});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("'weight' has shape [15], expected [V=16]"), std::string::npos)
      << status.message();
  EXPECT_TRUE(bitwise_equal(out, before));
}

INSTANTIATE_TEST_SUITE_P(Devices, KdaOutput, ::testing::ValuesIn(test_devices()),
                         [](const auto& tested) { return tested.param.name(); });

}  // namespace
}  // namespace triax::sequence
