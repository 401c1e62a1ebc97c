// Multi-head latent attention without positions, over paged latents; optionally gated.
#pragma once

#include <span>

#include "base/status.h"
#include "device/device.h"
#include "tensor/matrix.h"
#include "tensor/tensor.h"

namespace triax {
class CudaQueue;
}

namespace triax::sequence {

/// Tokens of one page of latents.
constexpr int64_t kLatentPage = 64;

/// Where each sequence's latents lie: token i of sequence n is row i % 64 of page
/// tables[n][i / 64].
struct LatentPages {
  TensorView pool;  // [P, 64, R + E] float32: per token the normalised latent R and the E shared
                    // key features; on a GPU also bf16, see mla_bf16_supports
  std::span<const std::span<const int32_t>> tables;  // [N], each long enough for its sequence
  /// The same tables as one array [N, any] of padded rows, for a GPU: whoever calls often makes it
  /// once. May be empty.
  std::span<const int32_t> flat_tables = {};
};

/// Writes new latents behind those of earlier calls.
struct MlaAppendArgs {
  ConstTensorView latents;              // [T, R + E] float32, rows strided (R already normalised)
  std::span<const int64_t> cu_seqlens;  // [N + 1]
  std::span<const int64_t> starts;      // [N] tokens of the sequence already in its pages
  LatentPages pages;                    // updated
};
/// Errors     kInvalidArgument for shape, cu_seqlens, or a table that is too short or names a page
///            outside the pool; nothing is written then
Status mla_append(const Device& device, const MlaAppendArgs& args);

/// Causal attention of the T new tokens (already appended) on their sequence:
///   [k_nope | v](j, h) = kv_b(h) c(j);   key = [k_nope ; e(j)];   p = softmax_j(scale q . key)
///   out(h) = sum_j p_j v(j, h) [ * sigmoid(gate_logit) ]
struct MlaArgs {
  ConstTensorView q;                    // [T, H, D + E] float32: [nope D | shared E]
  MatrixView kv_b;                      // [H * (D + V), R]: per head D rows of keys, V of values
  int64_t value_dim = 0;                // V
  float scale = 0.0f;                   // (D + E)^-0.5 in Kimi models
  std::span<const int64_t> cu_seqlens;  // [N + 1] of the new tokens
  std::span<const int64_t> starts;      // [N] tokens before them
  LatentPages pages;
  int64_t absorbed_tokens_max = 1;  // >= 1: longer sequences expand keys and values
  ConstTensorView gate_logit;       // [T, H, V]; empty: no gate
  TensorView out;                   // [T, H, V]
  MatrixView kv_b_bf16 = {};  // kv_b rounded to bf16, for a bf16 pool; empty: made in each call
};

/// A sequence of one new token (or up to absorbed_tokens_max) attends in latent space (absorbed
/// MQA: kv_b is applied to q and to the sum), longer ones expand keys and values (MHA). Both give
/// the same within the bound of mla_test.cc. A few new tokens on a long context are much cheaper in
/// latent space: README.md says from where.
/// Precision  float32, softmax by running maximum
/// Invariance the same bits whatever the batch, the thread count and the later tokens; within one
///            form also whatever the split
/// Edges      an empty sequence does nothing; rows after cu_seqlens[N] are not written
/// Aliasing   out is distinct from all inputs
/// Errors     kInvalidArgument for shape, cu_seqlens, pages; nothing is written then
/// Source     spec 2.3; truth: mla_reference.cc
Status mla(const Device& device, const MlaArgs& args);

/// Whether mla and mla_append take a bf16 pool there: half the bytes, and all products on Hopper's
/// tensor cores with bf16 operands (each off by at most 2^-9 of itself) and float32 sums.
bool mla_bf16_supports(const CudaQueue& queue, int64_t heads, int64_t nope, int64_t shared,
                       int64_t latent, int64_t value);

}  // namespace triax::sequence
