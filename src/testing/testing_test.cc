// The tools of the tests must themselves notice what they are there to notice.
#include "testing/testing.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <utility>

namespace triax::testing {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(GuardedOutput, IsNanInsideAndIntactAtFirst) {
  GuardedOutput out(3, 5, 9, 1);
  const TensorView view = out.view();
  EXPECT_EQ(view.stride(0), 9);
  for (int64_t r = 0; r < 3; ++r) {
    for (int64_t c = 0; c < 5; ++c) {
      EXPECT_TRUE(std::isnan(view.data<float>()[r * 9 + c]));
    }
  }
  EXPECT_TRUE(out.guards_intact());
}

TEST(GuardedOutput, WritesInsideAreAllowed) {
  GuardedOutput out(3, 5, 9);
  for (int64_t r = 0; r < 3; ++r) {
    std::fill_n(out.view().data<float>() + r * 9, 5, 0.0f);
  }
  EXPECT_TRUE(out.guards_intact());
}

TEST(GuardedOutput, EachWriteOutsideIsFound) {
  // Before, far before, after the last row, and in the gap between two rows.
  for (int64_t offset : {-1, -64, 2 * 9 + 5, 3 * 9 + 8, 2 * 9 + 64, 5, 8, 9 + 5}) {
    for (float value : {0.0f, kNan}) {
      GuardedOutput out(3, 5, 9, 2);
      out.view().data<float>()[offset] = value;
      EXPECT_FALSE(out.guards_intact()) << offset;
    }
  }
}

TEST(GuardedOutput, LiesWhereItIsAskedTo) {
  for (int64_t misalign : {0, 1, 3, 7, 15}) {
    GuardedOutput out(2, 4, 0, misalign);
    const auto address = reinterpret_cast<uintptr_t>(out.view().data<float>());
    EXPECT_EQ(address % 64, static_cast<uintptr_t>(misalign) * 4);
  }
}

TEST(GuardedOutput, MayBeEmptyAndMayMove) {
  EXPECT_TRUE(GuardedOutput(0, 0).guards_intact());
  EXPECT_TRUE(GuardedOutput(0, 7).guards_intact());
  EXPECT_TRUE(GuardedOutput(7, 0).guards_intact());
  GuardedOutput out(2, 2);
  const float* address = out.view().data<float>();
  GuardedOutput moved = std::move(out);
  EXPECT_EQ(moved.view().data<float>(), address);
  EXPECT_TRUE(moved.guards_intact());
}

Tensor row_of(std::initializer_list<float> values) {
  Tensor tensor = Tensor::f32({1, static_cast<int64_t>(values.size())});
  std::copy(values.begin(), values.end(), tensor.data<float>());
  return tensor;
}

TEST(Comparison, RelativeRmsIsTheDefinition) {
  EXPECT_DOUBLE_EQ(relative_rms(row_of({1, 2}), row_of({1, 2})), 0.0);
  EXPECT_DOUBLE_EQ(relative_rms(row_of({4, 4}), row_of({3, 4})), 1.0 / 5.0);
  EXPECT_DOUBLE_EQ(relative_rms(row_of({0, 0}), row_of({0, 0})), 0.0);
  EXPECT_TRUE(std::isinf(relative_rms(row_of({1, 0}), row_of({0, 0}))));
  EXPECT_TRUE(std::isinf(relative_rms(row_of({kNan, 2}), row_of({1, 2}))));
  EXPECT_TRUE(std::isinf(relative_rms(row_of({1, 2}), row_of({HUGE_VALF, 2}))));
}

TEST(Comparison, MaxAbsDifferenceFindsTheWorstAndTheNan) {
  EXPECT_DOUBLE_EQ(max_abs_difference(row_of({1, -2, 3}), row_of({1, 2, 2})), 4.0);
  EXPECT_TRUE(std::isinf(max_abs_difference(row_of({kNan, 2}), row_of({1, 2}))));
  EXPECT_TRUE(std::isinf(max_abs_difference(row_of({1, 2}), row_of({1, kNan}))));
}

TEST(Comparison, BitsDifferWhereNumbersDoNot) {
  EXPECT_TRUE(bitwise_equal(row_of({1, kNan}), row_of({1, kNan})));
  EXPECT_FALSE(bitwise_equal(row_of({0.0f}), row_of({-0.0f})));
  EXPECT_FALSE(bitwise_equal(row_of({1}), row_of({1, 2})));
  EXPECT_TRUE(bitwise_equal(Tensor::f32({0, 3}), Tensor::f32({0, 3})));
}

TEST(Comparison, StridesDoNotMatter) {
  Tensor wide = random_tensor({2, 3, 10}, 1);
  Tensor tight = Tensor::f32({2, 3, 4});
  const TensorView part = wide.view().slice(2, 3, 7);
  for (int64_t i = 0; i < 6; ++i) {
    std::copy_n(part.data<float>() + i * 10, 4, tight.data<float>() + i * 4);
  }
  EXPECT_TRUE(bitwise_equal(part, tight));
  EXPECT_EQ(relative_rms(part, tight), 0.0);
  part.data<float>()[5 * 10 + 3] += 1.0f;
  EXPECT_FALSE(bitwise_equal(part, tight));
  EXPECT_NEAR(max_abs_difference(part, tight), 1.0, 1e-6);
}

TEST(Generators, SeedsDecideAndScalesScale) {
  const Tensor a = random_tensor({50, 40}, 7, 2.0);
  EXPECT_TRUE(bitwise_equal(a, random_tensor({50, 40}, 7, 2.0)));
  EXPECT_FALSE(bitwise_equal(a, random_tensor({50, 40}, 8, 2.0)));
  EXPECT_NEAR(relative_rms(Tensor::f32({50, 40}), a), 1.0, 1e-12);
  double squares = 0.0;
  for (int64_t i = 0; i < 2000; ++i) {
    squares += static_cast<double>(a.data<float>()[i]) * static_cast<double>(a.data<float>()[i]);
  }
  EXPECT_NEAR(std::sqrt(squares / 2000), 2.0, 5 * 2.0 / std::sqrt(2 * 2000.0));
}

TEST(Devices, NamesAreDistinctAndTheReferenceIsAmongThem) {
  std::set<std::string> names;
  for (const TestDevice& device : test_devices()) {
    EXPECT_TRUE(names.insert(device.name()).second) << device.name();
  }
  EXPECT_EQ(names.count("reference"), 1U);
  EXPECT_EQ(names.count("portable_1"), 1U);
  EXPECT_EQ(names.count("portable_3"), 1U);
}

}  // namespace
}  // namespace triax::testing
