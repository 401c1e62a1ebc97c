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

constexpr int kThreads = 512;  // four warp groups: scanning, preparing, preparing, loading

__device__ int64_t boundary(const KdaPrefillCuda& args, int64_t n) {
  return args.cu_seqlens_bits == 64 ? static_cast<const int64_t*>(args.cu_seqlens)[n]
                                    : static_cast<const int32_t*>(args.cu_seqlens)[n];
}

/// The sequence of that rank by length, longest first (equal ones in order): long chains must not
/// start last. More sequences than threads are taken as they come.
template <int kRows>
__device__ int64_t sequence_of_rank(const KdaPrefillCuda& args, Shared<kRows>& shared,
                                    int64_t rank) {
  if (args.sequences == 1 || args.sequences > kThreads) {
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
  run.c0 = run.start / kChunk;
  run.chunks = run.count == 0 ? 0 : (run.start + run.count - 1) / kChunk - run.c0 + 1;
  run.slot = args.slots == nullptr ? static_cast<int32_t>(sequence) : args.slots[sequence];
  return run;
}

/// Rows of one input of a chunk, kColumns wide, 16 bytes a lane and copy. `from` is row 0, column 0.
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
    ptx::copy_async(target, source, present);
    row += kStep;
    source += kStep * token;
    target += kStep * pitch;
  }
}

/// Each loading warp brings one of the four inputs.
template <int kRows>
__device__ void load_chunks(const KdaPrefillCuda& args, const Run& run, int row0, int warp,
                            Shared<kRows>& shared, int lane) {
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
      ptx::barrier_wait(&shared.free[ring.slot], ring.phase ^ 1);
    }
    const int lowest = run.lowest(i);
    const int end = run.end(i);
    if (warp == 3) {
      load_rows<kRows>(from, in.token, lowest, end, stage.v, Stage<kRows>::kValuePitch, lane);
    } else {
      Bf16* const to = warp == 0 ? stage.q : warp == 1 ? stage.k : stage.g;
      load_rows<kDim>(from, in.token, lowest, end, to, kPitch, lane);
    }
    ptx::barrier_arrive_after_copies(&shared.loaded[ring.slot]);
    from += kChunk * in.token;
    ring.advance(1);
  }
}

__device__ Source source_of(const KdaPrefillCuda& args, const Run& run, int64_t chunk) {
  const auto rows = [&](const KdaPrefillInput& in) {
    return static_cast<const Bf16*>(in.data) + run.token(chunk) * in.token + run.head * in.head;
  };
  return {rows(args.q),         rows(args.k),         rows(args.decay_logit), args.q.token,
          args.k.token, args.decay_logit.token};
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
    ptx::barrier_wait(&shared.loaded[ring.slot], ring.phase);
    prepare_chunk(shared.stage[ring.slot], gate, args.softplus != 0, source_of(args, run, i),
                  run.lowest(i), run.end(i), beta, lane);
    __syncwarp();
    if (lane == 0) {
      ptx::barrier_arrive(&shared.prepared[ring.slot]);
    }
    ring.advance(kPrepareWarps);
    beta = next;
  }
}

/// Where states asked for inside a sequence go, in order of position.
struct Requests {
  int32_t next = 0;
  int32_t last = 0;

  __device__ Requests(const KdaPrefillCuda& args, const Run& run) {
    if (args.request_begin != nullptr) {
      next = args.request_begin[run.sequence];
      last = args.request_begin[run.sequence + 1];
    }
  }
  __device__ bool at(const KdaPrefillCuda& args, int64_t position) const {
    return next < last && args.request_position[next] == position;
  }
};

__device__ float* state_head(float* states, const KdaPrefillCuda& args, const Run& run,
                             int32_t slot) {
  return states == nullptr ? nullptr
                           : states + slot * args.state_slot + run.head * kDim * kDim;
}

/// A scanning warp: value rows [row0 + value0, + 16 kTiles) of the head.
template <int kTiles, int kRows>
__device__ void scan_chunks(const KdaPrefillCuda& args, const Run& run, int row0, int value0,
                            Shared<kRows>& shared, int lane) {
  Scan<kTiles> scan;
  scan.load(state_head(const_cast<float*>(args.states_in), args, run, run.slot), row0 + value0,
            lane);
  Requests requests(args, run);
  Bf16* out = static_cast<Bf16*>(args.out) + run.token(0) * args.out_token +
              run.head * args.out_head + row0;
  Ring ring;
  for (int64_t i = 0; i < run.chunks; ++i) {
    Stage<kRows>& stage = shared.stage[ring.slot];
    ptx::barrier_wait(&shared.prepared[ring.slot], ring.phase);
    float y[kTiles][2][4] = {};
    float o[kTiles][2][4] = {};
    ptx::Fragment u[kTiles];
    scan.read(stage, lane, y, o);
    scan.solve(stage, value0, lane, y, u);
    scan.update(stage, lane, u);
    scan.finish_output(stage, value0, lane, u, o);
    __syncwarp();
    write_output<kTiles>(stage, value0, run.lowest(i), run.end(i), out, args.out_token, lane);
    __syncwarp();
    if (lane == 0) {
      ptx::barrier_arrive(&shared.free[ring.slot]);
    }
    ring.advance(1);
    out += kChunk * args.out_token;
    if (requests.at(args, (run.c0 + i + 1) * kChunk)) {
      const int32_t target = args.request_slot[requests.next++];
      scan.store(state_head(args.states_out, args, run, target), row0 + value0, lane);
    }
  }
  if (args.states_out != nullptr) {
    scan.store(state_head(args.states_out, args, run, run.slot), row0 + value0, lane);
  }
}

/// A sequence without a state: zeros.
__device__ void write_zeros(const KdaPrefillCuda& args, const Run& run, int row0, int rows) {
  for (int64_t i = threadIdx.x; i < run.count * rows; i += kThreads) {
    static_cast<Bf16*>(args.out)[(run.first + i / rows) * args.out_token +
                                 run.head * args.out_head + row0 + i % rows] = Bf16(0.0f);
  }
}

template <int kRows>
__global__ void __launch_bounds__(kThreads, 1) kda_prefill(const KdaPrefillCuda args) {
  constexpr int kSlices = kDim / kRows;
  constexpr int kTiles = kRows == 128 ? 2 : 1;
  constexpr int kScanWarps = kRows / (16 * kTiles);
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<kRows>*>(memory);
  const int64_t slice = blockIdx.x % kSlices;
  const int64_t head = blockIdx.x / kSlices % args.heads;
  const int64_t rank = blockIdx.x / kSlices / args.heads;
  const Run run = run_of(args, sequence_of_rank(args, shared, rank), head);
  const int row0 = static_cast<int>(slice) * kRows;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (run.slot < 0) {
    write_zeros(args, run, row0, kRows);
    return;
  }
  const Gate gate = make_gate(args, head, shared);
  if (threadIdx.x < kStages) {
    ptx::barrier_init(&shared.loaded[threadIdx.x], 32 * kLoadWarps);
    ptx::barrier_init(&shared.prepared[threadIdx.x], 1);
    ptx::barrier_init(&shared.free[threadIdx.x], kScanWarps);
  }
  __syncthreads();
  if (warp < 4) {
    ptx::registers_grow<216>();
    if (warp < kScanWarps) {
      scan_chunks<kTiles>(args, run, row0, 16 * kTiles * warp, shared, lane);
    }
  } else if (warp < 4 + kPrepareWarps) {
    prepare_chunks(args, run, gate, warp - 4, shared, lane);
  } else {
    ptx::registers_shrink<40>();
    load_chunks(args, run, row0, warp - 4 - kPrepareWarps, shared, lane);
  }
}

template <int kRows>
cudaError_t launch(const KdaPrefillCuda& args, cudaStream_t stream) {
  constexpr size_t kBytes = sizeof(Shared<kRows>);
  static_assert(kBytes <= 232448, "a block of sm_90 has 227 KiB");
  const cudaError_t error = cudaFuncSetAttribute(
      kda_prefill<kRows>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kBytes));
  if (error != cudaSuccess) {
    return error;
  }
  const auto blocks = static_cast<unsigned>(args.sequences * args.heads * (kDim / kRows));
  kda_prefill<kRows><<<blocks, kThreads, kBytes, stream>>>(args);
  return cudaGetLastError();
}

bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

bool takes(const KdaPrefillInput& in) {
  return aligned(in.data) && in.token % 8 == 0 && in.head % 8 == 0;
}

bool takes(const KdaPrefillCuda& args) {
  return takes(args.q) && takes(args.k) && takes(args.v) && takes(args.decay_logit) &&
         aligned(args.out) && args.out_token % 8 == 0 && args.out_head % 8 == 0 &&
         args.heads >= 1 && args.sequences >= 0 &&
         args.sequences <= INT32_MAX / (4 * args.heads) &&
         (args.cu_seqlens_bits == 32 || args.cu_seqlens_bits == 64) &&
         (args.softplus != 0 || args.lower_bound < 0.0f);
}

/// Fewer value rows a block where whole heads would leave processors idle.
int choose_rows(const KdaPrefillCuda& args) {
  const int64_t whole = args.sequences * args.heads;
  return whole > 66 ? 128 : whole > 33 ? 64 : 32;
}

}  // namespace
}  // namespace triax::sequence::prefill

extern "C" int triax_cuda_kda_prefill(const triax::sequence::KdaPrefillCuda* args, int value_rows,
                                      void* stream) {
  namespace prefill = triax::sequence::prefill;
  if (!prefill::takes(*args)) {
    return cudaErrorInvalidValue;
  }
  if (args->sequences == 0) {
    return cudaSuccess;
  }
  auto* const queue = static_cast<cudaStream_t>(stream);
  switch (value_rows == 0 ? prefill::choose_rows(*args) : value_rows) {
    case 128:
      return prefill::launch<128>(*args, queue);
    case 64:
      return prefill::launch<64>(*args, queue);
    case 32:
      return prefill::launch<32>(*args, queue);
    default:
      return cudaErrorInvalidValue;
  }
}
