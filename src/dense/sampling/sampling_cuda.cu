// The largest logit, log-probabilities, and filtered draws. What reads every logit of a row works
// in parts, a block each, whose results a block for each row joins in their order.
#include "dense/sampling/sampling_cuda.h"
#include "dense/sampling/sampling_filters.cuh"
#include "device/cuda/block.cuh"

namespace triax::dense {
namespace {

constexpr int kLanes = 16;  // running sums in a block, as scan_loops.h has it
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

/// A row's place in the scratch memory, blocks being those of kBlock tokens.
struct Scratch {
  double* weights;        // [vocab]
  double* sums;           // [blocks] of kept weights
  Candidates candidates;  // room for [vocab]
  Bins bins;              // [blocks]
  Border* border;

  static __host__ __device__ int64_t words(int64_t vocab) {  // of 8 bytes
    const int64_t blocks = cuda::blocks_for(vocab, kBlock);
    return 3 * vocab + blocks + (kBins + kBins / 2) * blocks + 3;
  }

  __device__ Scratch(const SampleCuda& args, int64_t row) {
    const int64_t vocab = args.vocab;
    const int64_t blocks = cuda::blocks_for(vocab, kBlock);
    weights = static_cast<double*>(args.scratch) + row * words(vocab);
    sums = weights + vocab;
    candidates.weights = sums + blocks;
    bins.masses = reinterpret_cast<Mass*>(candidates.weights + vocab);
    bins.counts = reinterpret_cast<unsigned*>(bins.masses + kBins * blocks);
    candidates.logits = reinterpret_cast<float*>(bins.counts + kBins * blocks);
    candidates.ids = reinterpret_cast<int32_t*>(candidates.logits + vocab);
    candidates.total = reinterpret_cast<Mass*>(weights + words(vocab) - 3);
    candidates.count = reinterpret_cast<int64_t*>(candidates.total + 1);
    border = reinterpret_cast<Border*>(candidates.total + 2);
  }
};

/// Nothing is drawn from such a row: its id stays.
__device__ bool is_decided(const SampleCuda& args, int64_t row) {
  return args.ids[row] < 0 || args.settings[row].temperature == 0.0f;
}

__device__ bool is_filtered(const SampleCuda& args, int64_t row) {
  const SampleSettings& settings = args.settings[row];
  return (settings.top_k > 0 && settings.top_k < args.vocab) || settings.top_p < 1.0f;
}

/// How far a logit lies below the largest, in units of the temperature, as a bin. Whatever the
/// roundings, a larger logit is in no later bin.
__device__ int bin_of(float logit, float largest, float inverse) {
  return static_cast<int>(fminf((largest - logit) * inverse, kBins - 1.0f));
}

/// Weights of kBlock tokens, the sum of those that min_p keeps, and the block's bins.
__global__ void __launch_bounds__(kBlock) weigh_tokens(SampleCuda args) {
  __shared__ double kept[kBlock];
  const int64_t t = blockIdx.y;
  if (is_decided(args, t)) {
    return;
  }
  const float* logits = args.logits + t * args.logits_stride;
  const float largest = logits[args.ids[t]];
  const float temperature = args.settings[t].temperature;
  const double inverse = 1.0 / static_cast<double>(temperature);
  const Scratch scratch(args, t);
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  double weight = 0.0;
  int bin = -1;
  if (i < args.vocab) {
    weight = exponential((static_cast<double>(logits[i]) - static_cast<double>(largest)) * inverse);
    scratch.weights[i] = weight;
    bin = bin_of(logits[i], largest, 1.0f / temperature);
  }
  if (is_filtered(args, t)) {
    fill_bins(bin, mass_of(weight), scratch.bins);
    return;  // the sums wait for the border
  }
  kept[threadIdx.x] = weight >= static_cast<double>(args.settings[t].min_p) ? weight : 0.0;
  __syncthreads();
  const double sum = sum_in_order(kept);
  if (threadIdx.x == 0) {
    scratch.sums[blockIdx.x] = sum;
  }
}

/// What the filters may keep: the tokens of the first bins.
__global__ void __launch_bounds__(kBlock) gather_candidates(SampleCuda args) {
  const int64_t t = blockIdx.y;
  if (is_decided(args, t) || !is_filtered(args, t)) {
    return;
  }
  const Scratch scratch(args, t);
  const SampleSettings settings = args.settings[t];
  const int32_t top_k = settings.top_k > 0 && settings.top_k < args.vocab ? settings.top_k : 0;
  const float* logits = args.logits + t * args.logits_stride;
  const float largest = logits[args.ids[t]];
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  const bool inside = i < args.vocab;
  const int bin = inside ? bin_of(logits[i], largest, 1.0f / settings.temperature) : kBins;
  const int64_t place =
      place_candidate(bin, top_k, settings.top_p, scratch.bins, scratch.candidates);
  if (place >= 0) {
    scratch.candidates.logits[place] = logits[i];
    scratch.candidates.weights[place] = scratch.weights[i];
    scratch.candidates.ids[place] = static_cast<int32_t>(i);
  }
}

/// The last token that top_k and top_p keep: a block a row.
__global__ void __launch_bounds__(kThreads) find_border(SampleCuda args) {
  const int64_t t = blockIdx.x;
  if (is_decided(args, t) || !is_filtered(args, t)) {
    return;
  }
  const Scratch scratch(args, t);
  const Candidates& of = scratch.candidates;
  const SampleSettings settings = args.settings[t];
  const Row row = {of.logits, of.weights, *of.count};
  Border border = keeps_all();
  Mass total = *of.total;
  if (settings.top_k > 0 && settings.top_k < args.vocab) {
    border = keep_top_k(row, settings.top_k);
    total = settings.top_p < 1.0f ? mass_within(row, border) : 0;
  }
  if (settings.top_p < 1.0f) {
    border = keep_top_p(row, border, settings.top_p, total);
  }
  if (threadIdx.x == 0) {
    *scratch.border = {border.order, of.ids[border.id]};
  }
}

/// The sums of what is kept, a block of kBlock tokens each.
__global__ void __launch_bounds__(kBlock) sum_kept(SampleCuda args) {
  __shared__ double kept[kBlock];
  const int64_t t = blockIdx.y;
  if (is_decided(args, t) || !is_filtered(args, t)) {
    return;
  }
  const Scratch scratch(args, t);
  const Row row = {args.logits + t * args.logits_stride, scratch.weights, args.vocab};
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  const auto weight_min = static_cast<double>(args.settings[t].min_p);
  kept[threadIdx.x] = i < args.vocab ? kept_weight(row, *scratch.border, weight_min, i) : 0.0;
  __syncthreads();
  const double sum = sum_in_order(kept);
  if (threadIdx.x == 0) {
    scratch.sums[blockIdx.x] = sum;
  }
}

__global__ void __launch_bounds__(kThreads) draw_tokens(SampleCuda args) {
  const int64_t t = blockIdx.x;
  if (is_decided(args, t)) {
    return;
  }
  const SampleSettings settings = args.settings[t];
  const Scratch scratch(args, t);
  const Row row = {args.logits + t * args.logits_stride, scratch.weights, args.vocab};
  const Border border = is_filtered(args, t) ? *scratch.border : keeps_all();
  const int32_t drawn =
      draw(row, border, static_cast<double>(settings.min_p), settings.uniform, scratch.sums);
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
  return rows * Scratch::words(vocab) * static_cast<int64_t>(sizeof(double));
}

int triax_cuda_sample(const SampleCuda* args, void* stream) {
  if (args->vocab > kSampleVocabMax || args->rows > kRowsMax) {
    return cudaErrorNotSupported;
  }
  if (args->rows > 0) {
    const auto queue = static_cast<cudaStream_t>(stream);
    const auto rows = static_cast<unsigned>(args->rows);
    const dim3 grid(static_cast<unsigned>(cuda::blocks_for(args->vocab, kBlock)), rows);
    weigh_tokens<<<grid, kBlock, 0, queue>>>(*args);
    if (args->filtered) {
      gather_candidates<<<grid, kBlock, 0, queue>>>(*args);
      find_border<<<rows, kThreads, 0, queue>>>(*args);
      sum_kept<<<grid, kBlock, 0, queue>>>(*args);
    }
    draw_tokens<<<rows, kThreads, 0, queue>>>(*args);
  }
  return cudaGetLastError();
}

}  // namespace triax::dense
