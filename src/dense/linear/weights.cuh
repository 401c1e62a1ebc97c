// Packed weights as floats, read by one thread: the five formats of tensor/matrix.h on the device.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "tensor/matrix.h"

namespace triax::dense {

/// Columns that a thread reads at a time. Divides kScaleBlock.
constexpr int kWeightGroup = 8;

/// A MatrixView that device code can use.
struct DeviceWeights {
  const uint8_t* data;
  const uint8_t* scales;
  int64_t row_bytes;
  int64_t scale_row_bytes;
  int64_t rows;
  int64_t cols;
};

inline DeviceWeights device_weights(const MatrixView& matrix) {
  return {static_cast<const uint8_t*>(matrix.data),
          static_cast<const uint8_t*>(matrix.scales),
          matrix.row_bytes(),
          matrix.scale_row_bytes(),
          matrix.rows,
          matrix.cols};
}

/// Whether a group of kWeightGroup columns can be read at once (kWide below): whole groups,
/// aligned.
inline bool wide_weights(const void* data, int64_t cols) {
  return cols % kWeightGroup == 0 && reinterpret_cast<uintptr_t>(data) % 16 == 0;
}

/// The same for rows of floats.
inline bool wide_rows(const float* data, int64_t stride, int64_t cols) {
  return wide_weights(data, cols) && stride % 4 == 0;
}

__device__ inline float bf16_to_float(uint32_t bits) { return __uint_as_float(bits << 16); }

/// The E2M1 code in the low 4 bits. Its exponent and mantissa are put where a float has them, which
/// is right up to 2^126, zero and 0.5 included: they are subnormal there.
__device__ inline float e2m1_to_float(uint32_t code) {
  const float magnitude = __uint_as_float((code & 7U) << 22) * 0x1.0p126f;
  return __uint_as_float(__float_as_uint(magnitude) | ((code & 8U) << 28));
}

/// 2^(scale - 127); 255 is NaN.
__device__ inline float e8m0_on_device(uint32_t scale) {
  const uint32_t subnormal = scale == 0U ? 0x00400000U : scale << 23;
  return __uint_as_float(scale == 255U ? 0x7fc00000U : subnormal);
}

/// The scale of the block that holds column `col`. `scales` is the row's.
template <MatrixFormat kFormat>
__device__ inline float block_scale(const uint8_t* scales, int64_t col) {
  if constexpr (kFormat == MatrixFormat::kMxfp4) {
    return e8m0_on_device(scales[col / kScaleBlock]);
  } else if constexpr (kFormat == MatrixFormat::kInt8) {
    return bf16_to_float(reinterpret_cast<const uint16_t*>(scales)[col / kScaleBlock]);
  } else {
    return 1.0f;
  }
}

/// One element, exactly.
template <MatrixFormat kFormat>
__device__ inline float weight_at(const uint8_t* data, const uint8_t* scales, int64_t col) {
  if constexpr (kFormat == MatrixFormat::kF32) {
    return reinterpret_cast<const float*>(data)[col];
  } else if constexpr (kFormat == MatrixFormat::kF16) {
    return __half2float(reinterpret_cast<const __half*>(data)[col]);
  } else if constexpr (kFormat == MatrixFormat::kBf16) {
    return bf16_to_float(reinterpret_cast<const uint16_t*>(data)[col]);
  } else if constexpr (kFormat == MatrixFormat::kMxfp4) {
    const uint32_t code = static_cast<uint32_t>(data[col / 2]) >> (col % 2 * 4);
    return e2m1_to_float(code) * block_scale<kFormat>(scales, col);
  } else {
    const auto value = static_cast<float>(reinterpret_cast<const int8_t*>(data)[col]);
    return value * block_scale<kFormat>(scales, col);
  }
}

__device__ inline void load_floats(const float* from, float (&out)[kWeightGroup]) {
  const float4 a = reinterpret_cast<const float4*>(from)[0];
  const float4 b = reinterpret_cast<const float4*>(from)[1];
  out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w;
  out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
}

/// A whole group as memory has it, in one or two loads; unpacked later, so that a load's latency
/// can be spent otherwise. All zeros unpack to zeros.
template <MatrixFormat kFormat>
struct PackedGroup;

template <>
struct PackedGroup<MatrixFormat::kF32> {
  float values[kWeightGroup];
  __device__ void load(const uint8_t* data, const uint8_t*, int64_t col) {
    load_floats(reinterpret_cast<const float*>(data) + col, values);
  }
  __device__ void unpack(float (&out)[kWeightGroup]) const {
#pragma unroll
    for (int i = 0; i < kWeightGroup; ++i) {
      out[i] = values[i];
    }
  }
};

/// Two 16-bit numbers a word, the even column in the low half.
struct PackedHalves {
  uint32_t words[4];
  __device__ void load(const uint8_t* data, const uint8_t*, int64_t col) {
    const uint4 v = *reinterpret_cast<const uint4*>(data + 2 * col);
    words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
  }
};

template <>
struct PackedGroup<MatrixFormat::kBf16> : PackedHalves {
  __device__ void unpack(float (&out)[kWeightGroup]) const {
#pragma unroll
    for (int i = 0; i < kWeightGroup / 2; ++i) {
      out[2 * i] = __uint_as_float(words[i] << 16);
      out[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000U);
    }
  }
};

template <>
struct PackedGroup<MatrixFormat::kF16> : PackedHalves {
  __device__ void unpack(float (&out)[kWeightGroup]) const {
#pragma unroll
    for (int i = 0; i < kWeightGroup; ++i) {
      const uint32_t bits = words[i / 2] >> (i % 2 * 16) & 0xffffU;
      out[i] = __half2float(__ushort_as_half(static_cast<uint16_t>(bits)));
    }
  }
};

template <>
struct PackedGroup<MatrixFormat::kMxfp4> {
  uint32_t codes;
  uint32_t scale;
  __device__ void load(const uint8_t* data, const uint8_t* scales, int64_t col) {
    codes = *reinterpret_cast<const uint32_t*>(data + col / 2);
    scale = scales[col / kScaleBlock];
  }
  __device__ void unpack(float (&out)[kWeightGroup]) const {
    const float factor = e8m0_on_device(scale);
#pragma unroll
    for (int i = 0; i < kWeightGroup; ++i) {
      out[i] = e2m1_to_float(codes >> (4 * i)) * factor;
    }
  }
};

template <>
struct PackedGroup<MatrixFormat::kInt8> {
  uint2 values;
  uint32_t scale;
  __device__ void load(const uint8_t* data, const uint8_t* scales, int64_t col) {
    values = *reinterpret_cast<const uint2*>(data + col);
    scale = reinterpret_cast<const uint16_t*>(scales)[col / kScaleBlock];
  }
  __device__ void unpack(float (&out)[kWeightGroup]) const {
    const float factor = bf16_to_float(scale);
#pragma unroll
    for (int i = 0; i < kWeightGroup; ++i) {
      const uint32_t word = i < 4 ? values.x : values.y;
      out[i] = static_cast<float>(static_cast<int8_t>(word >> (i % 4 * 8))) * factor;
    }
  }
};

/// Columns [col, col + 8) of a row as floats, exactly; zeros beyond the matrix.
template <MatrixFormat kFormat, bool kWide>
__device__ inline void load_weights(const uint8_t* data, const uint8_t* scales, int64_t col,
                                    int64_t cols, float (&out)[kWeightGroup]) {
  if constexpr (kWide) {
    PackedGroup<kFormat> group;
    group.load(data, scales, col);
    group.unpack(out);
  } else {
#pragma unroll
    for (int i = 0; i < kWeightGroup; ++i) {
      out[i] = col + i < cols ? weight_at<kFormat>(data, scales, col + i) : 0.0f;
    }
  }
}

/// Columns [col, col + 8) of a row of floats; zeros beyond its end.
template <bool kWide>
__device__ inline void load_row(const float* row, int64_t col, int64_t cols,
                                float (&out)[kWeightGroup]) {
  if constexpr (kWide) {
    load_floats(row + col, out);
  } else {
#pragma unroll
    for (int i = 0; i < kWeightGroup; ++i) {
      out[i] = col + i < cols ? row[col + i] : 0.0f;
    }
  }
}

/// Calls f.template operator()<format>().
template <typename F>
void with_format(MatrixFormat format, F&& f) {
  switch (format) {
    case MatrixFormat::kF32:
      return f.template operator()<MatrixFormat::kF32>();
    case MatrixFormat::kF16:
      return f.template operator()<MatrixFormat::kF16>();
    case MatrixFormat::kBf16:
      return f.template operator()<MatrixFormat::kBf16>();
    case MatrixFormat::kMxfp4:
      return f.template operator()<MatrixFormat::kMxfp4>();
    case MatrixFormat::kInt8:
      return f.template operator()<MatrixFormat::kInt8>();
  }
}

}  // namespace triax::dense
