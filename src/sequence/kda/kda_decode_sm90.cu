// KDA decode: a warp owns eight rows of a head's state, all of them in registers between one load
// and one store; the head's token is prepared in shared memory while the state is on its way.
#include "sequence/kda/kda_decode_cuda.h"
#include "sequence/kda/kda_step.cuh"

namespace triax::sequence::gpu {
namespace {

/// The window after this token: each channel has one thread, which read the old one.
__device__ inline void update_window(const KdaTokensCuda& in, float* window, const Share& share,
                                     const Channel<1>& c) {
  if (in.taps == nullptr || share.role == Role::kGates) {
    return;
  }
  const int64_t width = in.heads * kHeadDim;
  const int64_t at = static_cast<int64_t>(share.role) * width + share.at;
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    window[3 * i * width + at] = c.x[i + 1];
  }
}

/// One token of one head of one sequence; a cluster of 128 / kRows blocks, one for kRows rows.
/// Grid      (heads * blocks of a head, batch)
template <int kRows>
__global__ void __launch_bounds__(Split<kRows>::kThreads, Split<kRows>::kBlocksOfSm)
    kda_decode(const __grid_constant__ KdaDecodeCuda args) {
  using Group = Cluster<Split<kRows>::kBlocks>;
  // A cluster's barrier waits for the stores to device memory before it, a block's does not.
  constexpr bool kStoreLast = Split<kRows>::kBlocks > 1;
  __shared__ HeadTokens<kRows, 1> s;
  const KdaTokensCuda& in = args.tokens;
  const int64_t row = blockIdx.y;
  const int64_t head = blockIdx.x / Split<kRows>::kBlocks;
  const int rank = Group::rank();
  const int64_t slot = args.pool.slots[row * args.pool.slots_stride];
  if (slot < 0) {
    wait_for_previous();
    write_zeros<kRows>(in, row, 1, head, rank);
    return;
  }
  Group::arrive();  // the other blocks have begun: their shared memory may be written
  float* const window = args.pool.windows + slot * args.pool.window_stride;
  float* const state_at = args.pool.states + state_offset<kRows>(args.pool, slot, head, rank);
  const Share share = share_of<kRows>(head, rank);
  Channel<1> channel = {};
  load_old(in, window, share, head, channel);
  StateRows state = load_state(state_at);
  wait_for_previous();
  load_new(in, row, 1, share, head, channel);
  const auto factors = load_output_factors<kRows, 1>(in, row, 1, head, rank);
  Group::wait();
  if (share.role == Role::kGates) {
    prepare_gates(in, share, 1, channel, s, [](int, float) {});
  } else {
    prepare_channel(in, share, 1, channel, s);
    if constexpr (!kStoreLast) {
      update_window(in, window, share, channel);
    }
  }
  Group::sync();
  TokenLanes token = raw_lanes(s, 0);
  normalize(s, 0, in.scale, token);
  const StepResult result = step(state, token, key_query(token),
                                 s.v[0][threadIdx.x / 32 * kRowsOfWarp + lane_row()], s.beta[0]);
  keep_output(s, 0, rank, result.o, in.norm_weight != nullptr);
  if constexpr (!kStoreLast) {
    store_state(state_at, state);
  }
  if (in.norm_weight != nullptr) {
    Group::sync();
  } else {
    __syncthreads();
  }
  write_outputs(in, s, factors, row, 1, head, rank);
  if constexpr (kStoreLast) {
    update_window(in, window, share, channel);
    store_state(state_at, state);
  }
}

template <int kRows>
cudaError_t launch(const KdaDecodeCuda& args, cudaStream_t stream) {
  return launch_clusters<Split<kRows>::kBlocks>(kda_decode<kRows>, args, args.tokens.heads,
                                                args.batch, Split<kRows>::kThreads, args.start,
                                                stream);
}

}  // namespace
}  // namespace triax::sequence::gpu

extern "C" int triax_cuda_kda_decode(const triax::sequence::KdaDecodeCuda* args, void* stream) {
  using namespace triax::sequence;
  if (args->batch == 0 || args->tokens.heads == 0) {
    return cudaSuccess;
  }
  if (!gpu::tokens_valid(args->tokens) || !gpu::pool_valid(args->pool, args->tokens) ||
      args->batch < 0 || args->batch > gpu::kBatchMax) {
    return cudaErrorInvalidValue;
  }
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  switch (gpu::rows_of_block(args->rows, args->batch * args->tokens.heads,
                             args->tokens.norm_weight != nullptr)) {
    case 32:
      return gpu::launch<32>(*args, cuda_stream);
    case 128:
      return gpu::launch<128>(*args, cuda_stream);
    default:
      return cudaErrorInvalidValue;
  }
}
