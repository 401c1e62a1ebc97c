// The kernels without intrinsics, and the tables of kernels.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "dense/linear/linear_kernels.h"
#include "tensor/dtype.h"

namespace triax::dense::linear_internal {
namespace {

constexpr int64_t kLanes = 8;

// Twice the E2M1 values, by code.
constexpr int8_t kE2m1Twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

float e8m0(uint8_t scale) {
  return std::bit_cast<float>(static_cast<uint32_t>(scale) << 23 | (scale == 255 ? 1U : 0U));
}

float block_scale(const Work& work, int64_t row, int64_t block) {
  const uint8_t* scales = work.scales + row * work.scale_row_bytes;
  if (work.format == MatrixFormat::kMxfp4) {
    return e8m0(scales[block]);
  }
  Bf16 scale;
  std::memcpy(&scale, scales + 2 * block, 2);
  return to_float(scale);
}

void unpack_row(const Work& work, int64_t row, float* out) {
  const uint8_t* data = work.data + row * work.row_bytes;
  switch (work.format) {
    case MatrixFormat::kF32:
      std::memcpy(out, data, static_cast<size_t>(work.cols) * 4);
      return;
    case MatrixFormat::kF16:
    case MatrixFormat::kBf16:
      for (int64_t c = 0; c < work.cols; ++c) {
        uint16_t bits;
        std::memcpy(&bits, data + 2 * c, 2);
        out[c] = work.format == MatrixFormat::kF16 ? to_float(F16{bits}) : to_float(Bf16{bits});
      }
      return;
    case MatrixFormat::kMxfp4:
    case MatrixFormat::kInt8:
      break;
  }
  for (int64_t block = 0; block < work.cols / kScaleBlock; ++block) {
    const float scale = block_scale(work, row, block);
    float* y = out + block * kScaleBlock;
    if (work.format == MatrixFormat::kInt8) {
      const uint8_t* w = data + block * kScaleBlock;
      for (int64_t i = 0; i < kScaleBlock; ++i) {
        y[i] = static_cast<float>(static_cast<int8_t>(w[i])) * scale;
      }
    } else {
      const uint8_t* w = data + block * kScaleBlock / 2;
      for (int64_t i = 0; i < kScaleBlock / 2; ++i) {
        y[2 * i] = 0.5f * static_cast<float>(kE2m1Twice[w[i] & 15U]) * scale;
        y[2 * i + 1] = 0.5f * static_cast<float>(kE2m1Twice[w[i] >> 4]) * scale;
      }
    }
  }
}

float dot(const float* w, const float* x, int64_t cols) {
  float lanes[kLanes] = {};
  int64_t c = 0;
  for (; c + kLanes <= cols; c += kLanes) {
    for (int64_t i = 0; i < kLanes; ++i) {
      lanes[i] += w[c + i] * x[c + i];
    }
  }
  for (int64_t i = 0; c + i < cols; ++i) {
    lanes[i] += w[c + i] * x[c + i];
  }
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
         ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

// A row of MXFP4 or int8 as small integers.
void unpack_row_int8(const Work& work, int64_t row, int8_t* out) {
  const uint8_t* data = work.data + row * work.row_bytes;
  if (work.format == MatrixFormat::kInt8) {
    std::memcpy(out, data, static_cast<size_t>(work.cols));
    return;
  }
  for (int64_t i = 0; i < work.cols / 2; ++i) {
    out[2 * i] = kE2m1Twice[data[i] & 15U];
    out[2 * i + 1] = kE2m1Twice[data[i] >> 4];
  }
}

float dot_int8(const int8_t* w, const float* scales, const int8_t* q, const float* q_scales,
               int64_t blocks) {
  float sum = 0.0f;
  for (int64_t block = 0; block < blocks; ++block) {
    int32_t products = 0;
    for (int64_t i = 0; i < kScaleBlock; ++i) {
      products += w[block * kScaleBlock + i] * q[block * kScaleBlock + i];
    }
    sum += static_cast<float>(products) * (scales[block] * q_scales[block]);
  }
  return sum;
}

void multiply(const Work& work, const Range& range, std::byte* scratch) {
  auto* w = reinterpret_cast<float*>(scratch);
  const int64_t tokens = range.token_end - range.token_begin;
  for (int64_t r = range.row_begin; r < range.row_end; ++r) {
    unpack_row(work, r, w);
    for (int64_t t = range.token_begin; t < range.token_begin + tokens; ++t) {
      work.out[t * work.out_stride + r] = dot(w, work.x + t * work.x_stride, work.cols);
    }
  }
}

void multiply_int8(const Work& work, const Range& range, std::byte* scratch) {
  auto* w = reinterpret_cast<int8_t*>(scratch);
  auto* scales = reinterpret_cast<float*>(scratch + (work.cols + 63) / 64 * 64);
  const int64_t blocks = work.cols / kScaleBlock;
  for (int64_t r = range.row_begin; r < range.row_end; ++r) {
    unpack_row_int8(work, r, w);
    for (int64_t block = 0; block < blocks; ++block) {
      scales[block] = block_scale(work, r, block);
    }
    for (int64_t t = range.token_begin; t < range.token_end; ++t) {
      work.out[t * work.out_stride + r] = dot_int8(w, scales, work.q + t * work.q_stride,
                                                   work.q_scales + t * work.q_block_stride, blocks);
    }
  }
}

void prefill(const Work& work, const Range& range, std::byte* scratch) {
  work.int8 ? multiply_int8(work, range, scratch) : multiply(work, range, scratch);
}

void quantize(const float* x, int64_t cols, MatrixFormat format, const QuantizedRow& row) {
  for (int64_t block = 0; block < cols / kScaleBlock; ++block) {
    const float* in = x + block * kScaleBlock;
    int8_t* out = row.values + block * kScaleBlock;
    uint32_t bits = 0;  // NaN > infinity > numbers
    for (int64_t i = 0; i < kScaleBlock; ++i) {
      const uint32_t magnitude = std::bit_cast<uint32_t>(in[i]) & 0x7fffffffU;
      bits = magnitude > bits ? magnitude : bits;
    }
    const float amax = std::bit_cast<float>(bits);
    const bool finite = bits < 0x7f800000U;
    const bool zero = !finite || amax < 0x1.0p-100f;
    const float inverse = zero ? 0.0f : 127.0f / amax;
    for (int64_t i = 0; i < kScaleBlock; ++i) {
      out[i] = static_cast<int8_t>(finite ? std::nearbyint(in[i] * inverse) : 0.0f);
    }
    const float half = format == MatrixFormat::kMxfp4 ? 0.5f : 1.0f;
    const float scale = zero ? 0.0f : amax / 127.0f * half;
    row.scales[block] = finite ? scale : std::numeric_limits<float>::quiet_NaN();
  }
}

int64_t scratch_bytes(int64_t cols) { return cols * 5 + 128; }

void decode(const Work& work, int64_t begin, int64_t end, std::byte* scratch) {
  prefill(work, {begin, end, 0, work.tokens}, scratch);
}

void prefill_avx2_any(const Work& work, const Range& range, std::byte* scratch) {
  work.int8 ? prefill_int8_avx2(work, range, scratch) : prefill_avx2(work, range, scratch);
}

void prefill_avx512_any(const Work& work, const Range& range, std::byte* scratch) {
  work.int8 ? prefill_int8_avx512(work, range, scratch) : prefill_avx512(work, range, scratch);
}

}  // namespace

Kernels portable_kernels() {
  return {.tile_rows_max = 1,
          .quantize = quantize,
          .quantize_tile = nullptr,
          .pack_decode = nullptr,
          .pack_tile = nullptr,
          .decode = decode,
          .prefill = prefill,
          .scratch_bytes = scratch_bytes};
}

Kernels avx2_kernels() {
  return {.tile_rows_max = kTileRowsAvx2,
          .quantize = quantize_avx2,
          .quantize_tile = nullptr,
          .pack_decode = pack_decode_avx2,
          .pack_tile = pack_tile_avx2,
          .decode = decode_avx2,
          .prefill = prefill_avx2_any,
          .scratch_bytes = scratch_bytes_avx2};
}

Kernels avx512_kernels() {
  return {.tile_rows_max = kTileRowsAvx512,
          .quantize = quantize_avx512,
          .quantize_tile = quantize_tile_avx512,
          .pack_decode = pack_decode_avx512,
          .pack_tile = pack_tile_avx512,
          .decode = decode_avx512,
          .prefill = prefill_avx512_any,
          .scratch_bytes = scratch_bytes_avx512};
}

}  // namespace triax::dense::linear_internal
