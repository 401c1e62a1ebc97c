// Products on tensor cores with bf16 operands: rounding, unpacking, and the matrix product itself
// by cuBLASLt, which is opened at run time where it is installed.
#pragma once

#include <cstdint>

#include "tensor/matrix.h"

namespace triax::dense {

/// out = in, rounded to bf16 (to nearest even), or widened back to float32.
/// Shapes     in, out [rows, size] device memory, rows strided in elements
struct RoundRowsCuda {
  const void* in;
  int64_t in_stride;
  void* out;
  int64_t out_stride;
  int64_t rows;
  int64_t size;
  bool overlap = false;  // may start while the kernel in front runs, and wait for it: Hopper
};

/// Errors     a cudaError_t as int; enqueues only
extern "C" int triax_cuda_round_rows(const RoundRowsCuda* args, void* stream);  // float32 to bf16
extern "C" int triax_cuda_widen_rows(const RoundRowsCuda* args, void* stream);  // bf16 to float32

/// out [matrix.rows, matrix.cols] bf16, dense: the weights, rounded where bf16 cannot hold them.
struct UnpackBf16Cuda {
  MatrixView matrix;
  void* out;
};

/// Errors     a cudaError_t as int; enqueues only
extern "C" int triax_cuda_unpack_bf16(const UnpackBf16Cuda* args, void* stream);

constexpr int64_t kMatmulBf16ScratchBytes = int64_t{1} << 25;

/// For each of `batch` problems: out[t, r] = sum_c in[t, c] weight[r, c]
/// Shapes     in [tokens, cols] bf16, rows strided; weight [rows, cols] bf16, rows dense, or with
///            `weight_by_columns` [cols, rows]; out [tokens, rows] float32 or bf16, rows strided;
///            problems lie in_batch, weight_batch and out_batch elements apart; cols, rows and all
///            strides multiples of 8, pointers 16-byte aligned; scratch of kMatmulBf16ScratchBytes,
///            256-byte aligned
struct MatmulBf16Cuda {
  const void* in;
  int64_t in_stride;
  int64_t tokens;
  const void* weight;
  int64_t rows;
  int64_t cols;
  void* out;
  int64_t out_stride;
  bool out_bf16;
  void* scratch;
  bool weight_by_columns = false;
  int64_t batch = 1;
  int64_t in_batch = 0;
  int64_t weight_batch = 0;
  int64_t out_batch = 0;
};

/// Precision  float32 sums in an order that depends on the shape: equal bits in two runs, but a
/// row's
///            bits may depend on how many rows there are
/// Errors     a cudaError_t as int, cudaErrorNotSupported without cuBLASLt or for such a shape; or
///            kCublasLtErrors plus cuBLASLt's status; enqueues only, may be captured
extern "C" int triax_cuda_matmul_bf16(const MatmulBf16Cuda* args, void* stream);

/// 1 where cuBLASLt was found, else 0.
extern "C" int triax_cuda_has_matmul_bf16();

}  // namespace triax::dense
