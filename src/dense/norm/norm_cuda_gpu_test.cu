#include <gtest/gtest.h>

#include "dense/norm/norm_cuda.h"
#include "testing/gpu.h"

namespace triax::dense {
namespace {

using testing::GpuArray;

// Rows of `size` at `stride`, in place or not; what lies between rows must stay.
void expect_norm(int64_t rows, int64_t size, int64_t stride, bool in_place, float scale) {
  const auto in = testing::random_floats(static_cast<size_t>(rows * stride), 1, scale);
  const auto weight = testing::random_floats(static_cast<size_t>(size), 2);
  GpuArray<float> gpu_in(in);
  GpuArray<float> gpu_weight(weight);
  GpuArray<float> gpu_out(in.size());
  float* out = in_place ? gpu_in.data() : gpu_out.data();
  const RmsNormCuda args = {gpu_in.data(), stride, gpu_weight.data(), 1e-5f, out, stride,
                            rows,          size};
  ASSERT_EQ(triax_cuda_rms_norm(&args, nullptr), 0);
  testing::gpu_check(cudaDeviceSynchronize(), "rms_norm");
  const std::vector<float> found = in_place ? gpu_in.get() : gpu_out.get();
  for (int64_t t = 0; t < rows; ++t) {
    double sum = 0.0;
    const float* x = in.data() + t * stride;
    for (int64_t d = 0; d < size; ++d) {
      sum += static_cast<double>(x[d]) * x[d];
    }
    const double norm = std::sqrt(sum / static_cast<double>(size) + 1e-5f);
    for (int64_t d = 0; d < size; ++d) {
      const double expected = x[d] / norm * weight[static_cast<size_t>(d)];
      ASSERT_NEAR(found[static_cast<size_t>(t * stride + d)], expected, 4e-7 * std::fabs(expected));
    }
    for (int64_t d = size; d < stride; ++d) {
      const float between = found[static_cast<size_t>(t * stride + d)];
      ASSERT_TRUE(in_place ? between == x[d] : std::isnan(between));
    }
  }
  EXPECT_TRUE(gpu_out.guards_intact() && gpu_in.guards_intact());
}

TEST(RmsNormCuda, NormalisesRowsOfAnySize) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  for (const int64_t size : {1, 31, 63, 64, 65, 255, 257, 2304, 7168}) {
    expect_norm(3, size, size + 5, false, 1.0f);
    expect_norm(1, size, size, true, 1e12f);  // squares beyond float32
  }
  expect_norm(0, 64, 64, false, 1.0f);
  expect_norm(130, 64, 64, true, 1e-3f);
}

}  // namespace
}  // namespace triax::dense
