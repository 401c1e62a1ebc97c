// Routed experts for many tokens, MXFP4 weights, on Hopper's tensor cores.
#pragma once

#include <cstdint>

#include "width/latent_moe/latent_moe_cuda.h"
#include "width/latent_moe/moe_decode_sm90.h"

namespace triax::width {

constexpr int64_t kMoePrefillExpertsMax = 2048;

/// out[t] = sum_j p[t, j] * down_e(act(gate_e x[t], up_e x[t])), e = ids[t, j], j ascending from 0
/// Shapes     in, out [T, L], p [T, k] device float32, rows strided; groups: what
///            triax_cuda_group_experts made of ids [T, k] (any tile)
/// Layout     weights as MoeExpertsSm90 says
/// Scratch    triax_cuda_moe_prefill_sm90_scratch_bytes, 256-byte aligned; keeps nothing
/// Precision  x and the activations between the products rounded to bf16; weights exact (scales
///            2^-100 to 2^33); products and sums in float32
/// Invariance out[t] depends on in[t], ids[t] and p[t] alone, bit for bit
/// Aliasing   out is distinct from in
struct MoePrefillSm90 {
  MoeExpertsSm90 weights;
  Activation activation;
  const float* in;
  int64_t in_stride;
  int64_t tokens;  // T
  ExpertGroupsCuda groups;
  const float* route_weights;  // p
  int64_t route_weights_stride;
  int64_t routes;  // k
  float* out;
  int64_t out_stride;
  void* scratch;
};

/// Whether the fast form takes this shape.
bool moe_prefill_sm90_supports(const MoeExpertsSm90& weights);

extern "C" int64_t triax_cuda_moe_prefill_sm90_scratch_bytes(int64_t tokens, int64_t routes,
                                                             int64_t width, int64_t hidden);

/// Errors     a cudaError_t as int (cudaErrorNotSupported for a shape that is not supported);
///            enqueues only, four launches
extern "C" int triax_cuda_moe_prefill_sm90(const MoePrefillSm90* args, void* stream);

}  // namespace triax::width
