// Plain-data form of a checked call of kda, and the kernels behind it. Internal.
#pragma once

#include <cstdint>

#include "sequence/kda/kda.h"

namespace triax::sequence {

/// Element (t, h, i) lies at data[t * token + h * head + i].
struct KdaInput {
  const float* data = nullptr;
  int64_t token = 0;
  int64_t head = 0;
};

/// No member functions here and below: what every instruction set's file includes must not be code.
struct KdaProblem {
  bool has_delta, has_decay, decay_per_channel;  // the rule
  DecayGate gate;
  float lower_bound;
  int64_t heads, keys, values;  // H, K, V
  KdaInput q, k, v, decay, beta;
  const float* a_log;
  const float* dt_bias;
  int64_t dt_bias_head;
  const int64_t* cu_seqlens;
  const int64_t* starts;
  const int32_t* slots;
  float* states;
  int64_t state_slot, state_head, state_row;
  const KdaStateRequest* requests;
  int64_t request_count;
  float* out;
  int64_t out_token, out_head;
};

/// All tokens of sequence n in head h, whose slot is >= 0: out, state and requests.
/// scratch    kda_scratch_floats(keys, values) floats, 64-byte aligned
using KdaKernel = void (*)(const KdaProblem&, int64_t n, int64_t h, float* scratch);

void kda_reference(const KdaProblem& problem, int64_t n, int64_t h, float* scratch);
void kda_portable(const KdaProblem& problem, int64_t n, int64_t h, float* scratch);
void kda_avx2(const KdaProblem& problem, int64_t n, int64_t h, float* scratch);
void kda_avx512(const KdaProblem& problem, int64_t n, int64_t h, float* scratch);

/// Scratch of one worker.
int64_t kda_scratch_floats(int64_t keys, int64_t values);

struct KdaOutputProblem {
  int64_t heads, values;
  KdaInput in, gate;
  const float* weight;
  float eps;
  float* out;
  int64_t out_token, out_head;
};

/// Rows [begin, end): row t H + h is head h of token t.
using KdaOutputKernel = void (*)(const KdaOutputProblem&, int64_t begin, int64_t end);

void kda_output_reference(const KdaOutputProblem& problem, int64_t begin, int64_t end);
void kda_output_portable(const KdaOutputProblem& problem, int64_t begin, int64_t end);
void kda_output_avx2(const KdaOutputProblem& problem, int64_t begin, int64_t end);
void kda_output_avx512(const KdaOutputProblem& problem, int64_t begin, int64_t end);

}  // namespace triax::sequence
