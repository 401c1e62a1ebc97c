// KDA verify: the decode kernel with T tokens between the load of the state and its end; the state
// is not stored, what fold needs is. Fold: the recorded updates on rows in registers.
#include "sequence/kda/kda_step.cuh"
#include "sequence/kda/kda_verify_cuda.h"

namespace triax::sequence::gpu {
namespace {

enum class RecordPart { kU = 0, kK = 1, kG = 2 };

/// Where a head's 128 values of one recorded token begin.
__device__ inline int64_t record_at(int64_t row, int64_t part, int64_t heads, int64_t head) {
  return ((row * 3 + part) * heads + head) * kHeadDim;
}

__device__ inline float* step_record(const KdaRecordCuda& record, int64_t row, RecordPart part,
                                     int64_t heads, int64_t head) {
  return record.steps + record_at(row, static_cast<int64_t>(part), heads, head);
}

/// Raw inputs of one channel, as they came.
template <int kTokens>
__device__ inline void record_raw(const KdaVerifyCuda& args, int64_t row, int count,
                                  const Share& share, const Channel<kTokens>& c) {
  if (args.record.raw == nullptr) {
    return;
  }
  const auto part = static_cast<int64_t>(share.role);
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    if (t < count) {
      store_as(args.record.raw, record_at(row + t, part, args.tokens.heads, 0) + share.at,
               args.tokens.qkv_type, c.x[3 + t]);
    }
  }
}

/// Normalises the tokens in shared memory, a warp a token, and records k. Decode does the same
/// arithmetic in every warp; with several tokens once a block costs less than the barrier.
template <int kRows, int kTokens>
__device__ inline void normalize_tokens(const KdaVerifyCuda& args, HeadTokens<kRows, kTokens>& s,
                                        int count, int64_t row, int64_t head, int rank) {
  const int lane = threadIdx.x % 32;
  for (int t = threadIdx.x / 32; t < count; t += kRows / kRowsOfWarp) {
    TokenLanes token = raw_lanes(s, t);
    normalize(s, t, args.tokens.scale, token);
    const float kq = key_query(token);
    reinterpret_cast<float4*>(s.q[t])[lane] = token.q;
    reinterpret_cast<float4*>(s.k[t])[lane] = token.k;
    if (lane == 0) {
      s.key_query[t] = kq;
    }
    if (rank == 0) {
      float* k = step_record(args.record, row + t, RecordPart::kK, args.tokens.heads, head);
      reinterpret_cast<float4*>(k)[lane] = token.k;
    }
  }
}

/// The tokens through the state in registers, their outputs kept, their updates recorded.
template <int kRows, int kTokens>
__device__ inline void verify_tokens(const KdaVerifyCuda& args, HeadTokens<kRows, kTokens>& s,
                                     int count, int64_t row, int64_t head, int rank,
                                     StateRows& state) {
  const int own = threadIdx.x / 32 * kRowsOfWarp + lane_row();
  const bool speaks = threadIdx.x % 32 < 16 && threadIdx.x % 2 == 0;
  float* record =
      step_record(args.record, row, RecordPart::kU, args.tokens.heads, head) + rank * kRows + own;
  for (int t = 0; t < count; ++t) {
    const StepResult result = step(state, raw_lanes(s, t), s.key_query[t], s.v[t][own], s.beta[t]);
    if (speaks) {
      *record = result.u;
    }
    record += 3 * args.tokens.heads * kHeadDim;
    keep_output(s, t, rank, result.o, args.tokens.norm_weight != nullptr);
  }
}

/// At most kTokens draft tokens of one head of one sequence.
/// Grid      (heads * blocks of a head, batch), blocks of a head in a cluster
template <int kRows, int kTokens>
__global__ void __launch_bounds__(Split<kRows>::kThreads, Split<kRows>::kBlocksOfSm)
    kda_verify(const __grid_constant__ KdaVerifyCuda args) {
  using Group = Cluster<Split<kRows>::kBlocks>;
  __shared__ HeadTokens<kRows, kTokens> s;
  const KdaTokensCuda& in = args.tokens;
  const int64_t sequence = blockIdx.y;
  const int64_t row = sequence * args.draft;
  const int64_t head = blockIdx.x / Split<kRows>::kBlocks;
  const int rank = Group::rank();
  const int64_t slot = args.pool.slots[sequence * args.pool.slots_stride];
  const int draft = static_cast<int>(args.draft);
  const int count = args.lengths == nullptr ? draft : min(draft, args.lengths[sequence]);
  if (slot < 0 || count <= 0) {
    wait_for_previous();
    write_zeros<kRows>(in, row, count, head, rank);
    return;
  }
  Group::arrive();  // the other blocks have begun: their shared memory may be written
  const Share share = share_of<kRows>(head, rank);
  Channel<kTokens> channel = {};
  load_old(in, args.pool.windows + slot * args.pool.window_stride, share, head, channel);
  StateRows state = load_state(args.pool.states + state_offset<kRows>(args.pool, slot, head, rank));
  wait_for_previous();
  load_new(in, row, count, share, head, channel);
  const auto factors = load_output_factors<kRows, kTokens>(in, row, count, head, rank);
  Group::wait();
  if (share.role == Role::kGates) {
    prepare_gates(in, share, count, channel, s, [&](int t, float g) {
      step_record(args.record, row + t, RecordPart::kG, in.heads, 0)[share.at] = g;
    });
  } else {
    prepare_channel(in, share, count, channel, s);
    record_raw(args, row, count, share, channel);
  }
  Group::sync();
  normalize_tokens(args, s, count, row, head, rank);
  __syncthreads();
  verify_tokens(args, s, count, row, head, rank, state);
  Group::sync();
  write_outputs(in, s, factors, row, count, head, rank);
}

/// Recorded decays and keys of one head, in shared memory.
struct alignas(16) FoldShared {
  float decay[kKdaDraftMax][kHeadDim];
  float decay_low[kKdaDraftMax][kHeadDim];
  float k[kKdaDraftMax][kHeadDim];
};

/// A thread a channel; all loads are on their way before the first is needed.
__device__ inline void load_records(const KdaFoldCuda& args, int64_t row, int count, int64_t head,
                                    FoldShared& s) {
  const int channel = threadIdx.x;
  const float* k_at = step_record(args.record, row, RecordPart::kK, args.heads, head) + channel;
  const float* g_at = step_record(args.record, row, RecordPart::kG, args.heads, head) + channel;
  const int64_t stride = 3 * args.heads * kHeadDim;
  float k[kKdaDraftMax];
  float g[kKdaDraftMax];
#pragma unroll
  for (int t = 0; t < kKdaDraftMax; ++t) {
    k[t] = t < count ? k_at[t * stride] : 0.0f;
    g[t] = t < count ? g_at[t * stride] : 0.0f;
  }
#pragma unroll
  for (int t = 0; t < kKdaDraftMax; ++t) {
    if (t < count) {
      const float2 decay = exact_decay(g[t]);
      s.k[t][channel] = k[t];
      s.decay[t][channel] = decay.x;
      s.decay_low[t][channel] = decay.y;
    }
  }
}

/// u of token t for row lane % 8 of the warp.
__device__ inline float load_u(const KdaFoldCuda& args, int64_t row, int64_t head, int warp_row) {
  return step_record(args.record, row, RecordPart::kU, args.heads,
                     head)[warp_row + threadIdx.x % kRowsOfWarp];
}

__device__ inline void fold_step(StateRows& state, const FoldShared& s, int t, float u) {
  const int lane = threadIdx.x % 32;
  const auto columns = [&](const float* x) { return reinterpret_cast<const float4*>(x)[lane]; };
  TokenLanes token;
  token.k = columns(s.k[t]);
  token.decay = columns(s.decay[t]);
  token.decay_low = columns(s.decay_low[t]);
#pragma unroll
  for (int r = 0; r < kRowsOfWarp; ++r) {
    decay_row(state.row[r], token);
    add_outer(state.row[r], __shfl_sync(0xffffffffu, u, r), token.k);
  }
}

/// The window of one channel `count` tokens on: the last three of window and tokens.
__device__ inline void fold_window(const KdaFoldCuda& args, int64_t slot, int64_t row, int count,
                                   int part, int64_t at) {
  const int64_t width = args.heads * kHeadDim;
  float* window = args.pool.windows + slot * args.pool.window_stride + part * width + at;
  float next[3];
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    const int from = count + i;  // in window, then tokens
    next[i] = from < 3 ? window[3 * width * from]
                       : to_float(load_bits(args.record.raw,
                                            record_at(row + from - 3, part, args.heads, 0) + at,
                                            args.qkv_type),
                                  args.qkv_type);
  }
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    window[3 * width * i] = next[i];
  }
}

constexpr int kFoldRows = 32;  // a thread of the block for each channel

/// The accepted tokens of kFoldRows rows of one head of one sequence. No block needs another.
/// Grid      (heads * 4, batch)
__global__ void __launch_bounds__(Split<kFoldRows>::kThreads, Split<kFoldRows>::kBlocksOfSm)
    kda_fold(const __grid_constant__ KdaFoldCuda args) {
  __shared__ FoldShared s;
  const int64_t sequence = blockIdx.y;
  const int64_t row = sequence * args.draft;
  const int64_t head = blockIdx.x / Split<kFoldRows>::kBlocks;
  const int rank = static_cast<int>(blockIdx.x % Split<kFoldRows>::kBlocks);
  const int64_t slot = args.pool.slots[sequence * args.pool.slots_stride];
  const int count =
      min(static_cast<int>(args.draft), args.accepted[sequence * args.accepted_stride]);
  if (slot < 0 || count <= 0) {
    return;
  }
  float* const state_at = args.pool.states + state_offset<kFoldRows>(args.pool, slot, head, rank);
  StateRows state = load_state(state_at);
  const int warp_row = rank * kFoldRows + static_cast<int>(threadIdx.x) / 32 * kRowsOfWarp;
  float next = load_u(args, row, head, warp_row);
  load_records(args, row, count, head, s);
  __syncthreads();
  for (int t = 0; t < count; ++t) {
    const float u = next;
    if (t + 1 < count) {
      next = load_u(args, row + t + 1, head, warp_row);
    }
    fold_step(state, s, t, u);
  }
  store_state(state_at, state);
  const int part = static_cast<int>(threadIdx.x) / kFoldRows;
  if (args.record.raw != nullptr && part < 3) {
    const int channel = rank * kFoldRows + static_cast<int>(threadIdx.x) % kFoldRows;
    fold_window(args, slot, row, count, part, head * kHeadDim + channel);
  }
}

template <int kRows, int kTokens>
cudaError_t launch_verify(const KdaVerifyCuda& args, cudaStream_t stream) {
  return launch_clusters<Split<kRows>::kBlocks>(kda_verify<kRows, kTokens>, args, args.tokens.heads,
                                                args.batch, Split<kRows>::kThreads, args.start,
                                                stream);
}

template <int kRows>
cudaError_t launch_verify_rows(const KdaVerifyCuda& args, cudaStream_t stream) {
  if (args.draft <= 2) {
    return launch_verify<kRows, 2>(args, stream);
  }
  return args.draft <= 4 ? launch_verify<kRows, 4>(args, stream)
                         : launch_verify<kRows, 8>(args, stream);
}

bool verify_valid(const KdaVerifyCuda& args) {
  return tokens_valid(args.tokens) && pool_valid(args.pool, args.tokens) && args.batch >= 0 &&
         args.batch <= kBatchMax && args.draft >= 1 && args.draft <= kKdaDraftMax &&
         args.record.steps != nullptr &&
         (args.tokens.taps == nullptr || args.record.raw != nullptr);
}

bool fold_valid(const KdaFoldCuda& args) {
  return args.batch >= 0 && args.batch <= kBatchMax && args.draft >= 1 &&
         args.draft <= kKdaDraftMax && args.record.steps != nullptr && args.accepted != nullptr &&
         args.pool.states != nullptr && args.pool.slots != nullptr &&
         args.pool.state_stride % 4 == 0 && is_float(args.qkv_type) &&
         reinterpret_cast<uintptr_t>(args.pool.states) % 16 == 0 &&
         (args.record.raw == nullptr || args.pool.windows != nullptr);
}

}  // namespace
}  // namespace triax::sequence::gpu

extern "C" int triax_cuda_kda_verify(const triax::sequence::KdaVerifyCuda* args, void* stream) {
  using namespace triax::sequence;
  if (args->batch == 0 || args->tokens.heads == 0) {
    return cudaSuccess;
  }
  if (!gpu::verify_valid(*args)) {
    return cudaErrorInvalidValue;
  }
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  switch (gpu::rows_of_block(args->rows, args->batch * args->tokens.heads,
                             args->tokens.norm_weight != nullptr)) {
    case 32:
      return gpu::launch_verify_rows<32>(*args, cuda_stream);
    case 128:
      return gpu::launch_verify_rows<128>(*args, cuda_stream);
    default:
      return cudaErrorInvalidValue;
  }
}

extern "C" int triax_cuda_kda_fold(const triax::sequence::KdaFoldCuda* args, void* stream) {
  using namespace triax::sequence;
  if (args->batch == 0 || args->heads == 0) {
    return cudaSuccess;
  }
  if (!gpu::fold_valid(*args)) {
    return cudaErrorInvalidValue;
  }
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  const dim3 grid(static_cast<unsigned>(args->heads) * gpu::Split<gpu::kFoldRows>::kBlocks,
                  static_cast<unsigned>(args->batch));
  gpu::kda_fold<<<grid, gpu::Split<gpu::kFoldRows>::kThreads, 0, cuda_stream>>>(*args);
  return cudaGetLastError();
}
