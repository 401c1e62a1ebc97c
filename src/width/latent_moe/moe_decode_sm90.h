// A layer's routed experts for a few tokens, MXFP4 weights, in one launch: for Hopper.
#pragma once

#include <cstdint>

#include "width/router/router_cuda.h"
#include "width/situ/situ.h"

namespace triax::width {

/// The three matrices of every expert: device arrays [E] of device pointers.
/// Layout     gate, up [F, L / 2], down [L, F / 2] bytes: MXFP4, the even column in the low nibble;
///            scales [F, L / 32] and [L, F / 32] E8M0; rows dense. Every pointer 16-byte aligned
struct MoeExpertsSm90 {
  const uint8_t* const* gate;
  const uint8_t* const* gate_scales;
  const uint8_t* const* up;
  const uint8_t* const* up_scales;
  const uint8_t* const* down;
  const uint8_t* const* down_scales;
  int64_t experts;  // E
  int64_t width;    // L, a multiple of 128
  int64_t hidden;   // F, a multiple of 128
};

/// Tokens of one call, experts and routes at most.
constexpr int64_t kMoeDecodeTokensMax = 64;
constexpr int64_t kMoeDecodeExpertsMax = 1024;
constexpr int64_t kMoeDecodeRoutesMax = 1024;

/// Where the routes come from.
/// kGiven     ids and route_weights are inputs
/// kLogits    the kernel chooses them from logits [T, E], dense, as router_select does, bit for
/// bit,
///            and writes ids and route_weights, too
enum class MoeRoutes { kGiven, kLogits };

/// out[t] = sum_j p[t, j] * down_e(act(gate_e x[t], up_e x[t])), e = ids[t, j], j ascending from 0
/// Shapes     in [T, L], out [T, L], p [T, k] device float32, ids [T, k] device int32, rows
/// strided;
///            ids of a token are distinct; a route whose id is outside [0, E) counts as zero
/// Layout     in's rows 16-byte aligned
/// Scratch    moe_decode_sm90_scratch_bytes, 256-byte aligned. The first 256 bytes are zero before
///            the first call and belong to the kernel afterwards: calls that share them run one
///            after another. The rest keeps nothing between calls
/// Precision  weights exact (scales 2^-100 to 2^33; larger ones give infinity); each activation is
///            the sum of two bf16 values, within 2^-17 of itself; products and sums in float32
/// Invariance out[t] depends on in[t], ids[t] and p[t] alone, bit for bit
/// Cost       each visited expert's weights come from memory once, whatever its number of tokens
/// Aliasing   out is distinct from in
struct MoeDecodeSm90 {
  MoeExpertsSm90 weights;
  Activation activation;
  const float* in;
  int64_t in_stride;
  int64_t tokens;  // T
  int32_t* ids;
  int64_t ids_stride;
  float* route_weights;  // p
  int64_t route_weights_stride;
  int64_t routes;  // k
  float* out;
  int64_t out_stride;
  void* scratch;
  MoeRoutes routes_from = MoeRoutes::kGiven;
  const float* logits = nullptr;
  RouterChoice choice = {};
};

/// Whether the fast form takes this shape; what it refuses goes through the plain products.
bool moe_decode_sm90_supports(const MoeExpertsSm90& weights, int64_t tokens, int64_t routes);

extern "C" int64_t triax_cuda_moe_decode_sm90_scratch_bytes(int64_t tokens, int64_t routes,
                                                            int64_t width, int64_t hidden);

/// Errors     a cudaError_t as int (cudaErrorNotSupported for a shape that is not supported);
///            enqueues only, one programmatic launch of a block a multiprocessor that wait for each
///            other
extern "C" int triax_cuda_moe_decode_sm90(const MoeDecodeSm90* args, void* stream);

}  // namespace triax::width
