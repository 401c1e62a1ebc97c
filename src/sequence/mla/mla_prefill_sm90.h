// MLA prefill on Hopper's tensor cores: causal attention of many new tokens on keys and values that
// were expanded from the latents. Host side; knows no CUDA headers.
#pragma once

#include <cstdint>

namespace triax::sequence {

constexpr int64_t kMlaSm90Nope = 128;   // D: a head's own part of a key
constexpr int64_t kMlaSm90Value = 128;  // V

/// New token i of a sequence sees the sequence's first kv_count - q_count + i + 1 tokens:
///   s_j = scale q . [k_nope(j) ; e(j)];   out = sum_j softmax_j(s) v(j)
/// Shapes     q [tokens, heads, 192] bf16 dense; k_nope, v [kv_tokens, heads, 128] bf16, heads
///            kv_head and tokens kv_token elements apart (so both may lie in one product of kv_b);
///            shared [kv_tokens, 64] bf16, tokens shared_token apart; out [tokens, heads, 128] bf16
///            or float32 dense; cu_seqlens, kv_cu_seqlens [sequences + 1]. All in device memory,
///            16-byte aligned, strides multiples of 8
/// Bounds     tokens_max >= new tokens of any sequence; it sizes the grid
struct MlaPrefillSm90 {
  const void* q;
  const void* k_nope;
  const void* shared;
  const void* v;
  const int64_t* cu_seqlens;     // of the new tokens
  const int64_t* kv_cu_seqlens;  // of all tokens: at least as many of each sequence
  void* out;
  int64_t tokens;
  int64_t kv_tokens;
  int64_t heads;
  int64_t sequences;
  int64_t tokens_max;
  int64_t kv_token;
  int64_t kv_head;
  int64_t shared_token;
  float scale;
  int32_t out_float32;  // 1: out is float32, 0: bf16
};

/// Precision  float32 sums, softmax in float32 in base 2, its weights rounded to bf16 once
/// Invariance equal bits in two runs, and whatever the batch and the split of a prompt into calls
/// Edges      a sequence without new tokens does nothing; rows of the inputs after a sequence's end
///            are never used, NaN included
/// Aliasing   out is distinct from all inputs
/// Errors     a cudaError_t as int: cudaErrorInvalidValue for sizes and alignment,
///            another where the GPU is not sm_90; enqueues only, may be captured
extern "C" int triax_cuda_mla_prefill_sm90(const MlaPrefillSm90* args, void* stream);

}  // namespace triax::sequence
