// Attention Residuals on the GPU, plain: a block for each token.
#pragma once

#include <cstdint>

namespace triax::depth {

constexpr int64_t kAttnResCudaSourcesMax = 512;

/// B sources of [tokens, size] device float32, rows strided. The arrays are host memory: they
/// travel with the launch.
struct AttnResSourcesPlain {
  int64_t count;  // 1 to kAttnResCudaSourcesMax
  const float* data[kAttnResCudaSourcesMax];
  int64_t stride[kAttnResCudaSourcesMax];
};

/// The contract of AttnResArgs.
/// Shapes     query [size]; out [tokens, size] strided; device float32
struct AttnResCuda {
  AttnResSourcesPlain sources;
  const float* query;
  float eps;
  float* out;
  int64_t out_stride;
  int64_t tokens;
  int64_t size;
};

/// Precision  float32, scores summed in a fixed order; a token's bits depend on that token only
/// Aliasing   out is no source
/// Errors     a cudaError_t as int (too many sources: cudaErrorNotSupported); enqueues only
extern "C" int triax_cuda_attn_res(const AttnResCuda* args, void* stream);

/// The contract of AttnResBankArgs: queries [query_count, size] strided; acc [query_count, tokens,
/// size]; max, sum [query_count, tokens], queries at their strides.
struct AttnResBankPlain {
  AttnResSourcesPlain sources;
  const float* queries;
  int64_t query_stride;
  int64_t query_count;
  float eps;
  float* acc;
  int64_t acc_query;
  int64_t acc_token;
  float* max;
  int64_t max_query;
  float* sum;
  int64_t sum_query;
  int64_t tokens;
  int64_t size;
};

/// Precision, errors as triax_cuda_attn_res
extern "C" int triax_cuda_attn_res_bank_plain(const AttnResBankPlain* args, void* stream);

/// The contract of AttnResMergeArgs.
/// Shapes     acc, partial, out [tokens, size] strided; max, sum [tokens]; query [size]
/// Aliasing   out may be acc, may not be partial
struct AttnResMergeCuda {
  const float* acc;
  int64_t acc_stride;
  const float* max;
  const float* sum;
  const float* partial;
  int64_t partial_stride;
  const float* query;
  float eps;
  float* out;
  int64_t out_stride;
  int64_t tokens;
  int64_t size;
};

/// Errors     a cudaError_t as int; enqueues only
extern "C" int triax_cuda_attn_res_merge(const AttnResMergeCuda* args, void* stream);

}  // namespace triax::depth
