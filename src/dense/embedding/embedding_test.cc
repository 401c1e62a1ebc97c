// embed on every backend: exact rows, in every format.
#include "dense/embedding/embedding.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "testing/mirror.h"
#include "testing/testing.h"

namespace triax::dense {
namespace {

using triax::testing::GuardedOutput;
using triax::testing::random_matrix;
using triax::testing::TestDevice;

Status mirrored(const Device& device, std::span<const int32_t> ids, MatrixView table,
                TensorView out) {
  triax::testing::Mirror mirror(device);
  mirror.in(&table).out(&out);
  return mirror.run([&] { return embed(device, ids, table, out); });
}

class Embedding : public ::testing::TestWithParam<TestDevice> {
 protected:
  OwnedDevice device_ = GetParam().open();
};

INSTANTIATE_TEST_SUITE_P(Devices, Embedding, ::testing::ValuesIn(triax::testing::test_devices()),
                         [](const auto& device) { return device.param.name(); });

TEST_P(Embedding, CopiesExactlyTheNamedRows) {
  const MatrixFormat formats[] = {MatrixFormat::kF32, MatrixFormat::kF16, MatrixFormat::kBf16,
                                  MatrixFormat::kMxfp4, MatrixFormat::kInt8};
  for (const MatrixFormat format : formats) {
    for (const int64_t count : {0, 1, 63, 1100}) {
      const int64_t cols = 96;
      const OwnedMatrix table = random_matrix(format, 50, cols, 1);
      std::vector<int32_t> ids;
      for (int64_t t = 0; t < count; ++t) {
        ids.push_back(static_cast<int32_t>(t * 37 % 50));
      }
      GuardedOutput out(count, cols, cols + 5, 3);
      ASSERT_TRUE(mirrored(device_, ids, table.view, out.view()).ok());
      EXPECT_TRUE(out.guards_intact());
      std::vector<float> row(static_cast<size_t>(cols));
      for (int64_t t = 0; t < count; ++t) {
        dequantize_row(table.view, ids[static_cast<size_t>(t)], row.data());
        ASSERT_TRUE(triax::testing::bitwise_equal(out.view().rows(t, t + 1),
                                                  ConstTensorView(row.data(), {1, cols})))
            << matrix_format_name(format) << " row " << t;
      }
    }
  }
}

TEST_P(Embedding, TakesAnyWidthOfPlainFormats) {
  for (const int64_t cols : {1, 7, 63, 100}) {
    const OwnedMatrix table = random_matrix(MatrixFormat::kBf16, 3, cols, 2);
    const std::vector<int32_t> ids = {2, 0, 2};
    GuardedOutput out(3, cols);
    ASSERT_TRUE(mirrored(device_, ids, table.view, out.view()).ok());
    std::vector<float> row(static_cast<size_t>(cols));
    dequantize_row(table.view, 2, row.data());
    EXPECT_TRUE(triax::testing::bitwise_equal(out.view().rows(2, 3),
                                              ConstTensorView(row.data(), {1, cols})));
  }
}

TEST_P(Embedding, NamesTheIdThatIsOutOfRangeAndWritesNothing) {
  const OwnedMatrix table = random_matrix(MatrixFormat::kBf16, 10, 32, 3);
  for (const int32_t bad : {-1, 10, 1 << 30}) {
    const std::vector<int32_t> ids = {0, 9, bad};
    GuardedOutput out(3, 32);
    const Status status = mirrored(device_, ids, table.view, out.view());
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), "embed: ids[2] is " + std::to_string(bad) + ", expected 0 to 9");
    EXPECT_TRUE(std::isnan(out.view().data<float>()[0]));
  }
}

TEST_P(Embedding, RefusesAnOutputOfAnotherShape) {
  const OwnedMatrix table = random_matrix(MatrixFormat::kBf16, 10, 32, 4);
  const std::vector<int32_t> ids = {1, 2};
  GuardedOutput out(3, 32);
  const Status status = embed(device_, ids, table.view, out.view());
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "embed: 'out' has shape [3, 32], expected [T=2, D=32]");
  EXPECT_TRUE(std::isnan(out.view().data<float>()[0]));
}

}  // namespace
}  // namespace triax::dense
