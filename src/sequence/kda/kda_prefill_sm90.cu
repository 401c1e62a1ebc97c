// KDA prefill for Hopper: one launch, states in registers, chunks prepared off the serial chain.
// A block owns one sequence and head (or a slice of its value rows). Its warps have roles:
//   loading     4 warps   bring the inputs of chunk after chunk by asynchronous copies
//   preparing   8 warps   one chunk each: gates, norms, decayed factors, the triangle's inverse
//   scanning    4 warps   the state through the chunks, and the output
// The maths is in README.md, the history of the kernel in docs/kernels/kda.md.
#include <cuda_runtime.h>

#include "sequence/kda/kda_prefill_prepare.cuh"
#include "sequence/kda/kda_prefill_scan.cuh"

namespace triax::sequence::prefill {
namespace {

/// Warp groups of 128 threads: scanning, preparing (two), loading. They share the
/// registers of the block as the work needs them.
template <int kRows>
struct Roles {
  static constexpr int kTiles = kRows == 128 ? 2 : 1;  // of 16 value rows that a warp carries
  static constexpr int kScanWarps = kRows / (16 * kTiles);
  static constexpr int kPrepareThreads = 32 * kPrepareWarps;
  static constexpr int kThreads = 128 + kPrepareThreads + 32 * kLoadWarps;
  static constexpr int kScanRegisters = 216;
  static constexpr int kPrepareRegisters = 128;
  static constexpr int kLoadRegisters = 40;
  static_assert(kScanRegisters * 128 + kPrepareRegisters * kPrepareThreads +
                    kLoadRegisters * 32 * kLoadWarps <=
                65536 / kThreads * kThreads);
};

__device__ int64_t boundary(const KdaPrefillCuda& args, int64_t n) {
  return args.cu_seqlens_bits == 64 ? static_cast<const int64_t*>(args.cu_seqlens)[n]
                                    : static_cast<const int32_t*>(args.cu_seqlens)[n];
}

/// The sequence of that rank by length, longest first (equal ones in order): long chains must not
/// start last. More sequences than threads are taken as they come.
template <int kRows>
__device__ int64_t sequence_of_rank(const KdaPrefillCuda& args, Shared<kRows>& shared,
                                    int64_t rank) {
  if (args.sequences == 1 || args.sequences > blockDim.x) {
    return rank;
  }
  if (threadIdx.x < args.sequences) {
    const auto length = [&](int64_t n) { return boundary(args, n + 1) - boundary(args, n); };
    const int64_t mine = threadIdx.x;
    const int64_t own = length(mine);
    int64_t before = 0;
    for (int64_t n = 0; n < args.sequences; ++n) {
      const int64_t other = length(n);
      before += other > own || (other == own && n < mine) ? 1 : 0;
    }
    if (before == rank) {
      shared.sequence = mine;
    }
  }
  __syncthreads();
  return shared.sequence;
}

__device__ Run run_of(const KdaPrefillCuda& args, int64_t sequence, int64_t head) {
  Run run;
  run.sequence = sequence;
  run.head = head;
  run.first = boundary(args, sequence);
  run.count = boundary(args, sequence + 1) - run.first;
  run.start = args.starts == nullptr ? 0 : args.starts[sequence];
  run.slot = args.slots == nullptr ? static_cast<int32_t>(sequence) : args.slots[sequence];
  run.place = 0;
  run.is_last = true;
  run.is_whole = false;
  return run;
}

/// How many segments the grid cuts a sequence into; an empty one has one.
__device__ int64_t segments_of(const Run& run, int64_t grid) {
  return run.count == 0 ? 1 : (run.start + run.count - 1) / grid - run.start / grid + 1;
}

/// Segment `index`, counted over all sequences; count < 0 where there is none.
__device__ Run segment_of(const KdaPrefillCuda& args, int64_t index, int64_t head) {
  Run run;
  int64_t before = 0;
  for (int64_t n = 0; n < args.sequences; ++n) {
    run = run_of(args, n, head);
    const int64_t count = segments_of(run, args.segment_tokens);
    if (index < before + count) {
      const int64_t begin =
          (run.start / args.segment_tokens + index - before) * args.segment_tokens;
      const int64_t end = run.start + run.count;
      const int64_t from = max(begin, run.start);
      run.place = index + n;  // one more than segments: also the state after the last
      run.is_last = index == before + count - 1;
      run.is_whole = begin + args.segment_tokens <= end;
      run.first += from - run.start;
      run.count = min(begin + args.segment_tokens, end) - from;
      run.start = from;
      return run;
    }
    before += count;
  }
  run.count = -1;
  return run;
}

/// Two matrices a place and head: a segment's first state, and the map of the segment before it.
__device__ float* segment_state(const KdaPrefillCuda& args, int64_t place, int64_t head, int part) {
  return args.segment_scratch + ((place * args.heads + head) * 2 + part) * kDim * kDim;
}

/// What a block works on.
template <int kRows, Pass kPass>
__device__ Run run_of_block(const KdaPrefillCuda& args, Shared<kRows>& shared, int slices) {
  const int64_t head = blockIdx.x / slices % args.heads;
  const int64_t index = blockIdx.x / slices / args.heads;
  Run run = kPass == Pass::kWhole ? run_of(args, sequence_of_rank(args, shared, index), head)
                                  : segment_of(args, index, head);
  run.c0 = run.start / kChunk;
  run.chunks = run.count <= 0 ? 0 : (run.start + run.count - 1) / kChunk - run.c0 + 1;
  return run;
}

/// Rows of one input of a chunk, kColumns wide, 16 bytes a lane and copy. `from` is row 0, column
/// 0.
template <int kColumns>
__device__ void load_rows(const Bf16* from, int64_t token, int lowest, int end, Bf16* to, int pitch,
                          int lane) {
  constexpr int kParts = kColumns / 8;  // lanes to a row
  constexpr int kStep = 32 / kParts;    // rows a copy
  const int column = 8 * (lane % kParts);
  int row = lane / kParts;
  const Bf16* source = from + row * token + column;
  Bf16* target = to + row * pitch + column;
#pragma unroll
  for (int i = 0; i < kChunk / kStep; ++i) {
    const bool present = row >= lowest && row < end;
    cuda::copy_async_or_zero(cuda::shared_address(target), source, present);
    row += kStep;
    source += kStep * token;
    target += kStep * pitch;
  }
}

/// Each loading warp brings one of the four inputs (zeros for v without `has_values`).
template <int kRows>
__device__ void load_chunks(const KdaPrefillCuda& args, const Run& run, int row0, bool has_values,
                            int warp, Shared<kRows>& shared, int lane) {
  const KdaPrefillInput& in = warp == 0   ? args.q
                              : warp == 1 ? args.k
                              : warp == 2 ? args.decay_logit
                                          : args.v;
  const Bf16* from = static_cast<const Bf16*>(in.data) + run.token(0) * in.token +
                     run.head * in.head + (warp == 3 ? row0 : 0);
  Ring ring;
  for (int64_t i = 0; i < run.chunks; ++i) {
    Stage<kRows>& stage = shared.stage[ring.slot];
    if (i >= kStages) {
      cuda::barrier_wait(cuda::shared_address(&shared.free[ring.slot]), ring.phase ^ 1);
    }
    const int lowest = run.lowest(i);
    const int end = run.end(i);
    if (warp == 3) {
      load_rows<kRows>(from, in.token, lowest, has_values ? end : 0, stage.v,
                       Stage<kRows>::kValuePitch, lane);
    } else {
      Bf16* const to = warp == 0 ? stage.q : warp == 1 ? stage.k : stage.g;
      load_rows<kDim>(from, in.token, lowest, end, to, kPitch, lane);
    }
    cuda::barrier_arrive_after_copies(cuda::shared_address(&shared.loaded[ring.slot]));
    from += kChunk * in.token;
    ring.advance(1);
  }
}

/// A preparing warp takes every eighth chunk.
template <int kRows>
__device__ void prepare_chunks(const KdaPrefillCuda& args, const Run& run, const Gate& gate,
                               int warp, Shared<kRows>& shared, int lane) {
  const auto beta_logit = [&](int64_t i) {
    if (i >= run.chunks || lane < run.lowest(i) || lane >= run.end(i)) {
      return 0.0f;
    }
    return __bfloat162float(static_cast<const Bf16*>(
        args.beta_logit)[(run.token(i) + lane) * args.beta_token + run.head]);
  };
  float beta = beta_logit(warp);
  Ring ring;
  ring.advance(warp);
  for (int64_t i = warp; i < run.chunks; i += kPrepareWarps) {
    const float next = beta_logit(i + kPrepareWarps);  // on its way while this chunk is prepared
    cuda::barrier_wait(cuda::shared_address(&shared.loaded[ring.slot]), ring.phase);
    prepare_chunk(shared.stage[ring.slot], gate, args.softplus != 0, run.lowest(i), run.end(i),
                  beta, lane);
    cuda::barrier_arrive(cuda::shared_address(&shared.prepared[ring.slot]));
    ring.advance(kPrepareWarps);
    beta = next;
  }
}

/// Where states asked for inside a sequence go, in order of position. Those on the grid of segments
/// are the merging kernel's.
struct Requests {
  int32_t next = 0;
  int32_t last = 0;

  __device__ Requests(const KdaPrefillCuda& args, const Run& run) {
    if (args.request_begin != nullptr) {
      next = args.request_begin[run.sequence];
      last = args.request_begin[run.sequence + 1];
      while (next < last && args.request_position[next] <= run.start) {
        ++next;  // an earlier segment's
      }
    }
  }
  __device__ bool at(const KdaPrefillCuda& args, int64_t position) const {
    return next < last && args.request_position[next] == position &&
           (args.segment_tokens == 0 || position % args.segment_tokens != 0);
  }
};

__device__ float* state_head(float* states, const KdaPrefillCuda& args, const Run& run,
                             int32_t slot) {
  return states == nullptr ? nullptr : states + slot * args.state_slot + run.head * kDim * kDim;
}

/// The state that a run begins with, and where its last one goes (null: nowhere).
struct Ends {
  const float* begin;
  bool identity;
  float* end;
};

template <Pass kPass>
__device__ Ends ends_of(const KdaPrefillCuda& args, const Run& run, int part) {
  float* last = state_head(args.states_out, args, run, run.slot);
  if constexpr (kPass == Pass::kWhole) {
    return {state_head(const_cast<float*>(args.states_in), args, run, run.slot), false, last};
  } else if constexpr (kPass == Pass::kMaps) {
    return {nullptr, part == 1, segment_state(args, run.place + 1, run.head, part)};
  } else {
    return {segment_state(args, run.place, run.head, 0), false,
            run.is_last && !run.is_whole ? last : nullptr};
  }
}

/// A scanning warp: value rows [row0 + value0, + 16 kTiles) of the head.
template <bool kOutput, int kRows>
__device__ void scan_chunks(const KdaPrefillCuda& args, const Run& run, const Ends& ends, int row0,
                            int value0, Shared<kRows>& shared, int lane) {
  constexpr int kTiles = Roles<kRows>::kTiles;
  using Part = OutputPart<kTiles>;
  Scan<kTiles> scan;
  if (ends.identity) {
    scan.load_identity(row0 + value0, lane);
  } else {
    scan.load(ends.begin, row0 + value0, lane);
  }
  Requests requests(args, run);
  Bf16* out = static_cast<Bf16*>(args.out) + (run.token(0) + Part::row(lane)) * args.out_token +
              run.head * args.out_head + row0 + value0 + Part::column(lane);
  Ring ring;
  bool ready = false;
  for (int64_t i = 0; i < run.chunks; ++i) {
    Stage<kRows>& stage = shared.stage[ring.slot];
    const int slot = ring.slot;
    if (!ready) {
      cuda::barrier_wait(cuda::shared_address(&shared.prepared[slot]), ring.phase);
    }
    float y[kTiles][2][4] = {};
    float o[kTiles][2][4] = {};
    ptx::Fragment u[kTiles];
    scan.template read<kOutput>(stage, lane, y, o);
    scan.solve(stage, value0, lane, y, u);
    scan.decay(stage, lane);
    scan.update(stage, lane, u);
    ring.advance(1);
    ready = i + 1 < run.chunks &&
            cuda::barrier_test(cuda::shared_address(&shared.prepared[ring.slot]), ring.phase);
    if constexpr (kOutput) {
      scan.finish_output(stage, value0, lane, u, o);
      __syncwarp();
      const Part part(stage, value0, lane);
      // Whoever waits need not wait for the writes.
      cuda::barrier_arrive(cuda::shared_address(&shared.free[slot]));
      part.write(out, args.out_token, run.lowest(i), run.end(i), lane);
      out += kChunk * args.out_token;
    } else {
      cuda::barrier_arrive(cuda::shared_address(&shared.free[slot]));
    }
    if (kOutput && requests.at(args, (run.c0 + i + 1) * kChunk)) {
      const int32_t target = args.request_slot[requests.next++];
      scan.store(state_head(args.states_out, args, run, target), row0 + value0, lane);
    }
  }
  if (ends.end != nullptr) {
    scan.store(ends.end, row0 + value0, lane);
  }
}

/// A sequence without a state: zeros.
__device__ void write_zeros(const KdaPrefillCuda& args, const Run& run, int row0, int rows) {
  for (int64_t i = threadIdx.x; i < run.count * rows; i += blockDim.x) {
    static_cast<Bf16*>(args.out)[(run.first + i / rows) * args.out_token +
                                 run.head * args.out_head + row0 + i % rows] = Bf16(0.0f);
  }
}

template <int kRows>
__device__ void init_barriers(Shared<kRows>& shared) {
  if (threadIdx.x < kStages) {
    cuda::barrier_init(cuda::shared_address(&shared.loaded[threadIdx.x]), 32 * kLoadWarps);
    cuda::barrier_init(cuda::shared_address(&shared.prepared[threadIdx.x]), 32);
    cuda::barrier_init(cuda::shared_address(&shared.free[threadIdx.x]),
                       32 * Roles<kRows>::kScanWarps);
  }
  __syncthreads();
}

/// Slices of a head's value rows; for maps their two parts.
template <int kRows, Pass kPass>
constexpr int kSlices = kPass == Pass::kMaps ? 2 : kDim / kRows;

template <int kRows, Pass kPass>
__global__ void __launch_bounds__(Roles<kRows>::kThreads, 1)
    kda_prefill(const __grid_constant__ KdaPrefillCuda args) {
  using R = Roles<kRows>;
  constexpr bool kOutput = kPass != Pass::kMaps;
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<kRows>*>(memory);
  constexpr int kParts = kSlices<kRows, kPass>;
  const Run run = run_of_block<kRows, kPass>(args, shared, kParts);
  const int slice = static_cast<int>(blockIdx.x % kParts);
  const int row0 = kOutput ? slice * kRows : 0;
  if (run.count < 0 || (!kOutput && ((run.is_last && !run.is_whole) || run.slot < 0))) {
    return;
  }
  if (run.slot < 0) {
    write_zeros(args, run, row0, kRows);
    return;
  }
  const Gate gate = make_gate(args, run.head, shared);
  init_barriers(shared);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  if (thread < 128) {
    cuda::registers_grow<R::kScanRegisters>();
    if (thread / 32 < R::kScanWarps) {
      const Ends ends = ends_of<kPass>(args, run, kOutput ? 0 : slice);
      scan_chunks<kOutput>(args, run, ends, row0, 16 * R::kTiles * (thread / 32), shared, lane);
    }
  } else if (thread < 128 + R::kPrepareThreads) {
    prepare_chunks(args, run, gate, (thread - 128) / 32, shared, lane);
  } else {
    cuda::registers_shrink<R::kLoadRegisters>();
    load_chunks(args, run, row0, kOutput || slice == 0, (thread - 128 - R::kPrepareThreads) / 32,
                shared, lane);
  }
}

constexpr int kMergeRows = 8;  // value rows of a block
constexpr int kMergeThreads = 256;

/// Where the state at a boundary of segments goes besides the scratch memory: four rows of a
/// column.
__device__ void hand_out(const KdaPrefillCuda& args, const Run& run, int64_t position, bool is_end,
                         int64_t at, const float (&sum)[4]) {
  const auto write = [&](int32_t slot) {
    float* to = state_head(args.states_out, args, run, slot) + at;
    for (int r = 0; r < 4; ++r) {
      to[r * kDim] = sum[r];
    }
  };
  if (is_end && args.states_out != nullptr) {
    write(run.slot);
  }
  if (args.request_begin != nullptr) {
    for (int32_t i = args.request_begin[run.sequence]; i < args.request_begin[run.sequence + 1];
         ++i) {
      if (args.request_position[i] == position) {
        write(args.request_slot[i]);
      }
    }
  }
}

/// The first states of all segments of a sequence and head, in order: S <- S M + B in float32, for
/// 8 value rows. A thread holds four of them in one column.
__global__ void __launch_bounds__(kMergeThreads)
    kda_prefill_merge(const __grid_constant__ KdaPrefillCuda args) {
  constexpr int kParts = kDim / kMergeRows;
  __shared__ float state[kMergeRows][kDim];
  const int64_t head = blockIdx.x / kParts % args.heads;
  const int64_t sequence = blockIdx.x / kParts / args.heads;
  int64_t place = sequence;
  for (int64_t n = 0; n < sequence; ++n) {
    place += segments_of(run_of(args, n, head), args.segment_tokens);
  }
  const Run run = run_of(args, sequence, head);
  if (run.slot < 0) {
    return;
  }
  const int column = static_cast<int>(threadIdx.x) % kDim;
  const int mine = static_cast<int>(threadIdx.x) / kDim * 4;  // first of the thread's rows
  const int64_t at =
      (static_cast<int64_t>(blockIdx.x % kParts) * kMergeRows + mine) * kDim + column;
  const int64_t end = run.start + run.count;
  const int64_t grid = args.segment_tokens;
  const int64_t count = segments_of(run, grid);
  const bool is_whole = run.count > 0 && end % grid == 0;
  const float* initial = state_head(const_cast<float*>(args.states_in), args, run, run.slot);
  for (int64_t j = 0; j < count + (is_whole ? 1 : 0); ++j) {
    float* first = segment_state(args, place + j, head, 0) + at;
    const float* map = segment_state(args, place + j, head, 1) + column;
    float sum[4];
    for (int r = 0; r < 4; ++r) {
      sum[r] = j > 0 ? first[r * kDim] : initial == nullptr ? 0.0f : initial[at + r * kDim];
    }
    if (j > 0) {
#pragma unroll 8
      for (int k = 0; k < kDim; ++k) {
        const float factor = map[k * kDim];
        for (int r = 0; r < 4; ++r) {
          sum[r] = fmaf(state[mine + r][k], factor, sum[r]);
        }
      }
      hand_out(args, run, (run.start / grid + j) * grid, j == count, at, sum);
    }
    __syncthreads();
    for (int r = 0; r < 4; ++r) {
      state[mine + r][column] = sum[r];
      first[r * kDim] = sum[r];
    }
    __syncthreads();
  }
}

template <int kRows, Pass kPass>
cudaError_t launch(const KdaPrefillCuda& args, int64_t runs, cudaStream_t stream) {
  constexpr size_t kBytes = sizeof(Shared<kRows>);
  static_assert(kBytes <= 232448, "a block of sm_90 has 227 KiB");
  const auto kernel = kda_prefill<kRows, kPass>;
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kBytes));
  if (error != cudaSuccess) {
    return error;
  }
  const int64_t blocks = runs * args.heads * kSlices<kRows, kPass>;
  kernel<<<static_cast<unsigned>(blocks), Roles<kRows>::kThreads, kBytes, stream>>>(args);
  return cudaGetLastError();
}

template <Pass kPass>
cudaError_t launch_rows(const KdaPrefillCuda& args, int64_t runs, int value_rows,
                        cudaStream_t stream) {
  switch (value_rows) {
    case 128:
      return launch<128, kPass>(args, runs, stream);
    case 64:
      return launch<64, kPass>(args, runs, stream);
    case 32:
      return launch<32, kPass>(args, runs, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

/// A bound on the segments of all sequences: each may begin and end inside one.
int64_t segments_max(const KdaPrefillCuda& args) {
  return args.tokens_max / args.segment_tokens + 2 * args.sequences;
}

cudaError_t launch_segments(const KdaPrefillCuda& args, int value_rows, cudaStream_t stream) {
  const int64_t segments = segments_max(args);
  if (const cudaError_t e = launch<128, Pass::kMaps>(args, segments, stream); e != cudaSuccess) {
    return e;
  }
  const int64_t blocks = args.sequences * args.heads * (kDim / kMergeRows);
  kda_prefill_merge<<<static_cast<unsigned>(blocks), kMergeThreads, 0, stream>>>(args);
  if (const cudaError_t e = cudaGetLastError(); e != cudaSuccess) {
    return e;
  }
  return launch_rows<Pass::kOutputs>(args, segments, value_rows, stream);
}

bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

bool takes(const KdaPrefillInput& in) {
  return aligned(in.data) && in.token % 8 == 0 && in.head % 8 == 0;
}

bool takes(const KdaPrefillCuda& args) {
  return takes(args.q) && takes(args.k) && takes(args.v) && takes(args.decay_logit) &&
         aligned(args.out) && args.out_token % 8 == 0 && args.out_head % 8 == 0 &&
         args.heads >= 1 && args.sequences >= 0 && args.sequences <= INT32_MAX / (4 * args.heads) &&
         (args.cu_seqlens_bits == 32 || args.cu_seqlens_bits == 64) &&
         (args.softplus != 0 || args.lower_bound < 0.0f) && args.segment_tokens >= 0 &&
         args.segment_tokens % kChunk == 0 &&
         (args.segment_tokens == 0 || (args.segment_scratch != nullptr && args.tokens_max >= 0 &&
                                       aligned(args.segment_scratch)));
}

/// Fewer value rows a block where whole heads would leave processors idle.
int choose_rows(const KdaPrefillCuda& args) {
  const int64_t runs = args.segment_tokens > 0 ? segments_max(args) : args.sequences;
  const int64_t whole = runs * args.heads;
  return whole > 66 ? 128 : whole > 33 ? 64 : 32;
}

}  // namespace
}  // namespace triax::sequence::prefill

extern "C" int64_t triax_cuda_kda_prefill_scratch_bytes(
    const triax::sequence::KdaPrefillCuda* args) {
  namespace prefill = triax::sequence::prefill;
  constexpr int64_t kStateBytes = sizeof(float) * prefill::kDim * prefill::kDim;
  return args->segment_tokens <= 0
             ? 0
             : (prefill::segments_max(*args) + args->sequences) * args->heads * 2 * kStateBytes;
}

extern "C" int triax_cuda_kda_prefill(const triax::sequence::KdaPrefillCuda* args, int value_rows,
                                      void* stream) {
  namespace prefill = triax::sequence::prefill;
  if (!prefill::takes(*args)) {
    return cudaErrorInvalidValue;
  }
  if (args->sequences == 0) {
    return cudaSuccess;
  }
  const int rows = value_rows == 0 ? prefill::choose_rows(*args) : value_rows;
  auto* const queue = static_cast<cudaStream_t>(stream);
  return args->segment_tokens > 0
             ? prefill::launch_segments(*args, rows, queue)
             : prefill::launch_rows<prefill::Pass::kWhole>(*args, args->sequences, rows, queue);
}
