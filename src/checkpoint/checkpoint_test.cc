#include "checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "tensor/quantize.h"
#include "testing/testing.h"

namespace triax::checkpoint {
namespace {

struct RealCase {
  const char* folder;  // below the shared directory
  size_t tensors;
  int64_t bytes;
  int64_t layers;
};

class RealCheckpointTest : public ::testing::TestWithParam<RealCase> {};

TEST_P(RealCheckpointTest, OpensWithEverythingAccountedFor) {
  const std::string shared = testing::shared_directory();
  if (shared.empty()) {
    GTEST_SKIP() << "the shared test data is not here";
  }
  const auto begin = std::chrono::steady_clock::now();
  Result<Checkpoint> opened = Checkpoint::open(shared + GetParam().folder);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  RecordProperty("open_ms", std::to_string(1e3 * seconds.count()));
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  EXPECT_EQ(opened->tensors().size(), GetParam().tensors);
  EXPECT_EQ(opened->total_bytes(), GetParam().bytes);
  EXPECT_EQ(opened->config().layer_count(), GetParam().layers);
}

INSTANTIATE_TEST_SUITE_P(All, RealCheckpointTest,
                         ::testing::Values(RealCase{"/data/twins/k3-twin-a", 884, 6'357'568, 8},
                                           RealCase{"/data/twins/kimi-linear-twin", 353, 5'225'152,
                                                    6},
                                           RealCase{"/model", 3486, 38'619'968, 12}));

}  // namespace
}  // namespace triax::checkpoint
