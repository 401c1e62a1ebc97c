// Multi-head latent attention on the GPU, plain: one form, in latent space, float32, for any number
// of new tokens on any architecture.
#pragma once

#include <cstdint>

#include "tensor/matrix.h"

namespace triax::sequence {

/// Pages of latents in device memory: token i of sequence n is row i % 64 of page
/// tables[n * pages_max + i / 64].
struct LatentPagesCuda {
  float* pool;  // [P, 64, R + E]
  int64_t page_stride;
  int64_t row_stride;
  const int32_t* tables;  // [sequences, pages_max]; entries beyond a sequence's end are not read
  int64_t pages_max;
};

/// The contract of MlaAppendArgs.
/// Shapes     latents [tokens, width] strided, width = R + E; cu_seqlens [sequences + 1], starts
///            [sequences] in device memory
struct MlaAppendCuda {
  const float* latents;
  int64_t latents_stride;
  int64_t tokens;
  int64_t width;
  const int64_t* cu_seqlens;
  const int64_t* starts;
  int64_t sequences;
  LatentPagesCuda pages;
};

/// Errors     a cudaError_t as int; enqueues only
extern "C" int triax_cuda_mla_append(const MlaAppendCuda* args, void* stream);

/// The contract of MlaArgs; absorbed for every length:
///   q'(h) = q_nope(h) kv_b_k(h);  s_j = scale (q'(h) . c(j) + q_shared(h) . e(j))
///   out(h) = kv_b_v(h) (sum_j softmax_j c(j)) [ * sigmoid(gate) ]
/// Shapes     q [tokens, heads, nope + shared] strided; kv_b [heads * (nope + value), latent] in
///            device memory, any format; gate, out [tokens, heads, value] strided, gate may be null
///            cu_seqlens [sequences + 1], starts [sequences] in device memory
///            scratch of triax_cuda_mla_scratch_bytes(tokens, heads, latent), 16-byte aligned
struct MlaCuda {
  const float* q;
  int64_t q_token;
  int64_t q_head;
  MatrixView kv_b;
  int64_t tokens;
  int64_t heads;
  int64_t nope;
  int64_t shared;  // <= kMlaCudaSharedMax
  int64_t latent;  // <= kMlaCudaLatentMax
  int64_t value;
  float scale;
  const int64_t* cu_seqlens;
  const int64_t* starts;
  int64_t sequences;
  LatentPagesCuda pages;
  const float* gate;
  int64_t gate_token;
  int64_t gate_head;
  void* scratch;
  float* out;
  int64_t out_token;
  int64_t out_head;
};

constexpr int64_t kMlaCudaLatentMax = 512;
constexpr int64_t kMlaCudaSharedMax = 64;

/// Bounded in tokens: many are taken in parts, one after another.
extern "C" int64_t triax_cuda_mla_scratch_bytes(int64_t tokens, int64_t heads, int64_t latent);

/// Precision  float32, softmax by running maximum
/// Invariance a token's bits depend on its own row and its sequence's latents only
/// Edges      those of mla.h: empty sequences, rows after the end
/// Errors     a cudaError_t as int (sizes beyond the limits: cudaErrorNotSupported); enqueues only
extern "C" int triax_cuda_mla(const MlaCuda* args, void* stream);

}  // namespace triax::sequence
