// Views of strided arrays, and an owning array. Shapes are data; element types are checked.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "device/memory_source.h"
#include "tensor/dtype.h"

namespace triax {

constexpr int kRankMax = 5;

/// A strided array that belongs to somebody else. Strides count elements, not bytes.
/// Const-ness of the data is the type's parameter: View<const void> reads, View<void> writes.
template <typename Void>
class BasicView {
 public:
  BasicView() = default;

  /// Contiguous, row-major.
  template <typename T>
  BasicView(T* data, std::initializer_list<int64_t> shape)
      : BasicView(data, DTypeOf<std::remove_cv_t<T>>::value,
                  std::span(shape.begin(), shape.size())) {}

  BasicView(Void* data, DType dtype, std::span<const int64_t> shape)
      : data_(data), dtype_(dtype), rank_(static_cast<int>(shape.size())) {
    check(rank_ <= kRankMax, "view: too many dimensions");
    int64_t stride = 1;
    for (int i = rank_ - 1; i >= 0; --i) {
      shape_[index(i)] = shape[index(i)];
      stride_[index(i)] = stride;
      stride *= shape[index(i)];
    }
  }

  /// A writable view reads, too.
  template <typename Other>
  requires(std::is_const_v<Void> && !std::is_const_v<Other>)
      BasicView(const BasicView<Other>& other)  // NOLINT: implicit, as T* to const T*
      : data_(other.raw()), dtype_(other.dtype()), rank_(other.rank()) {
    for (int i = 0; i < rank_; ++i) {
      shape_[index(i)] = other.size(i);
      stride_[index(i)] = other.stride(i);
    }
  }

  /// The same data with the stride (in elements) of dimension `dim` replaced.
  BasicView with_stride(int dim, int64_t stride) const {
    BasicView view = *this;
    view.stride_[index(dim)] = stride;
    return view;
  }

  /// Rows [begin, end) of the first dimension.
  BasicView rows(int64_t begin, int64_t end) const { return slice(0, begin, end); }

  /// Entries [begin, end) of dimension `dim`.
  BasicView slice(int dim, int64_t begin, int64_t end) const {
    check(begin >= 0 && begin <= end && end <= size(dim), "view: slice out of range");
    BasicView view = *this;
    view.data_ = static_cast<Byte*>(data_) + begin * stride(dim) * dtype_bytes(dtype_);
    view.shape_[index(dim)] = end - begin;
    return view;
  }

  /// The last dimension split in two: [.., a * b] to [.., a, b].
  BasicView split_last(int64_t a, int64_t b) const {
    check(rank_ >= 1 && rank_ < kRankMax && size(rank_ - 1) == a * b, "view: cannot split so");
    BasicView view = *this;
    view.shape_[index(rank_ - 1)] = a;
    view.shape_[index(rank_)] = b;
    view.stride_[index(rank_)] = stride(rank_ - 1);
    view.stride_[index(rank_ - 1)] = b * stride(rank_ - 1);
    view.rank_ = rank_ + 1;
    return view;
  }

  int rank() const { return rank_; }
  DType dtype() const { return dtype_; }
  int64_t size(int dim) const { return shape_[index(dim)]; }
  int64_t stride(int dim) const { return stride_[index(dim)]; }
  std::span<const int64_t> shape() const { return {shape_.data(), static_cast<size_t>(rank_)}; }
  Void* raw() const { return data_; }
  bool empty() const { return data_ == nullptr; }

  int64_t elements() const {
    int64_t n = 1;
    for (int64_t s : shape()) {
      n *= s;
    }
    return n;
  }

  bool contiguous() const {
    int64_t expected = 1;
    for (int i = rank_ - 1; i >= 0; --i) {
      if (size(i) != 1 && stride(i) != expected) {
        return false;
      }
      expected *= size(i);
    }
    return true;
  }

  /// The first element. The type must be the array's.
  template <typename T>
  auto* data() const {
    using Element = std::conditional_t<std::is_const_v<Void>, const T, T>;
    check(dtype_ == DTypeOf<T>::value, "view: element type differs");
    return static_cast<Element*>(data_);
  }

 private:
  using Byte = std::conditional_t<std::is_const_v<Void>, const std::byte, std::byte>;
  static size_t index(int i) { return static_cast<size_t>(i); }

  Void* data_ = nullptr;
  DType dtype_ = DType::kF32;
  int rank_ = 0;
  std::array<int64_t, kRankMax> shape_{};
  std::array<int64_t, kRankMax> stride_{};
};

using TensorView = BasicView<void>;
using ConstTensorView = BasicView<const void>;

/// "[12, 256]".
std::string shape_string(std::span<const int64_t> shape);

/// An array that owns its memory. The host's is 64-byte aligned, zeroed, taken lazily from the
/// system when large; any other source's is as that source gives it, and only what runs there may
/// touch the elements.
class Tensor {
 public:
  Tensor() = default;
  Tensor(DType dtype, std::initializer_list<int64_t> shape)
      : Tensor(dtype, std::span(shape.begin(), shape.size())) {}
  Tensor(DType dtype, std::span<const int64_t> shape) : Tensor(dtype, shape, nullptr) {}
  /// `source` outlives the array; null: the host.
  Tensor(DType dtype, std::span<const int64_t> shape, MemorySource* source);

  static Tensor f32(std::initializer_list<int64_t> shape) { return {DType::kF32, shape}; }

  TensorView view() { return view_; }
  ConstTensorView view() const { return view_; }
  operator TensorView() { return view_; }             // NOLINT: it is one
  operator ConstTensorView() const { return view_; }  // NOLINT: it is one

  template <typename T>
  T* data() {
    return view_.data<T>();
  }
  template <typename T>
  const T* data() const {
    return view_.data<T>();
  }
  int64_t size(int dim) const { return view_.size(dim); }
  int64_t bytes() const { return view_.elements() * dtype_bytes(view_.dtype()); }

 private:
  class Memory {
   public:
    Memory() = default;
    Memory(size_t bytes, MemorySource* source);
    Memory(Memory&& other) noexcept { *this = std::move(other); }
    Memory& operator=(Memory&& other) noexcept {
      std::swap(data_, other.data_);
      std::swap(bytes_, other.bytes_);
      std::swap(source_, other.source_);
      return *this;
    }
    ~Memory();
    void* data() const { return data_; }

   private:
    void* data_ = nullptr;
    size_t bytes_ = 0;
    MemorySource* source_ = nullptr;
  };
  Memory memory_;
  TensorView view_;
};

}  // namespace triax
