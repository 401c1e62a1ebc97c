// Products of packed matrices with some tens of rows: weights stream past tensor cores once:
// Hopper.
#pragma once

#include <cstdint>

#include "tensor/matrix.h"

namespace triax::dense {

constexpr int64_t kLinearRowsTokensMax = 64;
constexpr int kLinearRowsPartsMax = 6;
constexpr int64_t kLinearRowsColumns = 128;  // of weights: a multiple

/// out[t, r] = sum_c in[t, c] * weight[r, c] + add[t, r], add null: without
struct LinearRowsPartSm90 {
  MatrixView weight;
  const void* in = nullptr;  // [tokens, cols] bf16, rows strided
  int64_t in_stride = 0;
  float* out = nullptr;  // [tokens, rows], rows strided
  int64_t out_stride = 0;
  const float* add = nullptr;  // [tokens, rows], rows strided
  int64_t add_stride = 0;
};

/// Up to kLinearRowsPartsMax products, which are independent of each other.
/// Shapes     in, out in device memory; weight in device memory, kBf16 or kInt8
/// Layout     cols a multiple of 128; weight.data and rows of `in` 16-byte aligned, scales
///            8-byte; anything else is refused
/// Precision  weights exact; products and sums in float32
/// Invariance out[t] depends on row t of `in` alone, bit for bit, for the same matrices together on
///            one kind of GPU
/// Aliasing   out is distinct from all inputs but add; out may be add
struct LinearRowsSm90 {
  LinearRowsPartSm90 parts[kLinearRowsPartsMax];
  int count = 0;
  int64_t tokens = 0;    // 0 to kLinearRowsTokensMax
  bool overlap = false;  // the kernel in front writes no weights: they are read while it runs
};

bool linear_rows_sm90_supports(const MatrixView& weight, int64_t tokens);

/// Errors     a cudaError_t as int (cudaErrorNotSupported: see above); enqueues only
extern "C" int triax_cuda_linear_rows_sm90(const LinearRowsSm90* args, void* stream);

}  // namespace triax::dense
