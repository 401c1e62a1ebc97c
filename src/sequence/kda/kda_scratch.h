// How one worker's scratch memory is laid out for a piece of up to 64 tokens of one head. Internal.
#pragma once

#include <cstdint>

namespace triax::sequence {
namespace {

constexpr int64_t kPieceRows = 64;  // kKdaChunk
constexpr int64_t kRowPad = 16;     // the widest lanes

/// Matrices are row-major; rows of K channels are padded with zeros to key_pad, of V to value_pad.
struct KdaScratch {
  int64_t key_pad, value_pad;
  float* q;      // [64, K] normalised and scaled; then times the decay from the piece's start
  float* k;      // [64, K] the same for k
  float* decay;  // [64, K] exp(g)
  float* tail;   // [64, K] k_j times the decay from token j to the end of the blocks done so far
  float* u;      // [64, V] v; then u of the delta rule times beta
  float* kk;     // [64, 64] strictly lower: beta_i k_i . decayed k_j
  float* qk;     // [64, 64] lower: q_i . decayed k_j
  float* beta;   // [64]
  float* total;  // [K] decay of the piece up to the current block
  float* block;  // [K] decay inside the current block
  float* first;  // [V] output of the first token by the recurrent form
  float* state;  // [K, V] the incoming state, transposed
};

int64_t padded(int64_t size) { return (size + kRowPad - 1) / kRowPad * kRowPad; }

/// Lays the scratch out from `base`; returns the floats it takes.
int64_t layout_scratch(float* base, int64_t keys, int64_t values, KdaScratch* s) {
  const int64_t kp = padded(keys);
  const int64_t vp = padded(values);
  s->key_pad = kp;
  s->value_pad = vp;
  int64_t used = 0;
  const auto take = [&](int64_t floats) {
    float* p = base == nullptr ? nullptr : base + used;
    used += padded(floats);
    return p;
  };
  s->q = take(kPieceRows * kp);
  s->k = take(kPieceRows * kp);
  s->decay = take(kPieceRows * kp);
  s->tail = take(kPieceRows * kp);
  s->u = take(kPieceRows * vp);
  s->kk = take(kPieceRows * kPieceRows);
  s->qk = take(kPieceRows * kPieceRows);
  s->beta = take(kPieceRows);
  s->total = take(kp);
  s->block = take(kp);
  s->first = take(vp);
  s->state = take(kp * vp);
  return used;
}

}  // namespace
}  // namespace triax::sequence
