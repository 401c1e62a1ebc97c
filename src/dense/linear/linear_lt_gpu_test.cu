// The cuBLASLt layer against double, and equal bits of equal shapes.
#include <gtest/gtest.h>

#include "dense/linear/linear_cases_sm90.cuh"
#include "dense/linear/linear_lt_sm90.h"

namespace triax::dense {
namespace {

using namespace sm90_cases;
using testing::GpuArray;
using testing::random_floats;

TEST(LinearLtGpu, AgreesWithDouble) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  for (const int64_t tokens : {1, 5, 64, 100, 513}) {
    constexpr int64_t kRows = 384;
    constexpr int64_t kCols = 640;
    const PackedMatrix m(MatrixFormat::kBf16, kRows, kCols, 1);
    const auto in = random_floats(static_cast<size_t>(tokens * kCols), 2);
    const GpuArray<float> in_d(in);
    GpuArray<float> out_d(static_cast<size_t>(tokens * kRows));
    std::vector<float> first;
    for (int run = 0; run < 2; ++run) {
      LinearLtPlan* plan = nullptr;
      if (triax_cuda_linear_lt_create(tokens, kRows, kCols, &plan) != 0) {
        GTEST_SKIP() << "no cuBLASLt";
      }
      const GpuArray<uint8_t> scratch(
          static_cast<size_t>(triax_cuda_linear_lt_scratch_bytes(plan)));
      const LinearLtSm90 args{.plan = plan,
                              .in = in_d.data(),
                              .in_stride = kCols,
                              .weight = m.data.data(),
                              .out = out_d.data(),
                              .out_stride = kRows,
                              .scratch = scratch.data()};
      EXPECT_EQ(triax_cuda_linear_lt_sm90(&args, nullptr), 0);
      testing::gpu_check(cudaDeviceSynchronize(), "linear_lt");
      triax_cuda_linear_lt_destroy(plan);
      EXPECT_TRUE(out_d.guards_intact());
      EXPECT_TRUE(scratch.guards_intact());
      if (run == 0) {
        first = out_d.get();
        // Inputs are rounded to bf16: up to 2^-9 of each, 1.7e-3 rms at most.
        EXPECT_LT(testing::relative_rms(first, m.multiply_double(in, tokens)), 2.5e-3);
        out_d.poison();
      } else {
        EXPECT_EQ(out_d.get(), first);
      }
    }
  }
}

TEST(LinearLtGpu, RefusesOddWidths) {
  LinearLtPlan* plan = nullptr;
  EXPECT_NE(triax_cuda_linear_lt_create(4, 128, 100, &plan), 0);
  EXPECT_EQ(plan, nullptr);
}

}  // namespace
}  // namespace triax::dense
