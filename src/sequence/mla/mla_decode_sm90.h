// Absorbed MLA decode on Hopper's tensor cores: bf16 queries in latent space on paged bf16 latents.
// Host side; knows no CUDA headers.
#pragma once

#include <cstdint>

namespace triax::sequence {

/// Width of a latent (values are its first 512 columns), of the shared key features, of a token.
constexpr int64_t kMlaSm90Latent = 512;
constexpr int64_t kMlaSm90Shared = 64;
constexpr int64_t kMlaSm90Width = kMlaSm90Latent + kMlaSm90Shared;

/// New tokens (their latents already appended) attend causally to their sequence in latent space:
///   s_j = scale q . [c(j) ; e(j)];   out = sum_j softmax_j(s) c(j)     (before the value product)
/// Shapes     q [tokens, heads, 576] bf16 dense: [kv_b_k^T q_nope ; q_shared]; out [tokens, heads,
///            512] bf16 or float32 dense; pool [pages, 64, 576] bf16, rows dense; page_table
///            [sequences, pages_max]: token i is row i % 64 of page page_table[n][i / 64], entries
///            beyond a sequence's end are not read; cu_seqlens [sequences + 1] of the new tokens,
///            starts [sequences] tokens before them. All in device memory, 16-byte aligned
/// Bounds     tokens_max >= new tokens of any sequence, length_max >= starts + new tokens of any;
///            they size the grid, so a captured graph serves all lengths up to them
struct MlaDecodeSm90 {
  const void* q;
  const void* pool;
  const int32_t* page_table;
  const int64_t* cu_seqlens;
  const int64_t* starts;
  void* out;
  void* scratch;  // of triax_cuda_mla_decode_sm90_scratch_bytes
  int64_t tokens;
  int64_t heads;
  int64_t sequences;
  int64_t tokens_max;
  int64_t length_max;
  int64_t pages;
  int64_t pages_max;
  int64_t page_stride;   // elements, a multiple of 8
  int64_t split_tokens;  // a multiple of 64; 0: by the sequence's length
  float scale;
  int32_t out_float32;  // 1: out is float32, 0: bf16
  int32_t rows;  // heads of new tokens taken together: 96, 64 or 32; 0: chosen. Same bits with all
};

/// A long sequence is attended in parts of this many tokens, summed apart and merged in order. It
/// depends on the sequence's length alone, so that no result depends on the batch.
constexpr int64_t kMlaSplitShort = 256;  // of sequences of up to kMlaLengthShort tokens
constexpr int64_t kMlaLengthShort = 8192;
constexpr int64_t kMlaSplitMiddle = 1024;
constexpr int64_t kMlaLengthMiddle = 32768;
constexpr int64_t kMlaSplitLong = 2048;

/// The most parts that any sequence of up to length_max tokens has.
constexpr int64_t mla_decode_splits_max(int64_t length_max, int64_t split_tokens) {
  const auto parts = [](int64_t length, int64_t tokens) { return (length + tokens - 1) / tokens; };
  if (split_tokens > 0) {
    return parts(length_max, split_tokens);
  }
  if (length_max <= kMlaLengthShort) {
    return parts(length_max, kMlaSplitShort);
  }
  const int64_t middle = length_max < kMlaLengthMiddle ? length_max : kMlaLengthMiddle;
  const int64_t shorter = parts(middle, kMlaSplitMiddle);
  const int64_t least = parts(kMlaLengthShort, kMlaSplitShort);
  const int64_t longest = length_max > kMlaLengthMiddle ? parts(length_max, kMlaSplitLong) : 0;
  const int64_t most = shorter > least ? shorter : least;
  return most > longest ? most : longest;
}

/// Scratch for partial sums; its contents mean nothing between calls.
extern "C" int64_t triax_cuda_mla_decode_sm90_scratch_bytes(int64_t tokens, int64_t heads,
                                                            int64_t length_max,
                                                            int64_t split_tokens);

/// Precision  float32 sums, softmax in float32 in base 2, its weights rounded to bf16 once
/// Invariance equal bits in two runs, and whatever the batch, the pages' places and the bounds
/// Edges      a sequence without new tokens does nothing; what lies in a page after the sequence's
///            end is never used, NaN included
/// Errors     a cudaError_t as int: cudaErrorInvalidValue for sizes and alignment,
///            another where the GPU is not sm_90; enqueues only, may be captured
extern "C" int triax_cuda_mla_decode_sm90(const MlaDecodeSm90* args, void* stream);

}  // namespace triax::sequence
