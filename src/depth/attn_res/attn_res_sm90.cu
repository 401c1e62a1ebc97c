// Attention Residuals on Hopper, by rows: a block a token, sources one after another by the online
// softmax, their rows copied ahead into shared memory; and the merge, one source on a banked part.
#include <algorithm>

#include "depth/attn_res/attn_res_lanes.cuh"

namespace triax::depth::gpu {
namespace {

constexpr int kRowThreadsMax = 448;
constexpr int kQuads = 4;       // of four columns: what a thread of the row kernel owns of a row
constexpr int kWarpSlots = 16;  // at least kRowThreadsMax / 32

/// What the warps of a block add up, by turns.
struct RowShared {
  float sums[2][kWarpSlots * 4];
};

/// Sums of kCount values (1, 2 or 4) over the block, the same bits in every thread. `turn`
/// alternates from call to call, so that one barrier a call is enough.
template <int kCount>
__device__ inline void block_sums(float (&x)[kCount], RowShared& s, int turn) {
  const int lane = threadIdx.x % 32;
  const int warps = blockDim.x / 32;
  float sum = transpose_sum<kCount>(x);
#pragma unroll
  for (int mask = kCount; mask < 32; mask *= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, mask);
  }
  if (lane < kCount) {
    s.sums[turn][threadIdx.x / 32 * kCount + lane] = sum;
  }
  __syncthreads();
  sum = 0.0f;
#pragma unroll
  for (int slot = 0; slot < kWarpSlots * kCount; slot += 32) {  // lane l adds up value l % kCount
    if ((slot + lane) / kCount < warps) {
      sum += s.sums[turn][slot + lane];
    }
  }
#pragma unroll
  for (int mask = kCount; mask < 32; mask *= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, mask);
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    x[i] = __shfl_sync(0xffffffffu, sum, i);
  }
}

/// A thread's part of one row.
template <typename T>
struct RowPart {
  Quad<T> quad[kQuads];
};

__device__ inline int quad_of(int j) { return j * static_cast<int>(blockDim.x) + threadIdx.x; }

/// Whether the row has the thread's quad j. kFull: it has all, as D is a multiple of 512; tests of
/// every quad would take as long as the sums.
template <bool kFull>
__device__ inline bool has_quad(const AttnResMixCuda& args, int j) {
  return kFull || 4 * quad_of(j) < static_cast<int>(args.dim);
}

template <typename T>
__device__ inline const T* source_row(const AttnResMixCuda& args, int source, int64_t token) {
  return static_cast<const T*>(args.sources.rows[source]) + token * args.sources.strides[source];
}

template <typename T, bool kFull>
__device__ inline RowPart<T> load_row(const AttnResMixCuda& args, const T* row) {
  RowPart<T> part = {};
#pragma unroll
  for (int j = 0; j < kQuads; ++j) {
    if (has_quad<kFull>(args, j)) {
      part.quad[j] = load_quad<T>(row, quad_of(j));
    }
  }
  return part;
}

/// The running sum takes in the last layer's output; what is mixed is what is stored.
template <typename T, bool kFull>
__device__ inline void add_delta(const AttnResMixCuda& args, int64_t token,
                                 const RowPart<T>& change, RowPart<T>& part) {
  auto* row = const_cast<T*>(source_row<T>(args, args.sources.count - 1, token));
#pragma unroll
  for (int j = 0; j < kQuads; ++j) {
    if (has_quad<kFull>(args, j)) {
      const float4 sum = add4(part.quad[j].floats(), change.quad[j].floats());
      part.quad[j] = Quad<T>::of(sum);
      store_quad<T>(row, quad_of(j), sum);
    }
  }
}

template <typename T, bool kFull>
__device__ inline RowPart<T> load_delta(const AttnResMixCuda& args, int64_t token) {
  return load_row<T, kFull>(args, static_cast<const T*>(args.delta) + token * args.delta_stride);
}

/// The softmax so far: of the bank's sources, then of those met here.
struct Online {
  float max = -INFINITY;
  float sum = 0.0f;
  float4 acc[kQuads] = {};
};

template <bool kFull>
__device__ inline Online banked(const AttnResMixCuda& args, int64_t token) {
  Online o;
  if (args.acc == nullptr) {
    return o;
  }
  const void* row = row_of(args.acc, token, args.dim, args.acc_type);
#pragma unroll
  for (int j = 0; j < kQuads; ++j) {
    if (has_quad<kFull>(args, j)) {
      o.acc[j] = load_quad_as(row, quad_of(j), args.acc_type);
    }
  }
  o.max = args.max[token];
  o.sum = args.sum[token];
  return o;
}

/// kBatch sources into the softmax; those from `count` on are none.
template <bool kFull, typename T, int kBatch>
__device__ inline void take_in(const AttnResMixCuda& args, const RowPart<T> (&rows)[kBatch],
                               int count, float inverse_dim, RowShared& s, int turn, Online& o) {
  float sums[2 * kBatch] = {};
#pragma unroll
  for (int j = 0; j < kQuads; ++j) {
    if (has_quad<kFull>(args, j)) {
      const float4 query = reinterpret_cast<const float4*>(args.query)[quad_of(j)];
#pragma unroll
      for (int r = 0; r < kBatch; ++r) {
        const float4 v = rows[r].quad[j].floats();
        sums[2 * r] = dot4(v, query, sums[2 * r]);
        sums[2 * r + 1] = dot4(v, v, sums[2 * r + 1]);
      }
    }
  }
  block_sums(sums, s, turn);
  float max = o.max;
#pragma unroll
  for (int r = 0; r < kBatch; ++r) {
    const float mean = sums[2 * r + 1] * inverse_dim;
    sums[2 * r] = r < count ? sums[2 * r] * rsqrtf(mean + args.eps) : -INFINITY;
    max = fmaxf(max, sums[2 * r]);
  }
  if (max > o.max) {  // the same in all threads
    const float scale = expf(o.max - max);
    o.max = max;
    o.sum *= scale;
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      o.acc[j] = {o.acc[j].x * scale, o.acc[j].y * scale, o.acc[j].z * scale, o.acc[j].w * scale};
    }
  }
#pragma unroll
  for (int r = 0; r < kBatch; ++r) {
    const float weight = expf(sums[2 * r] - max);
    o.sum += weight;
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      o.acc[j] = fma4(weight, rows[r].quad[j].floats(), o.acc[j]);
    }
  }
}

template <bool kFull>
__device__ inline void write_row(const AttnResMixCuda& args, int64_t token, const Online& o,
                                 float inverse_dim, RowShared& s, int turn) {
  float factor = 1.0f / o.sum;
  if (args.norm_weight != nullptr) {
    float squares[1] = {};
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      squares[0] = dot4(o.acc[j], o.acc[j], squares[0]);
    }
    block_sums(squares, s, turn);
    const float mean = squares[0] * factor * factor * inverse_dim;
    factor *= rsqrtf(mean + args.norm_eps);
  }
  void* row = row_of(args.out, token, args.out_stride, args.out_type);
#pragma unroll
  for (int j = 0; j < kQuads; ++j) {
    if (has_quad<kFull>(args, j)) {
      const float4 weight = args.norm_weight == nullptr
                                ? float4{1.0f, 1.0f, 1.0f, 1.0f}
                                : reinterpret_cast<const float4*>(args.norm_weight)[quad_of(j)];
      store_quad_as(row, quad_of(j), args.out_type, scale4(o.acc[j], factor, weight));
    }
  }
}

/// One source on the banked part: a token a block, all of it loaded at once.
template <typename T, int kBlocksOfSm, bool kFull>
__global__ void __launch_bounds__(kRowThreadsMax, kBlocksOfSm)
    attn_res_merge(const __grid_constant__ AttnResMixCuda args, float inverse_dim) {
  __shared__ RowShared s;
  const int64_t token = blockIdx.x;
  RowPart<T> rows[1] = {load_row<T, kFull>(args, source_row<T>(args, 0, token))};
  RowPart<T> change = {};
  if (args.delta != nullptr) {
    change = load_delta<T, kFull>(args, token);
  }
  Online o = banked<kFull>(args, token);
  if (args.delta != nullptr) {
    add_delta<T, kFull>(args, token, change, rows[0]);
  }
  take_in<kFull>(args, rows, 1, inverse_dim, s, 0, o);
  write_row<kFull>(args, token, o, inverse_dim, s, 1);
}

/// Rows on their way in shared memory: kSlots batches of kBatch rows. A thread copies only what it
/// reads itself, so no barrier guards them.
template <typename T, int kBatch, int kSlots, bool kFull>
class RowStream {
 public:
  __device__ RowStream(const AttnResMixCuda& args, void* shared, int64_t token, int64_t end)
      : args_(args), ring_(static_cast<Quad<T>*>(shared)), token_(token), end_(end) {
    for (int i = 0; i < kSlots - 1; ++i) {
      copy_next();
    }
  }

  /// The next batch of rows; those past the last source are zero. Its successors are on their way.
  __device__ void take(RowPart<T> (&rows)[kBatch]) {
    asm volatile("cp.async.wait_group %0;" ::"n"(kSlots - 2) : "memory");
#pragma unroll
    for (int r = 0; r < kBatch; ++r) {
#pragma unroll
      for (int j = 0; j < kQuads; ++j) {
        rows[r].quad[j] = *place(take_slot_, r, j);
      }
    }
    take_slot_ = take_slot_ + 1 == kSlots ? 0 : take_slot_ + 1;
    copy_next();  // into the slot of the batch before this one
  }

 private:
  __device__ Quad<T>* place(int slot, int r, int j) const {
    return ring_ + ((slot * kBatch + r) * kQuads + j) * static_cast<int>(blockDim.x) + threadIdx.x;
  }

  /// Copies one batch, or commits an empty group when the tokens are at an end.
  __device__ void copy_next() {
    if (token_ < end_) {
#pragma unroll
      for (int r = 0; r < kBatch; ++r) {
        if (source_ + r < args_.sources.count) {
          copy_row(place(copy_slot_, r, 0), source_row<T>(args_, source_ + r, token_));
        } else {
          zero_row(place(copy_slot_, r, 0));
        }
      }
      copy_slot_ = copy_slot_ + 1 == kSlots ? 0 : copy_slot_ + 1;
      source_ += kBatch;
      if (source_ >= args_.sources.count) {
        source_ = 0;
        ++token_;
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }

  __device__ void zero_row(Quad<T>* shared) const {
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      shared[j * blockDim.x] = {};
    }
  }

  __device__ void copy_row(Quad<T>* shared, const T* row) const {
    const uint32_t step = blockDim.x * static_cast<uint32_t>(sizeof(Quad<T>));
    const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    const char* from = reinterpret_cast<const char*>(row) + threadIdx.x * sizeof(Quad<T>);
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      if (!has_quad<kFull>(args_, j)) {
        shared[j * blockDim.x] = {};
      } else if constexpr (sizeof(Quad<T>) == 16) {  // past the L1
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + j * step),
                     "l"(from + j * step)
                     : "memory");
      } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to + j * step),
                     "l"(from + j * step)
                     : "memory");
      }
    }
  }

  const AttnResMixCuda& args_;
  Quad<T>* ring_;
  int64_t token_, end_;
  int source_ = 0;
  int copy_slot_ = 0;
  int take_slot_ = 0;
};

/// `tokens_of_block` tokens a block, their rows one stream: the next token's first rows are on
/// their way while this one's last are mixed.
template <typename T, int kBatch, int kSlots, bool kFull>
__global__ void __launch_bounds__(kRowThreadsMax, 2)
    attn_res_mix_rows(const __grid_constant__ AttnResMixCuda args, int64_t tokens_of_block,
                      float inverse_dim) {
  extern __shared__ float4 ring[];
  __shared__ RowShared s;
  const int count = args.sources.count;
  const int64_t first = blockIdx.x * tokens_of_block;
  const int64_t end = min(first + tokens_of_block, args.tokens);
  RowStream<T, kBatch, kSlots, kFull> stream(args, ring, first, end);
  int turn = 0;
  for (int64_t token = first; token < end; ++token) {
    Online o = banked<kFull>(args, token);
    for (int source = 0; source < count; source += kBatch) {
      const bool takes_delta = args.delta != nullptr && source + kBatch >= count;
      RowPart<T> change = {};
      if (takes_delta) {
        change = load_delta<T, kFull>(args, token);
      }
      RowPart<T> rows[kBatch];
      stream.take(rows);
#pragma unroll
      for (int r = 0; r < kBatch; ++r) {
        if (takes_delta && source + r == count - 1) {
          add_delta<T, kFull>(args, token, change, rows[r]);
        }
      }
      take_in<kFull>(args, rows, count - source, inverse_dim, s, turn, o);
      turn ^= 1;
    }
    write_row<kFull>(args, token, o, inverse_dim, s, turn);
    turn ^= args.norm_weight != nullptr ? 1 : 0;  // only then has it a sum of its own
  }
}

unsigned row_threads(int64_t dim) { return static_cast<unsigned>((dim + 511) / 512 * 32); }

template <typename T, int kBatch, int kSlots, bool kFull>
cudaError_t launch_mix(const AttnResMixCuda& args, cudaStream_t stream) {
  const unsigned threads = row_threads(args.dim);
  const auto shared = static_cast<unsigned>(kBatch * kSlots * kQuads * sizeof(Quad<T>)) * threads;
  const cudaError_t error =
      cudaFuncSetAttribute(attn_res_mix_rows<T, kBatch, kSlots, kFull>,
                           cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
  if (error != cudaSuccess) {
    return error;
  }
  constexpr int64_t kBlocksOfGpu = 264;  // two on each multiprocessor of an H200
  const int64_t tokens_of_block = std::clamp<int64_t>(args.tokens / kBlocksOfGpu, 1, 4);
  const auto blocks = static_cast<unsigned>((args.tokens + tokens_of_block - 1) / tokens_of_block);
  attn_res_mix_rows<T, kBatch, kSlots, kFull><<<blocks, threads, shared, stream>>>(
      args, tokens_of_block, 1.0f / static_cast<float>(args.dim));
  return cudaGetLastError();
}

template <typename T, int kBlocksOfSm, bool kFull>
cudaError_t launch_merge(const AttnResMixCuda& args, cudaStream_t stream) {
  attn_res_merge<T, kBlocksOfSm, kFull>
      <<<static_cast<unsigned>(args.tokens), row_threads(args.dim), 0, stream>>>(
          args, 1.0f / static_cast<float>(args.dim));
  return cudaGetLastError();
}

template <bool kFull>
cudaError_t launch_rows(const AttnResMixCuda& args, cudaStream_t stream) {
  const bool narrow = args.sources.type == DType::kBf16;
  if (args.sources.count == 1) {
    return narrow ? launch_merge<__nv_bfloat16, 3, kFull>(args, stream)
                  : launch_merge<float, 2, kFull>(args, stream);
  }
  return narrow ? launch_mix<__nv_bfloat16, 2, 3, kFull>(args, stream)
                : launch_mix<float, 1, 3, kFull>(args, stream);
}

cudaError_t launch_mix_slices(const AttnResMixCuda& args, cudaStream_t stream) {
  SliceArgs slices;
  slices.tokens = args.tokens;
  slices.dim = args.dim;
  slices.sources = args.sources;
  slices.queries = args.query;
  slices.eps = args.eps;
  slices.delta = args.delta;
  slices.delta_stride = args.delta_stride;
  slices.norm_weight = args.norm_weight;
  slices.norm_eps = args.norm_eps;
  slices.out = args.out;
  slices.out_type = args.out_type;
  slices.out_stride = args.out_stride;
  return launch_slices(slices, stream);
}

bool mix_valid(const AttnResMixCuda& args) {
  const bool bank = args.acc == nullptr || (args.max && args.sum && is_float(args.acc_type));
  return sources_valid(args.sources, args.dim) && bank && args.query && args.out &&
         is_float(args.out_type) && args.tokens > 0 &&
         (args.form == AttnResForm::kAnyTokens || args.acc == nullptr) &&
         args.tokens < (int64_t{1} << 31) && args.out_stride % 8 == 0 && args.delta_stride % 8 == 0;
}

}  // namespace
}  // namespace triax::depth::gpu

extern "C" int triax_cuda_attn_res_mix(const triax::depth::AttnResMixCuda* args, void* stream) {
  using namespace triax::depth;
  if (args->tokens == 0 || args->dim == 0) {
    return cudaSuccess;
  }
  if (!gpu::mix_valid(*args)) {
    return cudaErrorInvalidValue;
  }
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  if (args->form == AttnResForm::kFewTokens) {
    return gpu::launch_mix_slices(*args, cuda_stream);
  }
  return args->dim % 512 == 0 ? gpu::launch_rows<true>(*args, cuda_stream)
                              : gpu::launch_rows<false>(*args, cuda_stream);
}
