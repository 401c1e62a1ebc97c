#include "tensor/quantize.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace triax {
namespace {

/// Values of a 16-bit format, at any address.
template <typename T>
void widen(const char* data, int64_t count, float* out) {
  for (int64_t c = 0; c < count; ++c) {
    T x;
    std::memcpy(&x, data + 2 * c, 2);
    out[c] = to_float(x);
  }
}

void unpack_mxfp4(const char* data, const char* scales, int64_t count, float* out) {
  for (int64_t block = 0; block < count / kScaleBlock; ++block) {
    const float scale = e8m0_to_float(static_cast<uint8_t>(scales[block]));
    float values[16];  // by code
    for (int code = 0; code < 8; ++code) {
      values[code] = kE2m1[code] * scale;
      values[code + 8] = -values[code];
    }
    for (int64_t i = 0; i < kScaleBlock / 2; ++i) {
      const auto byte = static_cast<uint8_t>(data[block * kScaleBlock / 2 + i]);
      out[block * kScaleBlock + 2 * i] = values[byte & 15U];
      out[block * kScaleBlock + 2 * i + 1] = values[byte >> 4];
    }
  }
}

void unpack_int8(const char* data, const char* scales, int64_t count, float* out) {
  for (int64_t block = 0; block < count / kScaleBlock; ++block) {
    Bf16 scale;
    std::memcpy(&scale, scales + 2 * block, 2);
    for (int64_t i = block * kScaleBlock; i < (block + 1) * kScaleBlock; ++i) {
      out[i] = static_cast<float>(static_cast<int8_t>(data[i])) * to_float(scale);
    }
  }
}

}  // namespace

float e8m0_to_float(uint8_t scale) {
  if (scale == 0) {
    return 0x1.0p-127f;
  }
  // 255 becomes the exponent of infinity and NaN: a set mantissa bit makes it NaN.
  return std::bit_cast<float>(static_cast<uint32_t>(scale) << 23 | (scale == 255 ? 1U : 0U));
}

uint8_t to_e2m1(float x) {
  const float magnitude = std::fabs(x);
  // Halfway points between neighbours; at one of them the even code wins.
  constexpr float kBounds[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
  uint8_t code = 0;
  for (uint8_t i = 0; i < 7; ++i) {
    const bool above = i % 2 == 0 ? magnitude > kBounds[i] : magnitude >= kBounds[i];
    code = static_cast<uint8_t>(code + (above ? 1 : 0));
  }
  return static_cast<uint8_t>(code | (std::signbit(x) ? 8 : 0));
}

uint8_t mxfp4_even_scale(float amax) {
  // Adding half of the second mantissa bit carries 1.75 and above into the exponent.
  const uint32_t bits = std::bit_cast<uint32_t>(amax) + (1U << 21);
  const int exponent = static_cast<int>((bits >> 23) & 0xffU) - 2;
  return static_cast<uint8_t>(std::clamp(exponent, 0, 254));
}

void quantize_row_mxfp4(const float* in, int64_t cols, uint8_t* packed, uint8_t* scales) {
  for (int64_t block = 0; block < cols / kScaleBlock; ++block) {
    const float* x = in + block * kScaleBlock;
    float amax = 0.0f;
    for (int64_t i = 0; i < kScaleBlock; ++i) {
      amax = std::max(amax, std::fabs(x[i]));
    }
    scales[block] = mxfp4_even_scale(amax);
    const float scale = e8m0_to_float(scales[block]);
    uint8_t* out = packed + block * kScaleBlock / 2;
    for (int64_t i = 0; i < kScaleBlock / 2; ++i) {
      const uint8_t low = to_e2m1(x[2 * i] / scale);
      const uint8_t high = to_e2m1(x[2 * i + 1] / scale);
      out[i] = static_cast<uint8_t>(low | high << 4);
    }
  }
}

void quantize_row_int8(const float* in, int64_t cols, int8_t* out, Bf16* scales) {
  for (int64_t block = 0; block < cols / kScaleBlock; ++block) {
    const float* x = in + block * kScaleBlock;
    float amax = 0.0f;
    for (int64_t i = 0; i < kScaleBlock; ++i) {
      amax = std::max(amax, std::fabs(x[i]));
    }
    scales[block] = to_bf16(amax / 127.0f);
    // A scale of 0 (all values 0 or too small for one) divides as 1: every value rounds to 0.
    const float scale = scales[block].bits == 0 ? 1.0f : to_float(scales[block]);
    for (int64_t i = 0; i < kScaleBlock; ++i) {
      const float rounded = std::nearbyint(x[i] / scale);
      out[block * kScaleBlock + i] = static_cast<int8_t>(std::clamp(rounded, -127.0f, 127.0f));
    }
  }
}

void dequantize_row(const MatrixView& matrix, int64_t row, float* out) {
  if (matrix.cols == 0) {
    return;  // data may be null then
  }
  const char* data = static_cast<const char*>(matrix.data) + row * matrix.row_bytes();
  const char* scales = static_cast<const char*>(matrix.scales);
  if (scales != nullptr) {
    scales += row * matrix.scale_row_bytes();
  }
  switch (matrix.format) {
    case MatrixFormat::kF32:
      std::memcpy(out, data, static_cast<size_t>(matrix.cols) * sizeof(float));
      break;
    case MatrixFormat::kF16:
      widen<F16>(data, matrix.cols, out);
      break;
    case MatrixFormat::kBf16:
      widen<Bf16>(data, matrix.cols, out);
      break;
    case MatrixFormat::kMxfp4:
      unpack_mxfp4(data, scales, matrix.cols, out);
      break;
    case MatrixFormat::kInt8:
      unpack_int8(data, scales, matrix.cols, out);
      break;
  }
}

OwnedMatrix make_matrix(MatrixFormat format, int64_t rows, int64_t cols) {
  const bool blocked = format == MatrixFormat::kMxfp4 || format == MatrixFormat::kInt8;
  check(!blocked || cols % kScaleBlock == 0, "matrix: columns are not whole blocks of 32");
  OwnedMatrix m;
  m.view = {format, rows, cols, nullptr, nullptr};
  m.data = Tensor(DType::kU8, {rows, m.view.row_bytes()});
  m.view.data = m.data.data<uint8_t>();
  if (blocked) {
    m.scales = Tensor(DType::kU8, {rows, m.view.scale_row_bytes()});
    m.view.scales = m.scales.data<uint8_t>();
  }
  return m;
}

OwnedMatrix quantize_matrix(MatrixFormat format, ConstTensorView in) {
  OwnedMatrix m = make_matrix(format, in.size(0), in.size(1));
  for (int64_t r = 0; r < in.size(0); ++r) {
    const float* x = in.data<float>() + r * in.stride(0);
    uint8_t* data = m.data.data<uint8_t>() + r * m.view.row_bytes();
    switch (format) {
      case MatrixFormat::kF32:
        std::memcpy(data, x, static_cast<size_t>(in.size(1)) * 4);
        break;
      case MatrixFormat::kF16:
        std::transform(x, x + in.size(1), reinterpret_cast<F16*>(data), to_f16);
        break;
      case MatrixFormat::kBf16:
        std::transform(x, x + in.size(1), reinterpret_cast<Bf16*>(data), to_bf16);
        break;
      case MatrixFormat::kMxfp4:
        quantize_row_mxfp4(x, in.size(1), data,
                           m.scales.data<uint8_t>() + r * m.view.scale_row_bytes());
        break;
      case MatrixFormat::kInt8:
        quantize_row_int8(
            x, in.size(1), reinterpret_cast<int8_t*>(data),
            reinterpret_cast<Bf16*>(m.scales.data<uint8_t>() + r * m.view.scale_row_bytes()));
        break;
    }
  }
  return m;
}

}  // namespace triax
