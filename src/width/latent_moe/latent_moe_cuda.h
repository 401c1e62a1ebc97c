// The pieces of a mixture of experts on the GPU, plain: routes grouped by expert, products of the
// groups with their experts' weights, the weighted sum. The host never learns the groups' sizes.
//
// One layer: route; group_experts; grouped_product for gate and up (in_rows = groups.tokens), the
// activation over [tokens * k, F], grouped_product for down (in_rows null); sum_experts.
#pragma once

#include <cstdint>

#include "tensor/matrix.h"

namespace triax::width {

/// Rows of a group that one block multiplies: small where most groups are. Given to
/// triax_cuda_group_experts, it chooses the form of triax_cuda_grouped_product, too.
constexpr int64_t kGroupTileSmall = 8;
constexpr int64_t kGroupTileLarge = 64;
constexpr int64_t group_tile(int64_t routes, int64_t experts) {
  return routes > 16 * experts ? kGroupTileLarge : kGroupTileSmall;
}

/// The routes of a batch sorted by expert: group e is rows [offsets[e], offsets[e + 1]) of the
/// grouped order; within it tokens ascend. All arrays are device memory.
struct ExpertGroupsCuda {
  int64_t routes;         // tokens * k: rows of the grouped order
  int64_t experts;        // E
  int64_t tile;           // kGroupTileSmall or kGroupTileLarge
  int64_t* offsets;       // [E + 1]
  int64_t* tile_offsets;  // [E + 1]: group e has tiles [tile_offsets[e], tile_offsets[e + 1])
  int64_t* tokens;        // [routes]: the token of a grouped row
  int64_t* rows;          // [tokens, k]: the grouped row of a route
};

/// Fills groups from ids.
/// Shapes     ids [tokens, count] device int32, rows strided, each in [0, E), distinct in a token;
///            scratch of triax_cuda_group_experts_scratch_bytes(tokens * count, E), 16-byte aligned
struct GroupExpertsCuda {
  const int32_t* ids;
  int64_t ids_stride;
  int64_t count;  // k
  ExpertGroupsCuda groups;
  void* scratch;
};

extern "C" int64_t triax_cuda_group_experts_scratch_bytes(int64_t routes, int64_t experts);

/// Errors     a cudaError_t as int (E > kGroupExpertsMax: cudaErrorNotSupported); enqueues only
extern "C" int triax_cuda_group_experts(const GroupExpertsCuda* args, void* stream);

constexpr int64_t kGroupExpertsMax = 8192;

/// out[i, r] = sum_c in[in_rows[i], c] * weight_e[r, c] for every grouped row i of expert e.
/// Shapes     weight_e [rows, cols] at data[e] and scales[e]: device arrays [E] of device pointers;
///            scales, or an entry of it, null for plain formats
///            formats: device array [E]; null: every expert has `format`. Experts of different
///            formats cost a launch for each format there is
///            in [., cols], out [groups.routes, rows] device float32, rows strided
/// Layout     faster where `aligned`: every data[e] is 16-byte aligned
struct GroupedProductCuda {
  ExpertGroupsCuda groups;
  const float* in;
  int64_t in_stride;
  const int64_t* in_rows;  // [routes]; null: i itself
  MatrixFormat format;
  int64_t rows;
  int64_t cols;
  const void* const* data;
  const void* const* scales;
  bool aligned;
  float* out;
  int64_t out_stride;
  const MatrixFormat* formats = nullptr;
};

/// Invariance a row's bits depend on that row, its expert and groups.tile
/// Aliasing   out is distinct from in
/// Errors     a cudaError_t as int; enqueues only
extern "C" int triax_cuda_grouped_product(const GroupedProductCuda* args, void* stream);

/// out[t] = sum_j weights[t, j] * in[rows[t, j]], j ascending, starting from 0
/// Shapes     in [routes, size] in the grouped order, out [tokens, size], weights [tokens, count]
///            device float32, rows strided; rows [tokens, count] dense, as group_experts writes it
struct SumExpertsCuda {
  const float* in;
  int64_t in_stride;
  const int64_t* rows;
  const float* weights;
  int64_t weights_stride;
  int64_t count;
  float* out;
  int64_t out_stride;
  int64_t tokens;
  int64_t size;
};

/// Errors     a cudaError_t as int; enqueues only
extern "C" int triax_cuda_sum_experts(const SumExpertsCuda* args, void* stream);

}  // namespace triax::width
