// Packed matrices in device memory with random contents, beside what they mean. For tests of CUDA
// code only.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "tensor/dtype.h"
#include "tensor/matrix.h"
#include "testing/gpu.h"

namespace triax::dense {

constexpr MatrixFormat kAllFormats[] = {MatrixFormat::kF32, MatrixFormat::kF16, MatrixFormat::kBf16,
                                        MatrixFormat::kMxfp4, MatrixFormat::kInt8};

/// Random [rows, cols] of about unit size; `values` are its elements, exactly. With `misaligned`
/// the data begin one element off a 16-byte border (MXFP4 and int8: one byte).
class GpuMatrix {
 public:
  GpuMatrix(MatrixFormat format, int64_t rows, int64_t cols, uint64_t seed, bool misaligned = false)
      : values(static_cast<size_t>(rows * cols)), rng_(seed) {
    view_.format = format;
    view_.rows = rows;
    view_.cols = cols;
    bytes_.resize(static_cast<size_t>(rows * view_.row_bytes()));
    scales_.resize(static_cast<size_t>(rows * view_.scale_row_bytes()));
    for (int64_t i = 0; i < rows * cols; ++i) {
      fill(i);
    }
    const size_t element = std::max<size_t>(1, static_cast<size_t>(view_.row_bytes() / cols));
    const size_t start = misaligned ? element : 0;
    std::vector<uint8_t> placed(start + bytes_.size());
    std::copy(bytes_.begin(), bytes_.end(), placed.begin() + static_cast<int64_t>(start));
    data_ = std::make_unique<testing::GpuArray<uint8_t>>(placed);
    scale_data_ = std::make_unique<testing::GpuArray<uint8_t>>(scales_);
    view_.data = data_->data() + start;
    view_.scales = scales_.empty() ? nullptr : scale_data_->data();
  }

  const MatrixView& view() const { return view_; }
  double at(int64_t row, int64_t col) const {
    return static_cast<double>(values[static_cast<size_t>(row * view_.cols + col)]);
  }

  std::vector<float> values;

 private:
  template <typename T>
  void put(int64_t i, T element) {
    std::memcpy(bytes_.data() + static_cast<size_t>(i) * sizeof(T), &element, sizeof(T));
  }

  // The scale of element i's block: chosen at the block's first element.
  float scale_of(int64_t i) {
    const auto block = static_cast<size_t>(i / kScaleBlock);
    const bool first = i % kScaleBlock == 0;
    if (view_.format == MatrixFormat::kMxfp4) {
      if (first) {
        scales_[block] = static_cast<uint8_t>(124 + rng_() % 4);
      }
      return std::ldexp(1.0f, static_cast<int>(scales_[block]) - 127);
    }
    Bf16 scale = {};
    if (first) {
      scale = to_bf16(1.0f / static_cast<float>(64 + rng_() % 64));
      std::memcpy(scales_.data() + 2 * block, &scale, 2);
    }
    std::memcpy(&scale, scales_.data() + 2 * block, 2);
    return to_float(scale);
  }

  void fill(int64_t i) {
    const float x = normal_(rng_);
    float& value = values[static_cast<size_t>(i)];
    switch (view_.format) {
      case MatrixFormat::kF32:
        value = x;
        return put(i, x);
      case MatrixFormat::kF16:
        value = to_float(to_f16(x));
        return put(i, to_f16(x));
      case MatrixFormat::kBf16:
        value = to_float(to_bf16(x));
        return put(i, to_bf16(x));
      case MatrixFormat::kInt8: {
        const auto code = static_cast<int8_t>(static_cast<int>(rng_() % 255) - 127);
        value = static_cast<float>(code) * scale_of(i);
        return put(i, code);
      }
      case MatrixFormat::kMxfp4: {
        constexpr float kMagnitudes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
        const auto code = static_cast<unsigned>(rng_() % 16);
        const float magnitude = kMagnitudes[code % 8] * scale_of(i);
        value = code < 8 ? magnitude : -magnitude;
        bytes_[static_cast<size_t>(i / 2)] =
            static_cast<uint8_t>(bytes_[static_cast<size_t>(i / 2)] | (code << (i % 2 * 4)));
        return;
      }
    }
  }

  std::mt19937_64 rng_;
  std::normal_distribution<float> normal_{0.0f, 1.0f};
  MatrixView view_;
  std::vector<uint8_t> bytes_;
  std::vector<uint8_t> scales_;
  std::unique_ptr<testing::GpuArray<uint8_t>> data_;
  std::unique_ptr<testing::GpuArray<uint8_t>> scale_data_;
};

}  // namespace triax::dense
