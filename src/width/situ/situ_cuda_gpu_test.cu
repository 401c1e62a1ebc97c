#include <gtest/gtest.h>

#include "testing/gpu.h"
#include "width/situ/situ_cuda.h"

namespace triax::width {
namespace {

using testing::GpuArray;

double expected(const Activation& a, double gate, double up) {
  const double sigmoid = 1.0 / (1.0 + std::exp(-gate));
  if (a.kind == Activation::Kind::kSilu) {
    return gate * sigmoid * up;
  }
  const double b = a.beta;
  const double l = a.linear_beta;
  return b * std::tanh(gate / b) * sigmoid * l * std::tanh(up / l);
}

TEST(GatedActivationCuda, FollowsBothFormulasInPlaceToo) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  for (const auto kind : {Activation::Kind::kSilu, Activation::Kind::kSitu}) {
    for (const int64_t size : {1, 63, 64, 65, 300}) {
      const Activation activation = {kind, 4.0f, 25.0f};
      const auto count = static_cast<size_t>(4 * size);
      const auto gate = testing::random_floats(count, 1, 8.0f);
      const auto up = testing::random_floats(count, 2, 20.0f);
      GpuArray<float> gpu_gate(gate);
      GpuArray<float> gpu_up(up);
      const GatedActivationCuda args = {
          activation, gpu_gate.data(), size, gpu_up.data(), size, gpu_gate.data(), size, 4, size};
      ASSERT_EQ(triax_cuda_gated_activation(&args, nullptr), 0);
      const std::vector<float> found = gpu_gate.get();
      for (size_t i = 0; i < count; ++i) {
        const double y = expected(activation, gate[i], up[i]);
        ASSERT_NEAR(found[i], y, 2e-6 * std::fabs(y) + 1e-30);
      }
      EXPECT_TRUE(gpu_gate.guards_intact());
    }
  }
}

// Where the sigmoid leaves the normal floats, in steps of the smallest one.
TEST(GatedActivationCuda, FollowsTheSigmoidIntoSubnormals) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  std::vector<float> gate;
  for (float x = -80.0f; x > -110.0f; x -= 0.37f) {
    gate.push_back(x);
  }
  const std::vector<float> up(gate.size(), 1.0f);
  const auto size = static_cast<int64_t>(gate.size());
  GpuArray<float> gpu_gate(gate), gpu_up(up), out(gate.size());
  const GatedActivationCuda args = {
      {}, gpu_gate.data(), size, gpu_up.data(), size, out.data(), size, 1, size};
  ASSERT_EQ(triax_cuda_gated_activation(&args, nullptr), 0);
  const std::vector<float> found = out.get();
  for (size_t i = 0; i < gate.size(); ++i) {
    const double y = expected({}, gate[i], 1.0);
    ASSERT_NEAR(found[i], y, 1e-6 * std::fabs(y) + 0x1.0p-148 * std::fabs(gate[i]));
  }
}

TEST(GatedActivationCuda, SaturatesWithoutNan) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  const std::vector<float> gate = {INFINITY, -INFINITY, 3e38f, -3e38f, 0.0f};
  const std::vector<float> up(gate.size(), 2.0f);
  for (const auto kind : {Activation::Kind::kSilu, Activation::Kind::kSitu}) {
    GpuArray<float> gpu_gate(gate);
    GpuArray<float> gpu_up(up);
    const GatedActivationCuda args = {
        {kind, 4.0f, 25.0f}, gpu_gate.data(), 5, gpu_up.data(), 5, gpu_up.data(), 5, 1, 5};
    ASSERT_EQ(triax_cuda_gated_activation(&args, nullptr), 0);
    for (const float y : gpu_up.get()) {
      EXPECT_FALSE(std::isnan(y));
    }
  }
}

}  // namespace
}  // namespace triax::width
