// The largest logit, log-probabilities, and filtered draws. What reads every logit of a row works
// in parts, a block each, whose results a block for each row joins in their order. The filters
// leave a prefix of the order (descending logit, ascending id); its border is found digit by digit
// of the logit's bits, with integer masses, so that no sum depends on the order of threads.
#include "dense/sampling/sampling_cuda.h"
#include "device/cuda/block.cuh"

namespace triax::dense {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / cuda::kWarp;
constexpr int kBlock = 1024;  // weights summed together, as scan.h has it
constexpr int kLanes = 16;    // running sums in a block, as scan_loops.h has it
constexpr int kBlocksMax = static_cast<int>(kSampleVocabMax) / kBlock;
static_assert(kBlocksMax <= kThreads);
constexpr int kPart = 2048;  // logits that a block of kPartThreads reads for its row
constexpr int kPartThreads = 256;
constexpr int kJoinThreads = 128;
constexpr int64_t kRowsMax = 65535;  // of a grid

/// The largest logit of a row. Order: descending logit, ascending id; NaN and +inf win, so that
/// they are seen.
struct Largest {
  float logit;
  int32_t id;

  __device__ bool usable() const { return logit > -INFINITY && logit < INFINITY; }
  __device__ bool before(const Largest& other) const {
    const bool bad = isnan(logit);
    const bool other_bad = isnan(other.logit);
    if (bad || other_bad) {
      return bad && (!other_bad || id < other.id);
    }
    return logit > other.logit || (logit == other.logit && id < other.id);
  }
};

template <int kCount>
__device__ Largest largest_of_block(Largest best) {
  __shared__ Largest of_warp[kCount / cuda::kWarp];
  for (int offset = cuda::kWarp / 2; offset > 0; offset /= 2) {
    const Largest other = {__shfl_xor_sync(0xffffffffU, best.logit, offset),
                           __shfl_xor_sync(0xffffffffU, best.id, offset)};
    best = other.before(best) ? other : best;
  }
  if (threadIdx.x % cuda::kWarp == 0) {
    of_warp[threadIdx.x / cuda::kWarp] = best;
  }
  __syncthreads();
  best = of_warp[0];
  for (int i = 1; i < kCount / cuda::kWarp; ++i) {
    best = of_warp[i].before(best) ? of_warp[i] : best;
  }
  return best;
}

__device__ Largest nothing() { return {-INFINITY, 0x7fffffff}; }

/// Of a part of a row: its largest logit, and the sum of e^(logit - largest).
struct Part {
  Largest largest;
  double sum;
};

__device__ Part* parts_of(const ArgmaxCuda& args, int64_t row) {
  return static_cast<Part*>(args.scratch) + row * cuda::blocks_for(args.vocab, kPart);
}

__global__ void __launch_bounds__(kPartThreads) argmax_parts(ArgmaxCuda args) {
  constexpr int kEach = kPart / kPartThreads;
  const float* logits = args.logits + static_cast<int64_t>(blockIdx.y) * args.logits_stride;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kPart + threadIdx.x;
  float own[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    own[i] = first + i * kPartThreads < args.vocab ? logits[first + i * kPartThreads] : -INFINITY;
  }
  Largest best = nothing();
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const Largest candidate = {own[i], static_cast<int32_t>(first + i * kPartThreads)};
    best = candidate.before(best) ? candidate : best;
  }
  best = largest_of_block<kPartThreads>(best);
  double sum = 0.0;
  for (int i = 0; i < kEach && best.usable(); ++i) {
    sum += exp(static_cast<double>(own[i]) - static_cast<double>(best.logit));
  }
  sum = cuda::block_sum<kPartThreads>(sum);
  if (threadIdx.x == 0) {
    parts_of(args, blockIdx.y)[blockIdx.x] = {best, sum};
  }
}

__global__ void __launch_bounds__(kJoinThreads) argmax_join(ArgmaxCuda args) {
  const int64_t t = blockIdx.x;
  const Part* parts = parts_of(args, t);
  const int64_t count = cuda::blocks_for(args.vocab, kPart);
  Largest best = nothing();
  for (int64_t i = threadIdx.x; i < count; i += kJoinThreads) {
    best = parts[i].largest.before(best) ? parts[i].largest : best;
  }
  best = largest_of_block<kJoinThreads>(best);
  double sum = 0.0;
  for (int64_t i = threadIdx.x; i < count; i += kJoinThreads) {
    const double below = static_cast<double>(parts[i].largest.logit) - best.logit;
    sum += parts[i].sum * exp(below);
  }
  sum = cuda::block_sum<kJoinThreads>(sum);
  if (threadIdx.x != 0) {
    return;
  }
  const bool usable = best.usable();
  if (args.ids != nullptr) {
    args.ids[t] = usable ? best.id : -1;
  }
  if (args.logprobs != nullptr) {
    args.logprobs[t] = usable ? static_cast<float>(-log(sum)) : nanf("");
  }
  if (args.log_totals != nullptr) {
    args.log_totals[t] = usable ? static_cast<double>(best.logit) + log(sum) : nan("");
  }
}

__global__ void logprob_rows(LogprobsCuda args) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= args.rows * args.count) {
    return;
  }
  const int64_t t = i / args.count;
  const int64_t id = args.ids[i];
  const bool known = id >= 0 && id < args.vocab;
  const double logit = known ? static_cast<double>(args.logits[t * args.logits_stride + id]) : 0.0;
  args.logprobs[i] = known ? static_cast<float>(logit - args.log_totals[t]) : nanf("");
}

/// exp(x) for x <= 0 with the operations, and so the bits, of scan_loops.h.
__device__ double exponential(double x) {
  constexpr double kTaylor[10] = {1.0,       1.0,       1.0 / 2,    1.0 / 6,     1.0 / 24,
                                  1.0 / 120, 1.0 / 720, 1.0 / 5040, 1.0 / 40320, 1.0 / 362880};
  if (!(x >= -700.0)) {
    return 0.0;
  }
  const double shifted = __dadd_rn(__dmul_rn(x, 0x1.71547652b82fep+0), 0x1.8p52);
  const double n = __dadd_rn(shifted, -0x1.8p52);
  const double r = __dadd_rn(__dadd_rn(x, -__dmul_rn(n, 0x1.62e42fefa0000p-1)),
                             -__dmul_rn(n, 0x1.cf79abc9e3b3ap-40));
  double p = kTaylor[9];
#pragma unroll
  for (int i = 8; i >= 0; --i) {
    p = __dadd_rn(__dmul_rn(p, r), kTaylor[i]);
  }
  return __longlong_as_double(__double_as_longlong(p) + (__double_as_longlong(shifted) << 52));
}

/// A float as an integer of the same order; both zeros are one.
__device__ uint32_t order_of(float logit) {
  const uint32_t bits = __float_as_uint(logit + 0.0f);
  return (bits & 0x80000000U) != 0U ? ~bits : bits | 0x80000000U;
}

/// The last token that is kept.
struct Border {
  uint32_t order;
  int32_t id;

  __device__ bool keeps(uint32_t token_order, int64_t token) const {
    return token_order > order || (token_order == order && token <= id);
  }
};

using Mass = unsigned long long;

/// A weight in [0, 1] as an integer: sums of up to 2^19 of them are exact.
__device__ Mass mass_of(double weight) { return static_cast<Mass>(weight * 0x1.0p44 + 0.5); }

/// What a row's filters work on.
struct Row {
  const float* logits;
  const double* weights;
  int64_t vocab;
};

/// Adds `mass` of each lane to masses[digit]; lanes of equal digit join first. kNoDigit: none.
constexpr unsigned kNoDigit = 256;
__device__ void add_mass(Mass* masses, unsigned digit, Mass mass) {
  const unsigned equal = __match_any_sync(0xffffffffU, digit);
  constexpr unsigned kLow = (1U << 23) - 1U;
  const Mass low = __reduce_add_sync(equal, static_cast<unsigned>(mass & kLow));
  const Mass high = __reduce_add_sync(equal, static_cast<unsigned>(mass >> 23));
  const bool leader = (equal & ((1U << (threadIdx.x % cuda::kWarp)) - 1U)) == 0U;
  if (leader && digit != kNoDigit) {
    atomicAdd(&masses[digit], low + (high << 23));
  }
}

/// Among tokens that `within` keeps: the order of the token where the running mass, from the
/// largest on, reaches `target`; `before` gets the mass of all larger orders. by_count: each
/// weighs 1.
__device__ uint32_t find_order(const Row& row, const Border& within, bool by_count, Mass target,
                               Mass* before) {
  __shared__ Mass masses[256];
  __shared__ uint32_t prefix;
  __shared__ Mass passed;
  if (threadIdx.x == 0) {
    prefix = 0;
    passed = 0;
  }
  for (int shift = 24; shift >= 0; shift -= 8) {
    if (threadIdx.x < 256) {
      masses[threadIdx.x] = 0;
    }
    __syncthreads();
    const uint64_t known = prefix;
    for (int64_t first = 0; first < row.vocab; first += kThreads) {
      const int64_t i = first + threadIdx.x;
      const bool inside = i < row.vocab;
      const uint32_t order = inside ? order_of(row.logits[i]) : 0U;
      const bool counts = inside && within.keeps(order, i) &&
                          (static_cast<uint64_t>(order) >> (shift + 8)) == known;
      const Mass mass = counts ? (by_count ? 1U : mass_of(row.weights[i])) : 0U;
      add_mass(masses, counts ? order >> shift & 255U : kNoDigit, mass);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int digit = 255;
      while (digit > 0 && passed + masses[digit] < target) {
        passed += masses[digit--];
      }
      prefix = prefix << 8 | static_cast<uint32_t>(digit);
    }
    __syncthreads();
  }
  *before = passed;
  const uint32_t order = prefix;
  __syncthreads();
  return order;
}

/// The id of the `count`-th token (from 1) of this order; the last one when there are fewer.
__device__ int32_t find_equal(const Row& row, uint32_t order, Mass count) {
  __shared__ int of_warp[kWarps];
  const int warp = threadIdx.x / cuda::kWarp;
  const int lane = threadIdx.x % cuda::kWarp;
  Mass seen = 0;
  int32_t last = -1;
  for (int64_t first = 0; first < row.vocab && seen < count; first += kThreads) {
    const int64_t i = first + threadIdx.x;
    const bool equal = i < row.vocab && order_of(row.logits[i]) == order;
    const unsigned lanes = __ballot_sync(0xffffffffU, equal);
    if (lane == 0) {
      of_warp[warp] = __popc(lanes);
    }
    __syncthreads();
    Mass rank = seen;
    for (int w = 0; w < kWarps; ++w) {
      rank += w < warp ? static_cast<Mass>(of_warp[w]) : 0U;
      seen += static_cast<Mass>(of_warp[w]);
    }
    rank += static_cast<Mass>(__popc(lanes & ((1U << lane) - 1U)));
    last = equal && rank < count ? static_cast<int32_t>(i) : last;
    __syncthreads();
  }
  last = __reduce_max_sync(0xffffffffU, last);
  if (lane == 0) {
    of_warp[warp] = last;
  }
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) {
    last = max(last, of_warp[w]);
  }
  __syncthreads();
  return last;
}

__device__ Border keeps_all() { return {0, 0x7fffffff}; }

__device__ Border keep_top_k(const Row& row, int32_t count) {
  Mass before;
  const auto target = static_cast<Mass>(count);
  const uint32_t order = find_order(row, keeps_all(), true, target, &before);
  return {order, find_equal(row, order, target - before)};
}

/// The shortest prefix of what `within` keeps whose weight reaches top_p of it.
__device__ Border keep_top_p(const Row& row, const Border& within, float top_p) {
  __shared__ Mass total;
  if (threadIdx.x == 0) {
    total = 0;
  }
  __syncthreads();
  for (int64_t first = 0; first < row.vocab; first += kThreads) {
    const int64_t i = first + threadIdx.x;
    const bool inside = i < row.vocab && within.keeps(order_of(row.logits[i]), i);
    add_mass(&total, inside ? 0U : kNoDigit, inside ? mass_of(row.weights[i]) : 0U);
  }
  __syncthreads();
  const double share = ceil(static_cast<double>(top_p) * static_cast<double>(total));
  const Mass target = max(Mass{1}, min(total, static_cast<Mass>(share)));
  Mass before;
  const uint32_t order = find_order(row, within, false, target, &before);
  // Tokens of one order weigh the same.
  const int32_t first = find_equal(row, order, 1);
  const Mass each = max(Mass{1}, mass_of(row.weights[first]));
  const int32_t last = find_equal(row, order, (target - before + each - 1) / each);
  return {order, order == within.order ? min(last, within.id) : last};
}

/// The weight of a token, zero where it is not kept.
__device__ double kept_weight(const Row& row, const Border& border, double weight_min, int64_t i) {
  const double weight = row.weights[i];
  const bool kept = border.keeps(order_of(row.logits[i]), i) && weight >= weight_min;
  return kept ? weight : 0.0;
}

/// The sum of kBlock weights in the order of scan_loops.h; in thread 0 of a block of any size.
__device__ double sum_in_order(const double (&weights)[kBlock]) {
  double own = 0.0;
  if (threadIdx.x < kLanes) {
    for (int i = static_cast<int>(threadIdx.x); i < kBlock; i += kLanes) {
      own += weights[i];
    }
  }
  double sum = 0.0;
  if (threadIdx.x < cuda::kWarp) {
    for (int from = 0; from < kLanes; ++from) {
      sum += __shfl_sync(0xffffffffU, own, from);
    }
  }
  return sum;
}

/// Sums of kBlock weights each, a warp for each block, in the order of scan_loops.h.
__device__ void sum_blocks(const Row& row, const Border& border, double weight_min, double* sums) {
  const int lane = threadIdx.x % cuda::kWarp;
  const int64_t blocks = (row.vocab + kBlock - 1) / kBlock;
  for (int64_t block = threadIdx.x / cuda::kWarp; block < blocks; block += kWarps) {
    const int64_t end = min((block + 1) * kBlock, row.vocab);
    double own = 0.0;
    for (int64_t i = block * kBlock + lane; lane < kLanes && i < end; i += kLanes) {
      own += kept_weight(row, border, weight_min, i);
    }
    double sum = 0.0;
    for (int from = 0; from < kLanes; ++from) {
      sum += __shfl_sync(0xffffffffU, own, from);
    }
    if (lane == 0) {
      sums[block] = sum;
    }
  }
  __syncthreads();
}

/// Where the running sum of kept weights, by ascending id, passes uniform times their total. sums:
/// of blocks of kBlock.
__device__ int32_t draw(const Row& row, const Border& border, double weight_min, double uniform,
                        const double* sums_of_blocks) {
  __shared__ double sums[kBlocksMax];
  __shared__ double weights[kBlock];
  __shared__ double target;
  __shared__ double sum;
  __shared__ int64_t begin;
  const int64_t blocks = cuda::blocks_for(row.vocab, kBlock);
  if (threadIdx.x < blocks) {
    sums[threadIdx.x] = sums_of_blocks[threadIdx.x];
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    double total = 0.0;
    for (int64_t block = 0; block < blocks; ++block) {
      total += sums[block];
    }
    target = uniform * total;
    sum = 0.0;
    int64_t last = 0;  // the last block that weighs anything, should rounding pass the end
    int64_t block = 0;
    for (; block < blocks; ++block) {
      last = sums[block] > 0.0 ? block : last;
      if (sum + sums[block] > target) {
        break;
      }
      sum += sums[block];
    }
    begin = min(block, last) * kBlock;
  }
  __syncthreads();
  const int64_t own = begin + threadIdx.x;
  weights[threadIdx.x] = own < row.vocab ? kept_weight(row, border, weight_min, own) : 0.0;
  __syncthreads();
  int32_t drawn = static_cast<int32_t>(begin);
  if (threadIdx.x == 0) {
    double running = sum;
    for (int i = 0; i < kBlock && running <= target; ++i) {
      if (weights[i] > 0.0) {
        drawn = static_cast<int32_t>(begin + i);
        running += weights[i];
      }
    }
  }
  return drawn;  // of thread 0
}

/// A row's place in the scratch memory: a weight for each token, then the sum of each block of
/// them.
struct Scratch {
  double* weights;
  double* sums;
};

__device__ Scratch scratch_of(const SampleCuda& args, int64_t row) {
  const int64_t blocks = cuda::blocks_for(args.vocab, kBlock);
  double* weights = static_cast<double*>(args.scratch) + row * (args.vocab + blocks);
  return {weights, weights + args.vocab};
}

/// Nothing is drawn from such a row: its id stays.
__device__ bool is_decided(const SampleCuda& args, int64_t row) {
  return args.ids[row] < 0 || args.settings[row].temperature == 0.0f;
}

/// Weights of kBlock tokens, and the sum of those that min_p keeps.
__global__ void __launch_bounds__(kBlock) weigh_tokens(SampleCuda args) {
  __shared__ double kept[kBlock];
  const int64_t t = blockIdx.y;
  if (is_decided(args, t)) {
    return;
  }
  const float* logits = args.logits + t * args.logits_stride;
  const double largest = static_cast<double>(logits[args.ids[t]]);
  const double inverse = 1.0 / static_cast<double>(args.settings[t].temperature);
  const Scratch scratch = scratch_of(args, t);
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  double weight = 0.0;
  if (i < args.vocab) {
    weight = exponential((static_cast<double>(logits[i]) - largest) * inverse);
    scratch.weights[i] = weight;
  }
  kept[threadIdx.x] = weight >= static_cast<double>(args.settings[t].min_p) ? weight : 0.0;
  __syncthreads();
  const double sum = sum_in_order(kept);
  if (threadIdx.x == 0) {
    scratch.sums[blockIdx.x] = sum;
  }
}

__global__ void __launch_bounds__(kThreads) sample_rows(SampleCuda args) {
  const int64_t t = blockIdx.x;
  if (is_decided(args, t)) {
    return;
  }
  const SampleSettings settings = args.settings[t];
  const auto weight_min = static_cast<double>(settings.min_p);
  const Scratch scratch = scratch_of(args, t);
  const Row row = {args.logits + t * args.logits_stride, scratch.weights, args.vocab};
  Border border = keeps_all();
  if (settings.top_k > 0 && settings.top_k < args.vocab) {
    border = keep_top_k(row, settings.top_k);
  }
  if (settings.top_p < 1.0f) {
    border = keep_top_p(row, border, settings.top_p);
  }
  __syncthreads();
  if (border.order != 0) {
    sum_blocks(row, border, weight_min, scratch.sums);
  }
  const int32_t drawn = draw(row, border, weight_min, settings.uniform, scratch.sums);
  if (threadIdx.x == 0) {
    args.ids[t] = drawn;
  }
}

}  // namespace

int64_t triax_cuda_argmax_scratch_bytes(int64_t rows, int64_t vocab) {
  return rows * cuda::blocks_for(vocab, kPart) * static_cast<int64_t>(sizeof(Part));
}

int triax_cuda_argmax(const ArgmaxCuda* args, void* stream) {
  if (args->rows > kRowsMax) {
    return cudaErrorNotSupported;
  }
  if (args->rows > 0) {
    const auto rows = static_cast<unsigned>(args->rows);
    const auto parts = static_cast<unsigned>(cuda::blocks_for(args->vocab, kPart));
    argmax_parts<<<dim3(parts, rows), kPartThreads, 0, static_cast<cudaStream_t>(stream)>>>(*args);
    argmax_join<<<rows, kJoinThreads, 0, static_cast<cudaStream_t>(stream)>>>(*args);
  }
  return cudaGetLastError();
}

int triax_cuda_logprobs(const LogprobsCuda* args, void* stream) {
  constexpr int kLogprobThreads = 128;
  const int64_t entries = args->rows * args->count;
  if (entries > 0) {
    logprob_rows<<<static_cast<unsigned>(cuda::blocks_for(entries, kLogprobThreads)),
                   kLogprobThreads, 0, static_cast<cudaStream_t>(stream)>>>(*args);
  }
  return cudaGetLastError();
}

int64_t triax_cuda_sample_scratch_bytes(int64_t rows, int64_t vocab) {
  return rows * (vocab + cuda::blocks_for(vocab, kBlock)) * static_cast<int64_t>(sizeof(double));
}

int triax_cuda_sample(const SampleCuda* args, void* stream) {
  if (args->vocab > kSampleVocabMax || args->rows > kRowsMax) {
    return cudaErrorNotSupported;
  }
  if (args->rows > 0) {
    const auto rows = static_cast<unsigned>(args->rows);
    const auto blocks = static_cast<unsigned>(cuda::blocks_for(args->vocab, kBlock));
    weigh_tokens<<<dim3(blocks, rows), kBlock, 0, static_cast<cudaStream_t>(stream)>>>(*args);
    sample_rows<<<rows, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(*args);
  }
  return cudaGetLastError();
}

}  // namespace triax::dense
