// From logits to tokens on the GPU: the largest logit, log-probabilities, filtered draws. Bias and
// penalties are the caller's: logits come adjusted.
#pragma once

#include <cstdint>

namespace triax::dense {

/// Per row: the largest logit (ties: the lowest id), its log-probability, log sum exp of the row.
/// Shapes     logits [rows, vocab] device float32, rows strided; scratch of
///            triax_cuda_argmax_scratch_bytes(rows, vocab), 16-byte aligned; outputs [rows], each
///            may be null
/// Edges      a row that holds NaN or +inf, or nothing above -inf: id -1, the others NaN
struct ArgmaxCuda {
  const float* logits;
  int64_t logits_stride;
  int64_t rows;
  int64_t vocab;
  void* scratch;
  int32_t* ids;
  float* logprobs;
  double* log_totals;
};

extern "C" int64_t triax_cuda_argmax_scratch_bytes(int64_t rows, int64_t vocab);

/// Precision  exponentials and their sum in double, fixed order
/// Errors     a cudaError_t as int (more than 65,535 rows: cudaErrorNotSupported); enqueues only
extern "C" int triax_cuda_argmax(const ArgmaxCuda* args, void* stream);

/// logprobs[t, j] = logits[t, ids[t, j]] - log_totals[t]
/// Shapes     ids [rows, count] device int32, dense; logprobs the same shape; log_totals [rows]
/// Edges      an id outside the vocabulary gives NaN
struct LogprobsCuda {
  const float* logits;
  int64_t logits_stride;
  int64_t rows;
  int64_t vocab;
  const int32_t* ids;
  int64_t count;
  const double* log_totals;  // as triax_cuda_argmax writes them
  float* logprobs;
};

/// Errors     a cudaError_t as int; enqueues only
extern "C" int triax_cuda_logprobs(const LogprobsCuda* args, void* stream);

/// Settings of one row's draw, in the meaning of SamplingParams.
struct SampleSettings {
  float temperature;  // 0 takes the largest logit
  int32_t top_k;      // 0: off
  float top_p;
  float min_p;
  double uniform;  // the random number in [0, 1): Rng::uniform() of the sequence
};

/// One draw a row: temperature, top_k, top_p, min_p in the order of sampling.h.
/// Shapes     logits [rows, vocab] device float32, rows strided; settings [rows], ids [rows] in
///            device memory; scratch of triax_cuda_sample_scratch_bytes(rows, vocab), 16-byte
///            aligned. ids come as triax_cuda_argmax leaves them
/// Edges      a row whose id is -1 keeps it
struct SampleCuda {
  const float* logits;
  int64_t logits_stride;
  int64_t rows;
  int64_t vocab;
  const SampleSettings* settings;
  bool filtered;  // some row has top_k or top_p
  void* scratch;
  int32_t* ids;
};

constexpr int64_t kSampleVocabMax = int64_t{1} << 19;

extern "C" int64_t triax_cuda_sample_scratch_bytes(int64_t rows, int64_t vocab);

/// Precision  weights exp((l - max) / temperature) in double; masses of top_p as 2^-44 integers, so
///            a token within 2^-44 vocab of the border of top_p may fall on the other side than
///            with Sampler, and a uniform number within 1e-12 of a border between two tokens, too
/// Errors     a cudaError_t as int (vocab beyond the limit, more than 65,535 rows:
///            cudaErrorNotSupported); enqueues only
extern "C" int triax_cuda_sample(const SampleCuda* args, void* stream);

}  // namespace triax::dense
