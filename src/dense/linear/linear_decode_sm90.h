// The product of a packed matrix with up to four rows, as fast as memory reads the matrix: Hopper.
#pragma once

#include <cstdint>

#include "tensor/matrix.h"

namespace triax::dense {

constexpr int64_t kLinearDecodeTokensMax = 4;

/// out[t, r] = sum_c in[t, c] * weight[r, c]
/// Shapes     in [tokens, cols], out [tokens, rows] device float32, rows strided; weight in device
///            memory, kBf16, kInt8 or kMxfp4
/// Layout     cols a multiple of 128; weight.data 16-byte aligned, in's rows too
/// Precision  weights exact (kMxfp4: scales 2^-100 to 2^33); each input is the sum of two bf16
///            values, within 2^-17 of itself; products and sums in float32
/// Invariance out[t] depends on in[t] alone, bit for bit, for one matrix on one kind of GPU
/// Aliasing   out is distinct from in
struct LinearDecodeSm90 {
  MatrixView weight;
  const float* in;
  int64_t in_stride;
  int64_t tokens;  // 0 to kLinearDecodeTokensMax
  float* out;
  int64_t out_stride;
};

/// Whether the fast form takes this; what it refuses goes through triax_cuda_linear.
bool linear_decode_sm90_supports(const MatrixView& weight, int64_t tokens);

/// Errors     a cudaError_t as int (cudaErrorNotSupported: see above); enqueues only
extern "C" int triax_cuda_linear_decode_sm90(const LinearDecodeSm90* args, void* stream);

}  // namespace triax::dense
