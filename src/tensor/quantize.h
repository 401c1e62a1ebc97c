// Rounding to MXFP4 and to 8-bit integers with block scales.
#pragma once

#include <cstdint>

#include "tensor/matrix.h"
#include "tensor/tensor.h"

namespace triax {

/// The E2M1 magnitudes by code 0..7; code 8 + i is the negative of code i.
constexpr float kE2m1[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};

/// 2^(scale - 127); 255 is NaN.
float e8m0_to_float(uint8_t scale);

/// The nearest E2M1 code of x (ties to the even code; beyond 6: saturates).
uint8_t to_e2m1(float x);

/// The block scale of 32 values whose largest magnitude is amax, by the "even" rule: amax is first
/// rounded to a power of two times 1 or 1.5 (mantissa >= 1.75 goes to the next binade), then
/// floor(log2) - 2. Zero gives the smallest scale.
/// Source     spec/training.md section 6, the rule of compressed-tensors
uint8_t mxfp4_even_scale(float amax);

/// One row of cols finite floats (a multiple of 32) to packed nibbles [cols / 2] and scales
/// [cols / 32].
void quantize_row_mxfp4(const float* in, int64_t cols, uint8_t* packed, uint8_t* scales);

/// One row of cols finite floats (a multiple of 32) to int8 [cols] and bf16 scales [cols / 32];
/// scale = bf16(amax / 127), values rounded to nearest even and clamped to +-127.
void quantize_row_int8(const float* in, int64_t cols, int8_t* out, Bf16* scales);

/// A matrix that owns its packed memory.
struct OwnedMatrix {
  Tensor data;
  Tensor scales;
  MatrixView view;
};

/// An empty (zero) matrix of that format and shape. cols must fit the format (multiple of 32).
OwnedMatrix make_matrix(MatrixFormat format, int64_t rows, int64_t cols);

/// `in` [rows, cols] float32, rounded to `format`.
OwnedMatrix quantize_matrix(MatrixFormat format, ConstTensorView in);

}  // namespace triax
