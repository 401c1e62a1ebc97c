// Host side of the KDA decode kernel: one token a sequence through a pool of states on the GPU.
// Knows no CUDA headers.
#pragma once

#include <cstdint>

#include "sequence/kda/kda.h"
#include "tensor/dtype.h"

namespace triax::sequence {

/// Tokens as a KDA layer's projections leave them, and what turns them into q, k, v, decay, beta
/// and the layer's output. Pointers are to device memory, strides count elements.
///   conv    x = silu(sum_i taps[i, c] x[t - 3 + i, c]) for each channel of q, k and v
///   norm    q <- scale q / sqrt(sum q^2 + 1e-6), k likewise without scale
///   gate    kBounded g = lower_bound sigmoid(exp(a_log) (z + dt_bias)), kSoftplus
///           g = -exp(a_log) softplus(z + dt_bias); beta = sigmoid(logit)
///   output  rms_norm(o) weight sigmoid(gate_logit) over the head, without the norm where
///           norm_weight is null: o as it is
/// Shapes    q, k, v, decay_logit, gate_logit, out [rows, H, 128]; beta_logit [rows, H]; taps
///           [4, 3 H 128], channels of q, k, v side by side; a_log [H]; dt_bias [H, 128];
///           norm_weight [128]. A row's heads are dense, rows lie a stride apart
/// Types     kF32 or kBf16 where a DType says so, else float32
struct KdaTokensCuda {
  int64_t heads = 0;
  float scale = 0.08838834764831845f;  // 128^-0.5
  float lower_bound = -5.0f;
  DecayGate gate = DecayGate::kBounded;
  DType qkv_type = DType::kBf16;    // of q, k, v
  DType logit_type = DType::kBf16;  // of the three logits
  DType out_type = DType::kBf16;
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  int64_t qkv_stride = 0;
  const float* taps = nullptr;  // null: q, k, v are already convolved
  const void* decay_logit = nullptr;
  int64_t decay_stride = 0;
  const void* beta_logit = nullptr;
  int64_t beta_stride = 0;
  const float* a_log = nullptr;
  const float* dt_bias = nullptr;
  const float* norm_weight = nullptr;  // null: out is o
  float norm_eps = 1e-5f;
  const void* gate_logit = nullptr;  // used with norm_weight
  int64_t gate_stride = 0;
  void* out = nullptr;
  int64_t out_stride = 0;
};

/// The pool that a batch of sequences refers to.
struct KdaPoolCuda {
  float* states = nullptr;         // [S, H, 128 (V), 128 (K)], slots a stride apart
  int64_t state_stride = 0;        // floats; a multiple of 4
  float* windows = nullptr;        // [S, 3, 3 H 128] raw inputs, oldest first; null without taps
  int64_t window_stride = 0;       // floats
  const int32_t* slots = nullptr;  // [B] in [-1, S); -1: none
  int64_t slots_stride = 1;        // elements from one sequence's index to the next
};

/// kOverlapPrevious lets blocks start and load states, windows and weights while the kernel before
/// in the stream still runs (a programmatic launch). Right where that kernel writes neither states,
/// windows, slots (nor lengths), as a projection does; logits, q, k and v may be its work.
enum class Start { kAfterPrevious, kOverlapPrevious };

/// One decode step of Kimi Delta Attention, the convolution before it and the norm after it:
///   S <- S Diag(exp(g));   u = beta (v - S k);   S <- S + u k^T;   o = S q
/// State and window of slots[b] are read, used for row b of the tokens, and updated in place.
/// Precision  float32 with float32 state; the decay is kept as two floats, so that it is exact for
///            4096 tokens at 0.99992 as well as at exp(-5); error bound in kda_decode_gpu_test.cu
/// Invariance out and state of a sequence do not depend on the batch; equal bits in two runs
/// Edges      slot -1: zeros are written to out, no state or window is touched; batch or heads 0:
///            nothing happens
/// Aliasing   slots >= 0 are distinct; out may be q in type and stride, else overlaps no input
/// Errors     cudaErrorInvalidValue for types, null pointers, misaligned states; nothing is
///            launched then. Launches are captured in graphs, nothing is allocated
/// Source     Kimi K3 report Eq. 1, 5; truth: kda_reference.cc
struct KdaDecodeCuda {
  int64_t batch = 0;
  KdaTokensCuda tokens;  // rows = batch
  KdaPoolCuda pool;
  Start start = Start::kAfterPrevious;
  int32_t rows = 0;  // of a state in one thread block: 32 or 128; 0: by batch and heads
};

}  // namespace triax::sequence

extern "C" int triax_cuda_kda_decode(const triax::sequence::KdaDecodeCuda* args, void* stream);
