// Checks an operation's arguments against symbolic shapes: a letter binds on its first use.
#pragma once

#include <array>
#include <initializer_list>
#include <string>
#include <string_view>

#include "base/status.h"
#include "tensor/matrix.h"
#include "tensor/tensor.h"

namespace triax {

/// Collects the first mismatch of an entry point's arguments.
///   ShapeCheck shapes("short_conv");
///   shapes.f32("in", in, {"T", "C"}).f32("out", out, {"T", "C"});
///   if (!shapes.ok()) return shapes.status();
/// A name that is a number ("4") is that number. The element type must be right even when there
/// are no elements. The last dimension must be dense (stride 1) unless its size is 1. Messages name
/// the operation, the tensor, expected and found.
class ShapeCheck {
 public:
  explicit ShapeCheck(std::string_view operation) : operation_(operation) {}

  ShapeCheck& f32(std::string_view tensor, const ConstTensorView& view,
                  std::initializer_list<std::string_view> dims) {
    return typed(tensor, view, DType::kF32, dims);
  }
  ShapeCheck& typed(std::string_view tensor, const ConstTensorView& view, DType dtype,
                    std::initializer_list<std::string_view> dims);
  /// Data present, format's block fits, [rows, cols] as named.
  ShapeCheck& matrix(std::string_view tensor, const MatrixView& matrix, std::string_view rows,
                     std::string_view cols);
  /// Binds (or compares) a letter to a size given elsewhere.
  ShapeCheck& bind(std::string_view dim, int64_t size);
  /// Any further condition.
  ShapeCheck& require(bool condition, std::string_view message);

  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }
  /// The size that a letter is bound to; aborts when it is not bound.
  int64_t operator[](std::string_view dim) const;

 private:
  struct Binding {
    std::string_view dim;
    int64_t size;
  };
  /// True when `dim` is a number or bound and equals `size`; an unbound letter binds to it.
  bool matches(std::string_view dim, int64_t size);
  std::string expected(std::initializer_list<std::string_view> dims) const;
  void fail(std::string message);

  std::string_view operation_;
  std::array<Binding, 16> bindings_{};
  size_t bound_ = 0;
  Status status_;
};

}  // namespace triax
