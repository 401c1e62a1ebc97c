// Random packed matrices on the GPU and their products in double: for tests and benches.
#pragma once

#include <cmath>
#include <utility>
#include <vector>

#include "dense/linear/linear_decode_sm90.h"
#include "testing/gpu.h"

namespace triax::dense::sm90_cases {

/// Bytes that are hashes of their places, from low to high; with `bf16`, pairs of them are bf16
/// numbers of any sign, 2^-5 to 2^0.
static __global__ void fill_bytes(uint8_t* data, int64_t count, uint64_t seed, int low, int high,
                                  bool bf16) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    uint64_t x = static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15ull + seed;
    x = (x ^ (x >> 31)) * 0xBF58476D1CE4E5B9ull;
    x ^= x >> 29;
    const auto byte = static_cast<uint8_t>(low + static_cast<int>((x >> 11) % (high - low + 1)));

    data[i] = bf16 && i % 2 == 1 ? static_cast<uint8_t>((byte & 0x80) | (0x3D + byte % 3)) : byte;
  }
}

inline double bf16_value(const std::vector<uint8_t>& bytes, int64_t i) {
  const uint32_t bits = static_cast<uint32_t>(bytes[static_cast<size_t>(2 * i)]) << 16 |
                        static_cast<uint32_t>(bytes[static_cast<size_t>(2 * i + 1)]) << 24;
  float value;
  std::memcpy(&value, &bits, 4);
  return static_cast<double>(value);
}

struct PackedMatrix {
  MatrixFormat format;
  int64_t rows, cols;
  testing::GpuArray<uint8_t> data;
  testing::GpuArray<uint8_t> scales;

  PackedMatrix(MatrixFormat format_, int64_t rows_, int64_t cols_, uint64_t seed)
      : format(format_),
        rows(rows_),
        cols(cols_),
        data(static_cast<size_t>(shape().row_bytes() * rows)),
        scales(static_cast<size_t>(shape().scale_row_bytes() * rows)) {
    fill_bytes<<<1024, 256>>>(data.data(), static_cast<int64_t>(data.size()), seed, 0, 255,
                              format == MatrixFormat::kBf16);
    const bool mxfp4 = format == MatrixFormat::kMxfp4;
    fill_bytes<<<1024, 256>>>(scales.data(), static_cast<int64_t>(scales.size()), seed + 1,
                              mxfp4 ? 119 : 0, mxfp4 ? 123 : 255, !mxfp4);
    testing::gpu_check(cudaDeviceSynchronize(), "fill");
  }

  MatrixView shape() const { return {.format = format, .rows = rows, .cols = cols}; }
  MatrixView view() const {
    MatrixView v = shape();
    v.data = data.data();
    v.scales = scales.data();
    return v;
  }

  std::vector<double> multiply_double(const std::vector<float>& in, int64_t tokens) const {
    const std::vector<uint8_t> d = data.get();
    const std::vector<uint8_t> s = scales.get();
    std::vector<double> out(static_cast<size_t>(tokens * rows));
    std::vector<double> row(static_cast<size_t>(cols));
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        row[static_cast<size_t>(c)] = value(d, s, r * cols + c);
      }
      for (int64_t t = 0; t < tokens; ++t) {
        double sum = 0.0;
        for (int64_t c = 0; c < cols; ++c) {
          sum += row[static_cast<size_t>(c)] *
                 static_cast<double>(in[static_cast<size_t>(t * cols + c)]);
        }
        out[static_cast<size_t>(t * rows + r)] = sum;
      }
    }
    return out;
  }

 private:
  double value(const std::vector<uint8_t>& d, const std::vector<uint8_t>& s, int64_t i) const {
    constexpr double kE2m1[8] = {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0};
    if (format == MatrixFormat::kBf16) {
      return bf16_value(d, i);
    }
    if (format == MatrixFormat::kInt8) {
      return static_cast<double>(static_cast<int8_t>(d[static_cast<size_t>(i)])) *
             bf16_value(s, i / 32);
    }
    const int byte = d[static_cast<size_t>(i / 2)];
    const int nibble = i % 2 == 0 ? byte & 15 : byte >> 4;
    return std::ldexp((nibble & 8) != 0 ? -kE2m1[nibble & 7] : kE2m1[nibble & 7],
                      s[static_cast<size_t>(i / 32)] - 127);
  }
};

}  // namespace triax::dense::sm90_cases
