// gated_activation on every backend against the formula in double.
#include "width/situ/situ.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "testing/mirror.h"
#include "testing/testing.h"

namespace triax::width {
namespace {

using triax::testing::GuardedOutput;
using triax::testing::random_tensor;
using triax::testing::TestDevice;

Status mirrored(const Device& device, const Activation& activation, ConstTensorView gate,
                ConstTensorView up, TensorView out) {
  triax::testing::Mirror mirror(device);
  mirror.in(&gate).in(&up).out(&out);
  return mirror.run([&] { return gated_activation(device, activation, gate, up, out); });
}

constexpr double kUlp = 0x1.0p-23;  // one unit in the last place, relative, at most
constexpr double kFactorUlps = 4.0;
constexpr Activation kSilu = {Activation::Kind::kSilu};
constexpr Activation kSitu = {Activation::Kind::kSitu, 4.0f, 25.0f};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class GatedActivation : public ::testing::TestWithParam<TestDevice> {
 protected:
  OwnedDevice device_ = GetParam().open();
};

INSTANTIATE_TEST_SUITE_P(Devices, GatedActivation,
                         ::testing::ValuesIn(triax::testing::test_devices()),
                         [](const auto& device) { return device.param.name(); });

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

double expected(const Activation& a, double gate, double up) {
  if (a.kind == Activation::Kind::kSilu) {
    return gate * sigmoid(gate) * up;
  }
  const auto b = static_cast<double>(a.beta);
  const auto l = static_cast<double>(a.linear_beta);
  return b * std::tanh(gate / b) * sigmoid(gate) * l * std::tanh(up / l);
}

// The factors' ulps add up, and so does half an ulp of every product; a sigmoid below the smallest
// normal float is off by one subnormal step at most, which the other factors multiply.
double bound(const Activation& a, double gate, double up) {
  const bool silu = a.kind == Activation::Kind::kSilu;
  const double relative = (silu ? kFactorUlps + 1.0 : 3.0 * kFactorUlps + 2.0) * kUlp;
  const double others = silu ? std::fabs(gate * up)
                             : static_cast<double>(a.beta) *
                                   std::fmin(static_cast<double>(a.linear_beta), std::fabs(up));
  return relative * std::fabs(expected(a, gate, up)) + 0x1.0p-148 * (1.0 + others);
}

void expect_close(const Activation& a, ConstTensorView gate, ConstTensorView up,
                  ConstTensorView out) {
  for (int64_t t = 0; t < gate.size(0); ++t) {
    for (int64_t f = 0; f < gate.size(1); ++f) {
      const auto g = static_cast<double>(gate.data<float>()[t * gate.stride(0) + f]);
      const auto u = static_cast<double>(up.data<float>()[t * up.stride(0) + f]);
      const auto found = static_cast<double>(out.data<float>()[t * out.stride(0) + f]);
      ASSERT_LE(std::fabs(found - expected(a, g, u)), bound(a, g, u))
          << "gate " << g << " up " << u;
    }
  }
}

TEST_P(GatedActivation, IsTheFormulaForEverySize) {
  for (const Activation& activation : {kSilu, kSitu}) {
    for (const int64_t size : {0, 1, 7, 8, 9, 15, 16, 17, 63, 100, 1024, 5000}) {
      for (const int64_t rows : {0, 1, 5}) {
        const Tensor gate = random_tensor({rows, size}, 1, 5.0);
        const Tensor up = random_tensor({rows, size}, 2, 20.0);
        GuardedOutput out(rows, size, size + 3, 1);
        ASSERT_TRUE(mirrored(device_, activation, gate, up, out.view()).ok());
        EXPECT_TRUE(out.guards_intact());
        expect_close(activation, gate, up, out.view());
      }
    }
  }
}

TEST_P(GatedActivation, IsAccurateOverTheWholeRange) {
  std::vector<float> gates;
  std::vector<float> ups;
  for (float magnitude = 1e-38f; magnitude < 100.0f; magnitude *= 1.01f) {
    for (const float sign : {-1.0f, 1.0f}) {
      gates.push_back(sign * magnitude);
      ups.push_back(1.0f);
      gates.push_back(30.0f);  // sigmoid and tanh are 1: only tanh(up) is left
      ups.push_back(sign * magnitude);
    }
  }
  const auto size = static_cast<int64_t>(gates.size());
  const ConstTensorView gate(gates.data(), {1, size});
  const ConstTensorView up(ups.data(), {1, size});
  for (const Activation& activation : {kSilu, kSitu}) {
    GuardedOutput out(1, size);
    ASSERT_TRUE(mirrored(device_, activation, gate, up, out.view()).ok());
    expect_close(activation, gate, up, out.view());
  }
}

TEST_P(GatedActivation, SaturatesWithoutNaN) {
  const std::vector<float> values = {-1e30f, -1e4f,  -200.0f, -104.0f, -88.0f,  -0.0f,   0.0f,
                                     88.0f,  104.0f, 1e4f,    1e30f,   3.4e38f, -3.4e38f};
  std::vector<float> gates;
  std::vector<float> ups;
  for (const float gate : values) {
    for (const float up : values) {
      gates.push_back(gate);
      ups.push_back(up);
    }
  }
  const auto size = static_cast<int64_t>(gates.size());
  const ConstTensorView gate(gates.data(), {1, size});
  const ConstTensorView up(ups.data(), {1, size});
  for (const Activation& activation : {kSilu, kSitu}) {
    GuardedOutput out(1, size);
    ASSERT_TRUE(mirrored(device_, activation, gate, up, out.view()).ok());
    for (int64_t i = 0; i < size; ++i) {
      const float found = out.view().data<float>()[i];
      const double wanted = expected(activation, static_cast<double>(gates[static_cast<size_t>(i)]),
                                     static_cast<double>(ups[static_cast<size_t>(i)]));
      ASSERT_FALSE(std::isnan(found)) << i;
      if (std::fabs(wanted) > 3.4028235e38) {
        EXPECT_EQ(found, wanted > 0 ? kInfinity : -kInfinity) << i;
      } else {
        EXPECT_LE(std::fabs(static_cast<double>(found) - wanted),
                  bound(activation, static_cast<double>(gates[static_cast<size_t>(i)]),
                        static_cast<double>(ups[static_cast<size_t>(i)])))
            << i;
      }
    }
  }
}

TEST_P(GatedActivation, TakesItsLimitsAtInfinity) {
  const std::vector<float> gates = {-kInfinity, kInfinity, 3.0f, 3.0f};
  const std::vector<float> ups = {2.0f, 2.0f, kInfinity, -kInfinity};
  const ConstTensorView gate(gates.data(), {1, 4});
  const ConstTensorView up(ups.data(), {1, 4});
  GuardedOutput silu(1, 4);
  ASSERT_TRUE(mirrored(device_, kSilu, gate, up, silu.view()).ok());
  const float* s = silu.view().data<float>();
  EXPECT_EQ(s[0], 0.0f);
  EXPECT_EQ(s[1], kInfinity);
  EXPECT_EQ(s[2], kInfinity);
  EXPECT_EQ(s[3], -kInfinity);
  GuardedOutput situ(1, 4);
  ASSERT_TRUE(mirrored(device_, kSitu, gate, up, situ.view()).ok());
  const float* q = situ.view().data<float>();
  const double half = 4.0 * std::tanh(0.75) * sigmoid(3.0) * 25.0;
  EXPECT_EQ(q[0], 0.0f);
  EXPECT_NEAR(static_cast<double>(q[1]), 4.0 * 25.0 * std::tanh(0.08), 1e-5);
  EXPECT_NEAR(static_cast<double>(q[2]), half, 1e-4);
  EXPECT_NEAR(static_cast<double>(q[3]), -half, 1e-4);
}

TEST_P(GatedActivation, PassesNaNOn) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> gates = {nan, 1.0f};
  const std::vector<float> ups = {1.0f, nan};
  for (const Activation& activation : {kSilu, kSitu}) {
    GuardedOutput out(1, 2);
    Tensor zero = Tensor::f32({1, 2});
    ASSERT_TRUE(mirrored(device_, activation, ConstTensorView(gates.data(), {1, 2}),
                         ConstTensorView(ups.data(), {1, 2}), zero)
                    .ok());
    EXPECT_TRUE(std::isnan(zero.data<float>()[0]));
    EXPECT_TRUE(std::isnan(zero.data<float>()[1]));
  }
}

TEST_P(GatedActivation, MayWriteOverItsInputs) {
  for (const Activation& activation : {kSilu, kSitu}) {
    Tensor gate = random_tensor({3, 5001}, 3, 5.0);
    Tensor up = random_tensor({3, 5001}, 4, 5.0);
    GuardedOutput out(3, 5001);
    ASSERT_TRUE(mirrored(device_, activation, gate, up, out.view()).ok());
    Tensor gate_copy = random_tensor({3, 5001}, 3, 5.0);
    ASSERT_TRUE(mirrored(device_, activation, gate_copy, up, gate_copy).ok());
    EXPECT_TRUE(triax::testing::bitwise_equal(gate_copy, out.view()));
    ASSERT_TRUE(mirrored(device_, activation, gate, up, up).ok());
    EXPECT_TRUE(triax::testing::bitwise_equal(up, out.view()));
  }
}

TEST_P(GatedActivation, GivesTheSameBitsForAnySplitAndThreadCount) {
  const Tensor memory = random_tensor({63, 300}, 5, 5.0);
  const ConstTensorView gate = memory.view().slice(1, 1, 151);
  const ConstTensorView up = memory.view().slice(1, 150, 300);
  for (const Activation& activation : {kSilu, kSitu}) {
    GuardedOutput whole(63, 150);
    ASSERT_TRUE(mirrored(device_, activation, gate, up, whole.view()).ok());
    OwnedDevice other = GetParam().open(2);
    GuardedOutput parts(63, 150);
    for (int64_t t = 0; t < 63; ++t) {
      for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 37}, {37, 150}}) {
        ASSERT_TRUE(mirrored(other, activation, gate.rows(t, t + 1).slice(1, begin, end),
                             up.rows(t, t + 1).slice(1, begin, end),
                             parts.view().rows(t, t + 1).slice(1, begin, end))
                        .ok());
      }
    }
    EXPECT_TRUE(triax::testing::bitwise_equal(whole.view(), parts.view()));
  }
}

TEST_P(GatedActivation, RefusesWrongArgumentsAndWritesNothing) {
  const Tensor gate = random_tensor({2, 32}, 6);
  const Tensor up = random_tensor({2, 31}, 7);
  GuardedOutput out(2, 32);
  const Status status = gated_activation(device_, kSilu, gate, up, out.view());
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "gated_activation: 'up' has shape [2, 31], expected [T=2, F=32]");
  const Activation bad = {Activation::Kind::kSitu, 0.0f, 25.0f};
  EXPECT_EQ(gated_activation(device_, bad, gate, gate, out.view()).code(),
            StatusCode::kInvalidArgument);
  EXPECT_TRUE(std::isnan(out.view().data<float>()[0]));
}

}  // namespace
}  // namespace triax::width
