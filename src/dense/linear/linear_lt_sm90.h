// Products of many rows with bf16 matrices: a thin layer over cuBLASLt.
#pragma once

#include <cstdint>

namespace triax::dense {

/// What one shape runs: made once on the host, used any number of times. Not for two streams at
/// once where they share scratch.
struct LinearLtPlan;

/// A plan for out [tokens, rows] = in [tokens, cols] weight [rows, cols]^T, all dense.
/// The algorithm is chosen here, by shape alone, from those that keep sums in float32 and add split
/// sums in a fixed order: equal shapes on one kind of GPU give equal bits. Different numbers of
/// tokens may not.
/// Errors     a cudaError_t as int (cudaErrorNotSupported when cuBLASLt is not installed or
///            offers nothing for the shape; cols must be a multiple of 8); *plan is null then.
///            Allocates, on the device too if cuBLASLt wants it, and belongs to the current device
extern "C" int triax_cuda_linear_lt_create(int64_t tokens, int64_t rows, int64_t cols,
                                           LinearLtPlan** plan);
extern "C" void triax_cuda_linear_lt_destroy(LinearLtPlan* plan);

/// Bytes of scratch of a plan: the inputs as bf16, and cuBLASLt's own.
extern "C" int64_t triax_cuda_linear_lt_scratch_bytes(const LinearLtPlan* plan);

/// Shapes     in [tokens, cols] float32, rows strided; weight [rows, cols] bf16, dense, 16-byte
///            aligned; out [tokens, rows] float32, rows strided; all in device memory
/// Scratch    as said, 256-byte aligned; keeps nothing
/// Precision  in rounded to bf16; products and sums in float32
/// Aliasing   out is distinct from all inputs
struct LinearLtSm90 {
  const LinearLtPlan* plan;
  const float* in;
  int64_t in_stride;
  const void* weight;
  float* out;
  int64_t out_stride;
  void* scratch;
};

/// Errors     a cudaError_t as int; enqueues only
extern "C" int triax_cuda_linear_lt_sm90(const LinearLtSm90* args, void* stream);

}  // namespace triax::dense
