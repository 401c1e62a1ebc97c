// Weight matrices as checkpoints hold them: packed, read-only, owned by a mapped file or a Tensor.
#pragma once

#include <cstdint>
#include <string_view>

namespace triax {

/// How the elements of a matrix are stored, row after row.
///   kF32, kF16, kBf16   plain numbers
///   kMxfp4              two E2M1 nibbles a byte (the even column in the low nibble), and one E8M0
///                       byte of scale for 32 columns: value = e2m1 * 2^(scale - 127)
///   kInt8               one int8 a column, and one bf16 scale for 32 columns: value = int8 * scale
enum class MatrixFormat { kF32, kF16, kBf16, kMxfp4, kInt8 };

/// Columns that share one scale in kMxfp4 and kInt8.
constexpr int64_t kScaleBlock = 32;

constexpr std::string_view matrix_format_name(MatrixFormat format) {
  switch (format) {
    case MatrixFormat::kF32:
      return "fp32";
    case MatrixFormat::kF16:
      return "fp16";
    case MatrixFormat::kBf16:
      return "bf16";
    case MatrixFormat::kMxfp4:
      return "mxfp4";
    case MatrixFormat::kInt8:
      return "int8";
  }
  return "?";
}

/// W [rows, cols] = [outputs, inputs] of y = x W^T.
/// Layout     rows contiguous and dense; data [rows, cols] (kMxfp4: [rows, cols / 2] bytes);
///            scales [rows, cols / 32] (kMxfp4: uint8 E8M0, kInt8: Bf16), null for plain formats
/// Errors     kMxfp4 and kInt8 need cols to be a multiple of 32: who makes a view checks it
struct MatrixView {
  MatrixFormat format = MatrixFormat::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  const void* data = nullptr;
  const void* scales = nullptr;

  bool empty() const { return data == nullptr; }

  /// Bytes of one row of `data`.
  int64_t row_bytes() const {
    switch (format) {
      case MatrixFormat::kF32:
        return cols * 4;
      case MatrixFormat::kF16:
      case MatrixFormat::kBf16:
        return cols * 2;
      case MatrixFormat::kMxfp4:
        return cols / 2;
      case MatrixFormat::kInt8:
        return cols;
    }
    return 0;
  }

  /// Bytes of one row of `scales`.
  int64_t scale_row_bytes() const {
    if (format == MatrixFormat::kMxfp4) {
      return cols / kScaleBlock;
    }
    return format == MatrixFormat::kInt8 ? cols / kScaleBlock * 2 : 0;
  }

  /// All bytes that a product reads.
  int64_t bytes() const { return rows * (row_bytes() + scale_row_bytes()); }

  /// Rows [begin, end) as a matrix.
  MatrixView row_range(int64_t begin, int64_t end) const {
    MatrixView part = *this;
    part.rows = end - begin;
    part.data = static_cast<const char*>(data) + begin * row_bytes();
    if (scales != nullptr) {
      part.scales = static_cast<const char*>(scales) + begin * scale_row_bytes();
    }
    return part;
  }
};

/// Row `row` as floats, exactly: the plain way, for references, tests and single rows.
/// Shapes     out [cols]
void dequantize_row(const MatrixView& matrix, int64_t row, float* out);

}  // namespace triax
