// Sums and copies of rows on every backend: exact, so that every backend gives the same bits.
#include "dense/rows/rows.h"

#include <gtest/gtest.h>

#include "testing/mirror.h"
#include "testing/testing.h"

namespace triax::dense {
namespace {

using triax::testing::GuardedOutput;
using triax::testing::random_tensor;
using triax::testing::TestDevice;

class Rows : public ::testing::TestWithParam<TestDevice> {
 protected:
  OwnedDevice device_ = GetParam().open();
};

INSTANTIATE_TEST_SUITE_P(Devices, Rows, ::testing::ValuesIn(triax::testing::test_devices()),
                         [](const auto& device) { return device.param.name(); });

TEST_P(Rows, AreAddedElementByElement) {
  for (const int64_t size : {0, 1, 63, 64, 65, 1000}) {
    for (const int64_t rows : {0, 1, 100}) {
      const Tensor memory = random_tensor({rows, size + 3}, 1);
      ConstTensorView delta = memory.view().slice(1, 3, size + 3);
      const Tensor before = random_tensor({rows, size}, 2);
      GuardedOutput sum(rows, size, size + 5, 1);
      TensorView out = sum.view();
      ASSERT_TRUE(copy_rows(TestDevice{Backend::kCpu, Isa::kPortable, 1}.open(), before, out).ok());
      triax::testing::Mirror mirror(device_);
      mirror.in(&delta).out(&out);
      ASSERT_TRUE(mirror.run([&] { return add_rows(device_, delta, out); }).ok());
      EXPECT_TRUE(sum.guards_intact());
      for (int64_t i = 0; i < rows * size; ++i) {
        const int64_t t = i / size;
        const int64_t d = i % size;
        EXPECT_EQ(sum.view().data<float>()[t * (size + 5) + d],
                  before.data<float>()[i] + memory.data<float>()[t * (size + 3) + 3 + d]);
      }
    }
  }
}

TEST_P(Rows, AreCopiedAndGathered) {
  for (const int64_t size : {1, 63, 64, 65, 1000}) {
    const Tensor in = random_tensor({70, size}, 3);
    ConstTensorView from = in.view();
    GuardedOutput all(70, size, size + 5, 3);
    TensorView out = all.view();
    triax::testing::Mirror copying(device_);
    copying.in(&from).out(&out);
    ASSERT_TRUE(copying.run([&] { return copy_rows(device_, from, out); }).ok());
    EXPECT_TRUE(all.guards_intact());
    EXPECT_TRUE(triax::testing::bitwise_equal(all.view(), in.view()));

    const std::vector<int64_t> rows = {69, 0, 7, 7};
    GuardedOutput some(4, size, size + 2, 1);
    from = in.view();
    out = some.view();
    triax::testing::Mirror gathering(device_);
    gathering.in(&from).out(&out);
    ASSERT_TRUE(gathering.run([&] { return gather_rows(device_, from, rows, out); }).ok());
    EXPECT_TRUE(some.guards_intact());
    for (int64_t i = 0; i < 4; ++i) {
      const int64_t row = rows[static_cast<size_t>(i)];
      EXPECT_TRUE(
          triax::testing::bitwise_equal(some.view().rows(i, i + 1), in.view().rows(row, row + 1)));
    }
  }
}

TEST_P(Rows, WrongArgumentsAreNamedAndNothingIsWritten) {
  const Tensor in = random_tensor({4, 8}, 4);
  GuardedOutput out(4, 9);
  EXPECT_EQ(add_rows(device_, in, out.view()).message(),
            "add_rows: 'sum' has shape [4, 9], expected [T=4, D=8]");
  EXPECT_EQ(copy_rows(device_, in, out.view()).code(), StatusCode::kInvalidArgument);
  GuardedOutput two(2, 8);
  for (const std::vector<int64_t>& rows :
       {std::vector<int64_t>{0, 4}, {-1, 0}, std::vector<int64_t>{0}}) {
    EXPECT_EQ(gather_rows(device_, in, rows, two.view()).code(), StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(std::isnan(out.view().data<float>()[0]));
  EXPECT_TRUE(std::isnan(two.view().data<float>()[0]));
}

}  // namespace
}  // namespace triax::dense
