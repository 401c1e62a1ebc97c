#include <gtest/gtest.h>

#include "dense/embedding/embedding_cuda.h"
#include "dense/linear/weights_testing.h"
#include "testing/gpu.h"

namespace triax::dense {
namespace {

using testing::GpuArray;

TEST(EmbedCuda, ReadsRowsOfEveryFormatExactly) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  const std::vector<int32_t> ids = {3, 0, 9, 3, -1, 10};
  GpuArray<int32_t> gpu_ids(ids);
  for (const MatrixFormat format : kAllFormats) {
    for (const bool misaligned : {false, true}) {
      const GpuMatrix table(format, 10, 320, 1, misaligned);
      const int64_t stride = 323;
      GpuArray<float> out(ids.size() * static_cast<size_t>(stride));
      const EmbedCuda args = {gpu_ids.data(), static_cast<int64_t>(ids.size()), table.view(),
                              out.data(), stride};
      ASSERT_EQ(triax_cuda_embed(&args, nullptr), 0);
      const std::vector<float> found = out.get();
      for (size_t i = 0; i < found.size(); ++i) {
        const int32_t id = ids[i / static_cast<size_t>(stride)];
        const auto d = static_cast<int64_t>(i) % stride;
        if (d < 320 && id >= 0 && id < 10) {
          ASSERT_EQ(static_cast<double>(found[i]), table.at(id, d));
        } else {
          ASSERT_TRUE(std::isnan(found[i]));
        }
      }
      EXPECT_TRUE(out.guards_intact());
    }
  }
}

}  // namespace
}  // namespace triax::dense
