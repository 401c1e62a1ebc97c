// Products of packed matrices with up to four rows, as fast as memory reads the matrices: Hopper.
// Several matrices are one launch, and what makes their input, and the sum it becomes part of, too.
#pragma once

#include <cstdint>

#include "dense/linear/gating.h"
#include "tensor/matrix.h"

namespace triax::dense {

constexpr int64_t kLinearDecodeTokensMax = 4;
constexpr int kLinearDecodePartsMax = 6;

/// What enters a product, x [tokens, cols] device float32, rows strided:
///   kPlain    x = a
///   kNormed   x = rms_norm(a + b) norm_weight; b null: of a
///   kGated    x = gating(gate = a, up = b)
struct DecodeInputSm90 {
  enum class Kind { kPlain, kNormed, kGated };
  Kind kind = Kind::kPlain;
  const float* a = nullptr;
  int64_t a_stride = 0;
  const float* b = nullptr;
  int64_t b_stride = 0;
  const float* norm_weight = nullptr;  // [cols]
  float eps = 0.0f;
  Gating gating = {};
};

/// out[t, r] = sum_c x[t, c] weight[r, c] + add[t, r], add null: without
struct DecodePartSm90 {
  DecodeInputSm90 in;
  MatrixView weight;
  float* out = nullptr;
  int64_t out_stride = 0;
  const float* add = nullptr;
  int64_t add_stride = 0;
};

/// Up to kLinearDecodePartsMax products, which are independent of each other.
/// Shapes     out, add [tokens, rows] device float32, rows strided; weight in device memory, kBf16,
///            kInt8 or kMxfp4
/// Layout     cols a multiple of 128; weight.data, scales, rows of inputs and norm_weight 16-byte
///            aligned; anything else is refused
/// Precision  weights exact (kMxfp4: scales 2^-100 to 2^33); an input is the sum of two bf16
///            values, within 2^-17 of itself; with kInt8 weights it is a 16-bit integer times a
///            scale for 32 columns, within 2^-15 of the largest of them (below 2^-100 all count as
///            zero); products and sums in float32
/// Invariance out[t] depends on row t of the inputs alone, bit for bit, for one matrix on one kind
///            of GPU
/// Aliasing   out is distinct from all inputs but add; out may be add
struct LinearDecodeSm90 {
  DecodePartSm90 parts[kLinearDecodePartsMax];
  int count = 0;
  int64_t tokens = 0;  // 0 to kLinearDecodeTokensMax
  /// By-products of the first part's input, dense rows where not null: a + b, and x.
  float* sum = nullptr;
  float* x = nullptr;
  /// The kernel before this one in the stream writes no weights (norm_weight included): they are
  /// read while it still runs.
  bool overlap = false;
};

/// Whether the fast form takes a part's matrix; what it refuses goes through triax_cuda_linear.
bool linear_decode_sm90_supports(const MatrixView& weight, int64_t tokens);

/// Errors     a cudaError_t as int (cudaErrorNotSupported: see above); enqueues only
extern "C" int triax_cuda_linear_decode_sm90(const LinearDecodeSm90* args, void* stream);

}  // namespace triax::dense
