#include <gtest/gtest.h>

#include "dense/rows/rows_cuda.h"
#include "testing/gpu.h"

namespace triax::dense {
namespace {

using testing::GpuArray;

TEST(RowsCuda, AddsAndCopiesStridedRows) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  for (const int64_t size : {1, 63, 64, 65, 1000}) {
    const int64_t rows = 5;
    const int64_t stride = size + 3;
    const auto a = testing::random_floats(static_cast<size_t>(rows * stride), 1);
    const auto b = testing::random_floats(a.size(), 2);
    GpuArray<float> delta(a);
    GpuArray<float> sum(b);
    GpuArray<float> picked(a.size());
    GpuArray<int64_t> indices(std::vector<int64_t>{4, 0, 4, 1, 2});
    const AddRowsCuda add = {delta.data(), stride, sum.data(), stride, rows, size};
    const CopyRowsCuda pick = {delta.data(), stride, indices.data(), picked.data(), stride,
                               rows,         size};
    ASSERT_EQ(triax_cuda_add_rows(&add, nullptr), 0);
    ASSERT_EQ(triax_cuda_copy_rows(&pick, nullptr), 0);
    const std::vector<float> added = sum.get();
    const std::vector<float> copied = picked.get();
    const std::vector<int64_t> order = indices.get();
    for (size_t i = 0; i < a.size(); ++i) {
      const auto d = static_cast<int64_t>(i) % stride;
      const size_t row = i / static_cast<size_t>(stride);
      EXPECT_EQ(added[i], d < size ? a[i] + b[i] : b[i]);
      if (d < size) {
        EXPECT_EQ(copied[i], a[static_cast<size_t>(order[row] * stride + d)]);
      } else {
        EXPECT_TRUE(std::isnan(copied[i]));
      }
    }
    const CopyRowsCuda all = {delta.data(), stride, nullptr, picked.data(), stride, rows, stride};
    ASSERT_EQ(triax_cuda_copy_rows(&all, nullptr), 0);
    EXPECT_EQ(picked.get(), a);
    EXPECT_TRUE(sum.guards_intact() && picked.guards_intact());
  }
}

}  // namespace
}  // namespace triax::dense
