// Views and owning arrays.
#include "tensor/tensor.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace triax {
namespace {

std::vector<float> iota(int64_t n) {
  std::vector<float> values(static_cast<size_t>(n));
  std::iota(values.begin(), values.end(), 0.0f);
  return values;
}

std::vector<int64_t> shape_of(const ConstTensorView& view) {
  return {view.shape().begin(), view.shape().end()};
}

TEST(View, IsRowMajor) {
  std::vector<float> values = iota(24);
  const TensorView view(values.data(), {2, 3, 4});
  EXPECT_EQ(view.rank(), 3);
  EXPECT_EQ(view.stride(0), 12);
  EXPECT_EQ(view.stride(1), 4);
  EXPECT_EQ(view.stride(2), 1);
  EXPECT_EQ(view.elements(), 24);
  EXPECT_TRUE(view.contiguous());
}

TEST(View, SliceMovesTheStartAndKeepsTheStrides) {
  std::vector<float> values = iota(24);
  const TensorView view(values.data(), {2, 3, 4});
  const TensorView part = view.slice(1, 1, 3);
  EXPECT_EQ(shape_of(part), (std::vector<int64_t>{2, 2, 4}));
  EXPECT_EQ(part.data<float>(), values.data() + 4);
  EXPECT_EQ(part.stride(0), 12);
  EXPECT_FALSE(part.contiguous());
  EXPECT_EQ(view.slice(2, 3, 4).data<float>()[0], 3.0f);
  EXPECT_EQ(view.rows(1, 2).data<float>()[0], 12.0f);
  EXPECT_EQ(view.slice(0, 2, 2).elements(), 0);
}

TEST(View, SliceCountsBytesOfTheElementType) {
  std::vector<Bf16> values(10);
  const TensorView view(values.data(), {10});
  EXPECT_EQ(view.slice(0, 3, 5).data<Bf16>(), values.data() + 3);
}

TEST(View, SplitLastAddressesTheSameElements) {
  std::vector<float> values = iota(3 * 40);
  // Rows of 24 used values, 40 apart.
  const TensorView rows = TensorView(values.data(), {3, 40}).slice(1, 0, 24);
  const TensorView heads = rows.split_last(4, 6);
  EXPECT_EQ(shape_of(heads), (std::vector<int64_t>{3, 4, 6}));
  for (int64_t t = 0; t < 3; ++t) {
    for (int64_t h = 0; h < 4; ++h) {
      const float* head = heads.data<float>() + t * heads.stride(0) + h * heads.stride(1);
      EXPECT_EQ(head[5 * heads.stride(2)], values[static_cast<size_t>(t * 40 + h * 6 + 5)]);
    }
  }
}

TEST(View, ContiguousIgnoresStridesOfSizeOne) {
  std::vector<float> values = iota(8);
  const TensorView view(values.data(), {1, 8});
  EXPECT_TRUE(view.with_stride(0, 99).contiguous());
  EXPECT_FALSE(TensorView(values.data(), {2, 2}).with_stride(0, 4).contiguous());
}

TEST(View, AWritableViewReads) {
  std::vector<float> values = iota(6);
  const TensorView view = TensorView(values.data(), {2, 2}).with_stride(0, 3);
  const ConstTensorView reading = view;
  EXPECT_EQ(reading.stride(0), 3);
  EXPECT_EQ(reading.data<float>(), values.data());
  static_assert(std::is_same_v<decltype(reading.data<float>()), const float*>);
  static_assert(!std::is_constructible_v<TensorView, ConstTensorView>);
}

TEST(View, DefaultIsEmptyWithoutDimensions) {
  const TensorView view;
  EXPECT_TRUE(view.empty());
  EXPECT_EQ(view.rank(), 0);
}

TEST(ViewDeathTest, MisuseAborts) {
  std::vector<float> values = iota(24);
  const TensorView view(values.data(), {4, 6});
  EXPECT_DEATH(view.slice(0, 2, 5), "slice out of range");
  EXPECT_DEATH(view.slice(0, -1, 2), "slice out of range");
  EXPECT_DEATH(view.slice(1, 3, 2), "slice out of range");
  EXPECT_DEATH(view.split_last(2, 2), "cannot split");
  EXPECT_DEATH(view.data<Bf16>(), "element type differs");
  EXPECT_DEATH(TensorView(values.data(), {1, 1, 1, 1, 1, 1}), "too many dimensions");
}

TEST(Tensor, IsZeroedAndAligned) {
  for (int64_t n : {1, 5, 4096, 3 << 20}) {
    const Tensor tensor = Tensor::f32({n});
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data<float>()) % 64, 0U);
    EXPECT_EQ(tensor.bytes(), 4 * n);
    EXPECT_EQ(tensor.data<float>()[0], 0.0f);
    EXPECT_EQ(tensor.data<float>()[n - 1], 0.0f);
  }
}

TEST(Tensor, MayHaveNoElements) {
  const Tensor tensor = Tensor::f32({0, 7});
  EXPECT_EQ(tensor.bytes(), 0);
  EXPECT_FALSE(tensor.view().empty());
}

TEST(Tensor, MovesItsMemory) {
  Tensor a = Tensor::f32({3});
  a.data<float>()[1] = 5.0f;
  const float* address = a.data<float>();
  Tensor b = std::move(a);
  EXPECT_EQ(b.data<float>(), address);
  Tensor c = Tensor::f32({100});
  c = std::move(b);
  EXPECT_EQ(c.data<float>(), address);
  EXPECT_EQ(c.data<float>()[1], 5.0f);
  EXPECT_EQ(c.size(0), 3);
}

TEST(TensorDeathTest, ImpossibleSizesAbort) {
  EXPECT_DEATH(Tensor::f32({-1}), "size out of range");
  EXPECT_DEATH(Tensor::f32({int64_t{1} << 40, int64_t{1} << 40}), "size out of range");
}

TEST(Tensor, ShapesPrintAsLists) {
  const std::vector<int64_t> shape = {12, 256};
  EXPECT_EQ(shape_string(shape), "[12, 256]");
  EXPECT_EQ(shape_string({}), "[]");
}

}  // namespace
}  // namespace triax
