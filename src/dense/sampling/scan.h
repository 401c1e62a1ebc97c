// Loops over all logits, written once and compiled for each instruction set (scan_*.cc). They use
// a fixed number of lanes and no fused operations, so every instruction set gives the same bits.
#pragma once

#include <cstdint>

#include "base/cpu.h"

namespace triax::dense::internal {

/// Logits whose sum of weights is kept, so that a draw can skip to the right block.
constexpr int64_t kScanBlock = 1024;

struct Extent {
  float max = 0.0f;    // -inf when every logit is
  bool valid = false;  // no NaN, no +inf
};

/// Loops of one instruction set.
struct Scan {
  /// Largest logit, and whether all are usable.
  Extent (*extent)(const float* logits, int64_t size);

  /// Index of the first logit equal to `value`, `size` when there is none.
  int64_t (*first_equal)(const float* logits, int64_t size, float value);

  /// weights[i] = exp((logits[i] - max) * inverse_temperature), relative error below 1e-11; 0 below
  /// e^-700. block_sums[b] sums the weights of block b. weights may be null. Returns their sum.
  double (*weigh)(const float* logits, int64_t size, float max, double inverse_temperature,
                  double* weights, double* block_sums);
};

/// Blocks of `size` logits.
constexpr int64_t scan_blocks(int64_t size) { return (size + kScanBlock - 1) / kScanBlock; }

const Scan& scan_portable();
const Scan& scan_avx2();
const Scan& scan_avx512();

/// The best one that this CPU runs. Asks the CPU: call once and keep it.
const Scan& scan_best();

}  // namespace triax::dense::internal
