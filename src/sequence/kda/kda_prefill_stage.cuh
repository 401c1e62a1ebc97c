// What the roles of the KDA prefill kernel share: one chunk of one head in shared memory, and the
// part of the problem that a block works on.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "sequence/kda/kda_prefill_cuda.h"
#include "sequence/kda/kda_prefill_ptx.cuh"

namespace triax::sequence::prefill {

constexpr int kChunk = 16;     // tokens of a chunk: the rows of one tensor-core tile
constexpr int kDim = 128;      // K and V
constexpr int kPitch = 136;    // bf16 elements between rows: 16-byte rows fall into different banks
constexpr int kTriangle = 24;  // elements between rows of the 16x16 matrices, for the same reason
constexpr int kPrepareWarps = 8;
constexpr int kLoadWarps = 4;
constexpr int kStages = 9;

using Bf16 = __nv_bfloat16;

/// A chunk on its way. The inputs arrive by asynchronous copies (zeros in rows without a token) and
/// are replaced in place:
///   q   -> scale q/|q| e^G             G: log decay from the chunk's start to the token, inclusive
///   k   -> k/|k| e^G
///   g   -> k/|k| e^-G, which only the 16x16 products of this chunk use
///   v   -> the output
/// and the preparing warp adds
///   kt  = k/|k| e^(Gtot - G),  decay = e^Gtot
///   t   = (I + L)^-1 Diag(beta),  L = strictly lower part of  beta_i k_i.k_j e^(G_i - G_j)
///   p   = lower part of  q_i.k_j e^(G_i - G_j)
template <int kRows>  // value rows of the block
struct alignas(128) Stage {
  static constexpr int kValuePitch = kRows + 8;
  Bf16 q[kChunk * kPitch];
  Bf16 k[kChunk * kPitch];
  Bf16 g[kChunk * kPitch];
  Bf16 kt[kChunk * kPitch];
  Bf16 v[kChunk * kValuePitch];
  float t[kChunk * kTriangle];
  Bf16 p[kChunk * kTriangle];
  float decay[kDim];
  float token[3][kChunk];  // of each token: 1 / |k|, scale / |q|, beta
};

template <int kRows>
struct Shared {
  Stage<kRows> stage[kStages];
  uint64_t loaded[kStages];    // copies have arrived
  uint64_t prepared[kStages];  // the results are there
  uint64_t free[kStages];      // the output has been taken
  int64_t sequence;            // this block's
  alignas(16) float gate_offsets[kDim];
};

/// Which stage a role is at, and how often the ring has turned: the parity that its barriers wait
/// for.
struct Ring {
  int slot = 0;
  uint32_t phase = 0;

  __device__ void advance(int steps) {
    slot += steps;
    if (slot >= kStages) {
      slot -= kStages;
      phase ^= 1;
    }
  }
};
static_assert(kPrepareWarps < kStages);

/// What a launch is for: whole sequences, or with segments first the map of each (two parts: where
/// the zero state goes, and the matrix by which a state is multiplied), then their outputs.
enum class Pass { kWhole, kMaps, kOutputs };

/// One sequence (or segment of it) and head: tokens [first, first + count) of the tensors, which
/// are positions [start, start + count) of the sequence. Chunk i covers positions [16 (c0 + i), 16
/// (c0 + i + 1)).
struct Run {
  int64_t sequence, head;
  int64_t first, count, start;
  int64_t c0, chunks;
  int32_t slot;
  int64_t place;  // of a segment's first state in the scratch memory
  bool is_last;   // segment of its sequence
  bool is_whole;  // ends on the grid

  __device__ int lowest(int64_t i) const {  // first row of chunk i that holds a token
    const int64_t skip = start - (c0 + i) * kChunk;
    return skip > 0 ? static_cast<int>(skip) : 0;
  }
  __device__ int end(int64_t i) const {  // one past the last
    const int64_t rows = start + count - (c0 + i) * kChunk;
    return rows < kChunk ? static_cast<int>(rows) : kChunk;
  }
  /// Index in the tensors of row 0 of chunk i; with start inside the chunk it lies before `first`.
  __device__ int64_t token(int64_t i) const { return first + (c0 + i) * kChunk - start; }
};

/// Row and column at which a lane names its part of four 8x8 tiles that make a 16x16 one: in the
/// order of a left operand (and of transposed tiles) ...
__device__ inline int tile_row(int lane) { return (lane & 7) + (lane & 8); }
__device__ inline int tile_column(int lane) { return (lane & 16) >> 1; }
/// ... and of a right one, stored with its columns as rows: columns 0-7 are r[0], r[1].
__device__ inline int right_row(int lane) { return (lane & 7) + ((lane & 16) >> 1); }
__device__ inline int right_column(int lane) { return lane & 8; }

}  // namespace triax::sequence::prefill
