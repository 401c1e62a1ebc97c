// The depth axis: what Attention Residuals hand from stage to stage of a pipeline.
#pragma once

#include "checkpoint/config.h"

namespace triax::plan {

/// P physical stages, each with V virtual ones: C = P V chunks of layers. Blocks that one chunk
/// completes: Np = sources / C on average.
struct PipelineShape {
  double P = 1, V = 1;
  double sources = 1;  // blocks in all; d numbers each
  double chunks() const { return P * V; }
  double blocks_per_chunk() const { return sources / chunks(); }

  /// Blocks that cross between stages for a token, forward: every transition hands over all that
  /// there are: C (C - 1) / 2 Np.
  double naive_blocks() const { return chunks() * (chunks() - 1) / 2 * blocks_per_chunk(); }
  /// What a stage has seen stays there: P (P - 1) / 2 Np in the first round, P Np at each of the
  /// P transitions of the V - 1 others.
  /// Source     Attention Residuals report, cross-stage caching; seeds: O(C) becomes O(P)
  double cached_blocks() const { return (P * (P - 1) / 2 + (V - 1) * P * P) * blocks_per_chunk(); }
  /// The largest single hand-over: (C - 1) Np; with caching P Np from the second round on, at most
  /// (P - 1) Np in the first.
  double naive_peak_blocks() const { return (chunks() - 1) * blocks_per_chunk(); }
  double cached_peak_blocks() const { return (V > 1 ? P : P - 1) * blocks_per_chunk(); }
  /// Blocks that a stage keeps for a token: all, once, whatever V.
  double kept_blocks() const { return sources; }
};

/// Sources of the last mix: blocks of the stack and the embedding (9 for K3).
double attn_res_sources(const checkpoint::ModelConfig& config);

}  // namespace triax::plan
