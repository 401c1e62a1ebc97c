// The products before and after attention in latent space, for few tokens of the family's sizes
// (D = 128, E = 64, R = 512, V = 128).
#pragma once

#include <cstdint>

namespace triax::sequence {

constexpr int64_t kMlaAbsorbTokensMax = 8;

/// Queries: latent_q(h) = [kv_b_k(h)^T q_nope(h) | q_shared(h)];  values: out(h) = kv_b_v(h)
/// sums(h) Shapes     q [tokens, heads, 192] float32, strided; kv_b [heads 256, 512] bf16 dense;
/// latent_q
///            [tokens, heads, 576] and latent_sums [tokens, heads, 512] bf16 dense; out [tokens,
///            heads, 128] float32, strided; all in device memory, 16-byte aligned
/// Precision  q rounded to bf16, float32 sums
/// Invariance a token's bits depend on that token alone
struct MlaAbsorbCuda {
  const float* q;
  int64_t q_token;
  int64_t q_head;
  const void* kv_b;
  int64_t tokens;  // at most kMlaAbsorbTokensMax
  int64_t heads;
  void* latent_q;
  const void* latent_sums;
  float* out;
  int64_t out_token;
  int64_t out_head;
};

/// Errors     a cudaError_t as int (too many tokens: cudaErrorNotSupported); enqueues only
extern "C" int triax_cuda_mla_absorb_queries(const MlaAbsorbCuda* args, void* stream);
extern "C" int triax_cuda_mla_expand_values(const MlaAbsorbCuda* args, void* stream);

}  // namespace triax::sequence
