// The kernels of the router, one for each instruction set. Internal to this folder.
#pragma once

#include <cstdint>

#include "width/router/router.h"

namespace triax::width::internal {

/// Experts whose rows a task unpacks and multiplies together.
constexpr int64_t kRouterPanel = 12;

/// A panel of expert rows as floats, and the tokens to multiply them with.
struct LogitsTile {
  const float* in;  // [tokens, size], rows in_stride apart
  int64_t in_stride;
  int64_t tokens;
  const float* rows;  // [experts, size], dense
  int64_t experts;    // 1 to kRouterPanel
  int64_t size;
  float* logits;  // [tokens, experts], rows logits_stride apart
  int64_t logits_stride;
};

/// logits[t, e] = in[t] . rows[e]. Every pair has the same order of additions, whatever the number
/// of tokens and experts beside it.
using RouterLogits = void (*)(const LogitsTile& tile);

void router_logits(const LogitsTile& tile);
void router_logits_avx2(const LogitsTile& tile);
void router_logits_avx512(const LogitsTile& tile);

/// Rows [first, first + count) of a kBf16 or kF16 matrix as floats, exactly: out [count, cols].
void unpack_rows(const MatrixView& matrix, int64_t first, int64_t count, float* out);
void unpack_rows_avx2(const MatrixView& matrix, int64_t first, int64_t count, float* out);
void unpack_rows_avx512(const MatrixView& matrix, int64_t first, int64_t count, float* out);

/// Top-k and weights of one token from its E logits.
struct Selection {
  const float* bias;  // [E]
  int64_t experts;
  int64_t count;  // k
  bool renormalize;
  float scaling_factor;
  RouteWeights weights_from;
};

/// scores [E] holds the logits and is overwritten; keys [k] is scratch.
void select_experts(const Selection& selection, float* scores, float* keys, int32_t* ids,
                    float* weights);

void route_reference(const RouteArgs& args);

}  // namespace triax::width::internal
