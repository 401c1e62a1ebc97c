// Products with weight matrices that stay packed; dequantisation happens inside the product.
#pragma once

#include <span>

#include "base/status.h"
#include "device/device.h"
#include "tensor/matrix.h"
#include "tensor/tensor.h"

namespace triax::dense {

/// How the activations enter a product.
///   kF32   as they are
///   kInt8  rounded to int8 with one float scale for 32 inputs, for kMxfp4 and kInt8 weights only
///          (other formats take them as they are): faster; the error is stated in README.md.
///          A GPU takes them as they are
///   kBf16  on a GPU: rounded to bf16 where there are more than kDecodeRowsMax rows, and so are
///   int8
///          weights of more than 64: each operand is off by at most 2^-9 of itself. With few rows
///          inputs are off by 2^-17, before int8 weights by 2^-15 of the largest of 32. A row's
///          bits may depend on the number of rows. On a CPU: kF32
enum class Activations { kF32, kInt8, kBf16 };

/// out[t, r] = sum_c in[t, c] * weight[r, c]
struct Product {
  ConstTensorView in;  // [T, C] float32, rows strided
  MatrixView weight;   // [R, C]
  TensorView out;      // [T, R] float32, rows strided
};

/// Any number of independent products in one parallel region: all projections of one input, or all
/// experts of a layer. T may differ from product to product and may be 0.
/// Precision  float32 accumulation; error bound in linear_test.cc
/// Invariance out[t, r] does not depend on the thread count, on the other products nor on the
///            other rows of `in`, as long as T stays on the same side of kDecodeRowsMax
/// Aliasing   outputs are distinct from each other and from all inputs
/// Errors     kInvalidArgument for shape, type or null; nothing is written then
Status linear(const Device& device, std::span<const Product> products,
              Activations activations = Activations::kF32);

/// One product.
inline Status linear(const Device& device, const Product& product,
                     Activations activations = Activations::kF32) {
  return linear(device, std::span(&product, 1), activations);
}

/// Up to this many rows a product streams the weights once, row by row (bound by memory); above it,
/// panels of weights are unpacked and reused (bound by arithmetic).
constexpr int64_t kDecodeRowsMax = 4;

}  // namespace triax::dense
