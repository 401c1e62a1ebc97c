// The fast prefill of KDA on a GPU: what the kernels of kda_prefill_sm90.cu take. No CUDA types.
#pragma once

#include <cstdint>

namespace triax::sequence {

/// A bf16 input: element (t, h, i) lies at data[t * token + h * head + i].
struct KdaPrefillInput {
  const void* data;
  int64_t token;  // strides in elements; multiples of 8, data 16-byte aligned
  int64_t head;
};

/// The recurrence of kda.h (Rule::kKda) over N sequences side by side, from bf16 inputs:
///   q, k L2-normalised, q scaled by K^-0.5, beta = sigmoid(logit), g by the gate;
///   S <- Diag(exp(g)) S;   u = v - S k;   S <- S + beta u k^T;   out = S q
/// Shapes     q, k, decay_logit [T, H, 128]; v, out [T, H, 128]; beta_logit [T, H];
///            states [slot, H, V = 128, K = 128] float32
/// Precision  bf16 products with float32 accumulation, one rounding an operand (the solve of a
///            chunk's triangle in tf32); gates, cumulative decays and the state in float32.
///            Exact for any gate: nothing is truncated, no exponential overflows
/// Invariance out of a token has the same bits whatever follows it, whatever else is in the batch
///            and however often it is run; states at multiples of 16 tokens do not depend on where
///            calls were cut, if they were cut at multiples of 16
/// Edges      an empty sequence keeps its state; slot -1: zeros are written to out, no state is
///            touched; tokens after cu_seqlens[N] are neither read nor written
/// Aliasing   states_in may be states_out with the same slots; out is distinct from all inputs
/// Errors     cudaErrorInvalidValue for sizes, strides or alignment that the kernel does not take
/// Source     Kimi K3 report Eq. 1, 5; truth: kda_reference.cc
struct KdaPrefillCuda {
  KdaPrefillInput q, k, v, decay_logit;
  const void* beta_logit;  // bf16
  int64_t beta_token;      // stride; heads are adjacent
  const float* a_log;      // [H]
  const float* dt_bias;    // [H, 128], dense
  int32_t softplus;        // 0: bounded gate, 1: softplus gate
  float lower_bound;       // < 0, bounded gate only

  int64_t heads;
  int64_t sequences;        // N
  const void* cu_seqlens;   // [N + 1]
  int32_t cu_seqlens_bits;  // 32 or 64
  const int64_t* starts;    // [N] tokens before this call, or null: all 0

  const int32_t* slots;    // [N], or null: sequence n has slot n
  const float* states_in;  // null: zeros
  float* states_out;       // null: final states are not wanted
  int64_t state_slot;      // stride between slots; heads are 128 * 128 apart
  // States to hand out, ordered by sequence and position: those of sequence n are entries
  // [request_begin[n], request_begin[n + 1]); written to states_out. Null: none.
  const int32_t* request_begin;
  const int64_t* request_position;  // absolute, multiples of 16 inside the sequence
  const int32_t* request_slot;

  void* out;  // bf16
  int64_t out_token, out_head;

  // Parallel over the sequence, for few heads: every sequence is cut at multiples of this many
  // positions (a multiple of 16; 0: not cut). What a segment does to a state is an affine map; the
  // maps are found side by side, composed in order, and the outputs found side by side from the
  // true states. Exact, whatever the gates, at twice the work. Another order of additions: the last
  // bits differ from those of segment_tokens = 0, and splits of a sequence give equal bits at
  // multiples of segment_tokens only.
  int64_t segment_tokens;
  int64_t tokens_max;      // with segments: at least cu_seqlens[N]
  float* segment_scratch;  // triax_cuda_kda_prefill_scratch_bytes, 16-byte aligned
};

}  // namespace triax::sequence

/// What segment_scratch must hold.
extern "C" int64_t triax_cuda_kda_prefill_scratch_bytes(
    const triax::sequence::KdaPrefillCuda* args);

/// Enqueues the kernels on `stream` (a cudaStream_t); returns a cudaError_t.
/// `value_rows` says how many of a head's 128 value rows a block holds: 128, 64, 32, or 0 to choose
/// by the number of heads and sequences. The result does not depend on it.
extern "C" int triax_cuda_kda_prefill(const triax::sequence::KdaPrefillCuda* args, int value_rows,
                                      void* stream);
