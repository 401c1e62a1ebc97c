// How the two halves of a gated MLP's hidden layer become one.
#pragma once

namespace triax::dense {

/// gate and up to one number:
///   kSilu   silu(gate) up
///   kSitu   beta tanh(gate / beta) sigmoid(gate) linear_beta tanh(up / linear_beta)
/// Source     spec 2.5
struct Gating {
  enum class Kind { kSilu, kSitu };
  Kind kind = Kind::kSilu;
  float beta = 4.0f;
  float linear_beta = 25.0f;
};

}  // namespace triax::dense
