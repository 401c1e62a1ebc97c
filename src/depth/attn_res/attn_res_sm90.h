// Host side of Attention Residuals on a Hopper GPU. Knows no CUDA headers.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace triax::depth {

constexpr int32_t kAttnResSourcesMax = 16;  // of the bank and of few tokens
constexpr int64_t kAttnResDimMax = 7168;
constexpr int32_t kAttnResQueriesMax = 24;  // of a bank

/// Rows of [T, D] in device memory, all of one type (kF32 or kBf16), 16-byte aligned.
struct AttnResSourcesCuda {
  DType type = DType::kF32;
  int32_t count = 0;
  const void* rows[kAttnResSourcesMax] = {};
  int64_t strides[kAttnResSourcesMax] = {};  // elements between tokens, a multiple of 8
};

/// kFewTokens spreads a token over eight multiprocessors: a third of the time for up to 16 tokens
/// of many sources. Its sums have another order, so the last bits differ from kAnyTokens, whose
/// bits for a token are the same in every batch.
enum class AttnResForm { kAnyTokens, kFewTokens };

/// out[t] = sum_i p_i v_i[t], optionally going on from what a bank holds of earlier sources, and
/// optionally followed by the RMS norm that the next layer begins with:
///   s_i = query . v_i / sqrt(mean(v_i^2) + eps);   p = softmax(s)
///   out = mixed, or mixed / sqrt(mean(mixed^2) + norm_eps) norm_weight
/// With `delta`, the last source is the running sum and first becomes itself plus delta, in place:
/// the residual addition costs no pass of its own.
/// Shapes     query, norm_weight [D]; acc [T, D], max, sum [T] of this query; delta, out [T, D]
/// Limits     D a multiple of 32, at most 7168; kFewTokens without a bank only
/// Precision  float32 sums; equal bits in two runs; a token's bits do not depend on others
/// Aliasing   out may be acc's memory only where both are float32; no other overlap
/// Errors     cudaErrorInvalidValue for limits, types, null pointers; nothing is launched then
/// Source     attn_res.h; truth: attn_res_reference.cc
struct AttnResMixCuda {
  int64_t tokens = 0;
  int64_t dim = 0;
  AttnResSourcesCuda sources;  // count >= 1
  const float* query = nullptr;
  float eps = 1e-5f;
  AttnResForm form = AttnResForm::kAnyTokens;
  const void* acc = nullptr;  // null: no bank
  DType acc_type = DType::kF32;
  const float* max = nullptr;
  const float* sum = nullptr;
  const void* delta = nullptr;  // null: none; of the sources' type
  int64_t delta_stride = 0;
  const float* norm_weight = nullptr;  // null: no norm
  float norm_eps = 1e-5f;
  void* out = nullptr;
  DType out_type = DType::kF32;
  int64_t out_stride = 0;
};

/// Phase one: what each of Q queries sees of the sources, unnormalised, in one pass over them.
///   max[q, t], sum[q, t] = sum_i exp(s_i - max), acc[q, t] = sum_i exp(s_i - max) v_i[t]
/// Shapes     queries [Q, D] float32 contiguous; acc [Q, T, D] contiguous; max, sum [Q, T]
/// Limits     at most 16 sources; Q at most kAttnResQueriesMax; else as AttnResMixCuda
struct AttnResBankCuda {
  int64_t tokens = 0;
  int64_t dim = 0;
  int64_t query_count = 0;
  AttnResSourcesCuda sources;
  const float* queries = nullptr;
  float eps = 1e-5f;
  void* acc = nullptr;
  DType acc_type = DType::kF32;
  float* max = nullptr;
  float* sum = nullptr;
};

}  // namespace triax::depth

extern "C" int triax_cuda_attn_res_mix(const triax::depth::AttnResMixCuda* args, void* stream);
extern "C" int triax_cuda_attn_res_bank(const triax::depth::AttnResBankCuda* args, void* stream);
