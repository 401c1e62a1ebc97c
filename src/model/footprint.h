// What a step must read and compute, from the weights as they are stored: the roofline's inputs.
#pragma once

#include "model/weights.h"

namespace triax::model {

/// Bytes that one decode token reads when nothing is read twice.
struct DecodeBytes {
  double experts = 0.0;  // the routed experts that it visits
  double dense = 0.0;    // all other matrices, the output head among them
  double state = 0.0;    // KDA states and conv windows (read; the write back is not counted)
  double latents = 0.0;  // of `context` tokens
  double total() const { return experts + dense + state + latents; }
};
DecodeBytes decode_bytes(const ModelWeights& weights, int64_t context);

/// Floating-point operations of `tokens` tokens prefilled from position 0 with logits for the last:
/// 2 a multiply-add in every matrix product of the visited experts and all other matrices, KDA by
/// its recurrence (7 K V a head and token), MLA as MHA with the causal half.
double prefill_flops(const ModelWeights& weights, int64_t tokens);

}  // namespace triax::model
