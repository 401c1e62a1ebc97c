// The messages and the bindings of ShapeCheck.
#include "tensor/shape_check.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <vector>

#include "tensor/quantize.h"

namespace triax {
namespace {

class ShapeCheckTest : public ::testing::Test {
 protected:
  ConstTensorView view(std::initializer_list<int64_t> shape) const {
    return ConstTensorView(values_.data(), shape);
  }
  std::vector<float> values_ = std::vector<float>(1000);
};

TEST_F(ShapeCheckTest, LettersBindOnceAndAreRead) {
  ShapeCheck shapes("op");
  shapes.f32("in", view({3, 8}), {"T", "C"}).f32("weight", view({4, 8}), {"4", "C"});
  EXPECT_TRUE(shapes.ok());
  EXPECT_EQ(shapes["T"], 3);
  EXPECT_EQ(shapes["C"], 8);
}

TEST_F(ShapeCheckTest, MismatchNamesOperationTensorFoundAndExpected) {
  ShapeCheck shapes("short_conv");
  shapes.f32("in", view({3, 8}), {"T", "C"}).f32("out", view({3, 9}), {"T", "C"});
  ASSERT_FALSE(shapes.ok());
  EXPECT_EQ(shapes.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(shapes.status().message(), "short_conv: 'out' has shape [3, 9], expected [T=3, C=8]");
}

TEST_F(ShapeCheckTest, NumbersAreExactAndRanksCount) {
  ShapeCheck number("op");
  number.f32("w", view({5, 8}), {"4", "C"});
  EXPECT_EQ(number.status().message(), "op: 'w' has shape [5, 8], expected [4, C]");
  ShapeCheck rank("op");
  rank.f32("w", view({8}), {"T", "C"});
  EXPECT_EQ(rank.status().message(), "op: 'w' has shape [8], expected [T, C]");
}

TEST_F(ShapeCheckTest, TheFirstMismatchStays) {
  ShapeCheck shapes("op");
  shapes.f32("a", view({2}), {"3"}).f32("b", view({2}), {"5"});
  EXPECT_EQ(shapes.status().message(), "op: 'a' has shape [2], expected [3]");
}

TEST_F(ShapeCheckTest, TypesAreChecked) {
  const std::vector<int32_t> ids(6);
  const ConstTensorView ints(ids.data(), {2, 3});
  ShapeCheck shapes("op");
  shapes.f32("in", ints, {"T", "C"});
  EXPECT_EQ(shapes.status().message(), "op: 'in' has type I32, expected F32");
  ShapeCheck right("op");
  right.typed("ids", ints, DType::kI32, {"T", "k"});
  EXPECT_TRUE(right.ok());
}

TEST_F(ShapeCheckTest, AWrongTypeIsFoundEvenWithoutElements) {
  const std::vector<int32_t> ids(6);
  ShapeCheck shapes("op");
  shapes.f32("in", ConstTensorView(ids.data(), {0, 3}), {"T", "C"});
  EXPECT_FALSE(shapes.ok());
}

TEST_F(ShapeCheckTest, NullIsAllowedOnlyWithoutElements) {
  const float* null = nullptr;
  ShapeCheck none("op");
  none.f32("in", ConstTensorView(null, {0, 3}), {"T", "C"});
  EXPECT_TRUE(none.ok());
  ShapeCheck some("op");
  some.f32("in", ConstTensorView(null, {1, 3}), {"T", "C"});
  EXPECT_EQ(some.status().message(), "op: 'in' has no data");
}

TEST_F(ShapeCheckTest, NegativeSizesAreNoShape) {
  ShapeCheck shapes("op");
  shapes.f32("in", view({-2, -3}), {"T", "C"});
  EXPECT_EQ(shapes.status().message(), "op: 'in' has shape [-2, -3], expected [T, C]");
}

TEST_F(ShapeCheckTest, TheLastDimensionIsDense) {
  ShapeCheck rows("op");
  rows.f32("in", view({3, 4}).with_stride(0, 77), {"T", "C"});
  EXPECT_TRUE(rows.ok());
  ShapeCheck columns("op");
  columns.f32("in", view({3, 4}).with_stride(1, 2), {"T", "C"});
  EXPECT_EQ(columns.status().message(), "op: 'in' has stride 2 in its last dimension, expected 1");
  ShapeCheck single("op");
  single.f32("in", view({3, 1}).with_stride(1, 2), {"T", "C"});
  EXPECT_TRUE(single.ok());
}

TEST_F(ShapeCheckTest, MatricesNeedTheirShapeDataAndScales) {
  const OwnedMatrix m = make_matrix(MatrixFormat::kMxfp4, 6, 64);
  ShapeCheck good("op");
  EXPECT_TRUE(good.matrix("w", m.view, "R", "C").ok());
  EXPECT_EQ(good["R"], 6);
  EXPECT_EQ(good["C"], 64);

  ShapeCheck shape("op");
  shape.bind("C", 32).matrix("w", m.view, "R", "C");
  EXPECT_EQ(shape.status().message(), "op: matrix 'w' has shape [6, 64], expected [R=6, C=32]");

  MatrixView unscaled = m.view;
  unscaled.scales = nullptr;
  ShapeCheck scales("op");
  scales.matrix("w", unscaled, "R", "C");
  EXPECT_EQ(scales.status().message(),
            "op: matrix 'w' is mxfp4 with 64 columns: expected scales and a multiple of 32");

  MatrixView ragged = m.view;
  ragged.cols = 40;
  ShapeCheck columns("op");
  columns.matrix("w", ragged, "R", "C");
  EXPECT_EQ(columns.status().message(),
            "op: matrix 'w' is mxfp4 with 40 columns: expected scales and a multiple of 32");

  ShapeCheck empty("op");
  empty.matrix("w", MatrixView{MatrixFormat::kF32, 2, 3, nullptr, nullptr}, "R", "C");
  EXPECT_EQ(empty.status().message(), "op: matrix 'w' has no data");
}

TEST_F(ShapeCheckTest, BindComparesAndRequireSaysWhy) {
  ShapeCheck bound("op");
  bound.bind("H", 4).bind("H", 5);
  EXPECT_EQ(bound.status().message(), "op: H is 5, expected 4");
  ShapeCheck required("op");
  required.require(true, "fine").require(false, "k must not exceed E");
  EXPECT_EQ(required.status().message(), "op: k must not exceed E");
}

TEST(ShapeCheckDeathTest, AnUnboundLetterAborts) {
  const ShapeCheck shapes("op");
  EXPECT_DEATH(static_cast<void>(shapes["T"]), "not bound");
}

}  // namespace
}  // namespace triax
