#include "tensor/shape_check.h"

#include <fmt/core.h>

#include <charconv>

namespace triax {

bool ShapeCheck::matches(std::string_view dim, int64_t size) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(dim.data(), dim.data() + dim.size(), number);
  if (error == std::errc() && end == dim.data() + dim.size()) {
    return size == number;
  }
  for (size_t i = 0; i < bound_; ++i) {
    if (bindings_[i].dim == dim) {
      return bindings_[i].size == size;
    }
  }
  check(bound_ < bindings_.size(), "shape check: too many dimension names");
  bindings_[bound_++] = {dim, size};
  return true;
}

std::string ShapeCheck::expected(std::initializer_list<std::string_view> dims) const {
  std::string text = "[";
  for (std::string_view dim : dims) {
    text += text.size() > 1 ? ", " : "";
    text += dim;
    for (size_t i = 0; i < bound_; ++i) {
      if (bindings_[i].dim == dim) {
        text += fmt::format("={}", bindings_[i].size);
      }
    }
  }
  return text + "]";
}

void ShapeCheck::fail(std::string message) {
  if (status_.ok()) {
    status_ = Status::invalid_argument(fmt::format("{}: {}", operation_, message));
  }
}

ShapeCheck& ShapeCheck::typed(std::string_view tensor, const ConstTensorView& view, DType dtype,
                              std::initializer_list<std::string_view> dims) {
  bool fits = view.rank() == static_cast<int>(dims.size());
  int i = 0;
  for (std::string_view dim : dims) {
    fits = fits && view.size(i) >= 0 && matches(dim, view.size(i));
    ++i;
  }
  if (!fits) {
    fail(fmt::format("'{}' has shape {}, expected {}", tensor, shape_string(view.shape()),
                     expected(dims)));
  } else if (view.dtype() != dtype) {
    fail(fmt::format("'{}' has type {}, expected {}", tensor, dtype_name(view.dtype()),
                     dtype_name(dtype)));
  } else if (view.elements() > 0 && view.empty()) {
    fail(fmt::format("'{}' has no data", tensor));
  } else if (view.rank() > 0 && view.size(view.rank() - 1) > 1 &&
             view.stride(view.rank() - 1) != 1) {
    fail(fmt::format("'{}' has stride {} in its last dimension, expected 1", tensor,
                     view.stride(view.rank() - 1)));
  }
  return *this;
}

ShapeCheck& ShapeCheck::matrix(std::string_view tensor, const MatrixView& matrix,
                               std::string_view rows, std::string_view cols) {
  const bool blocked =
      matrix.format == MatrixFormat::kMxfp4 || matrix.format == MatrixFormat::kInt8;
  const bool rows_fit = matrix.rows >= 0 && matches(rows, matrix.rows);
  const bool cols_fit = matrix.cols >= 0 && matches(cols, matrix.cols);
  if (!rows_fit || !cols_fit) {
    fail(fmt::format("matrix '{}' has shape [{}, {}], expected {}", tensor, matrix.rows,
                     matrix.cols, expected({rows, cols})));
  } else if (matrix.empty() && matrix.rows * matrix.cols > 0) {
    fail(fmt::format("matrix '{}' has no data", tensor));
  } else if (blocked && (matrix.cols % kScaleBlock != 0 || matrix.scales == nullptr)) {
    fail(fmt::format("matrix '{}' is {} with {} columns: expected scales and a multiple of {}",
                     tensor, matrix_format_name(matrix.format), matrix.cols, kScaleBlock));
  }
  return *this;
}

ShapeCheck& ShapeCheck::bind(std::string_view dim, int64_t size) {
  if (!matches(dim, size)) {
    fail(fmt::format("{} is {}, expected {}", dim, size, (*this)[dim]));
  }
  return *this;
}

ShapeCheck& ShapeCheck::require(bool condition, std::string_view message) {
  if (!condition) {
    fail(std::string(message));
  }
  return *this;
}

int64_t ShapeCheck::operator[](std::string_view dim) const {
  for (size_t i = 0; i < bound_; ++i) {
    if (bindings_[i].dim == dim) {
      return bindings_[i].size;
    }
  }
  check(false, "shape check: dimension is not bound");
  return 0;
}

}  // namespace triax
