// The filters of a draw. They leave a prefix of the order (descending logit, ascending id); its
// border is found digit by digit of the logit's bits, with integer masses, so that no sum depends
// on the order of threads. All tokens are sorted into bins by their logit first, many blocks for a
// row; only those of the bins that the prefix reaches into are looked at further.
#pragma once

#include <cstdint>

#include "device/cuda/block.cuh"

namespace triax::dense {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / cuda::kWarp;
constexpr int kBlock = 1024;  // weights summed together, as scan.h has it
constexpr int kBins = 64;

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

/// The mass of what `within` keeps.
__device__ Mass mass_within(const Row& row, const Border& within) {
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
  const Mass result = total;
  __syncthreads();
  return result;
}

/// The least mass that reaches top_p of `total`.
__device__ Mass mass_of_top_p(float top_p, Mass total) {
  const double share = ceil(static_cast<double>(top_p) * static_cast<double>(total));
  return max(Mass{1}, min(total, static_cast<Mass>(share)));
}

/// The shortest prefix of what `within` keeps whose mass reaches top_p of `total`.
__device__ Border keep_top_p(const Row& row, const Border& within, float top_p, Mass total) {
  const Mass target = mass_of_top_p(top_p, total);
  Mass before;
  const uint32_t order = find_order(row, within, false, target, &before);
  // Tokens of one order weigh the same.
  const int32_t first = find_equal(row, order, 1);
  const Mass each = max(Mass{1}, mass_of(row.weights[first]));
  const int32_t last = find_equal(row, order, (target - before + each - 1) / each);
  return {order, order == within.order ? min(last, within.id) : last};
}

/// Mass and number of tokens by bin, of each block of kBlock tokens.
struct Bins {
  Mass* masses;      // [blocks, kBins]
  unsigned* counts;  // [blocks, kBins]
};

/// Tokens of a row that a filter may keep, by ascending id.
struct Candidates {
  float* logits;
  double* weights;
  int32_t* ids;
  int64_t* count;
  Mass* total;  // of the whole row
};

/// The block's bins, from each thread's token; bin -1: none.
__device__ void fill_bins(int bin, Mass mass, const Bins& bins) {
  __shared__ Mass masses[kBins];
  __shared__ unsigned counts[kBins];
  if (threadIdx.x < kBins) {
    masses[threadIdx.x] = 0;
    counts[threadIdx.x] = 0;
  }
  __syncthreads();
  add_mass(masses, bin < 0 ? kNoDigit : static_cast<unsigned>(bin), bin < 0 ? 0 : mass);
  const unsigned equal = __match_any_sync(0xffffffffU, bin);
  if (bin >= 0 && (equal & ((1U << (threadIdx.x % cuda::kWarp)) - 1U)) == 0U) {
    atomicAdd(&counts[bin], static_cast<unsigned>(__popc(equal)));
  }
  __syncthreads();
  if (threadIdx.x < kBins) {
    bins.masses[blockIdx.x * kBins + threadIdx.x] = masses[threadIdx.x];
    bins.counts[blockIdx.x * kBins + threadIdx.x] = counts[threadIdx.x];
  }
}

/// The last bin that the prefix reaches into: of top_k tokens, or without (0) of top_p's mass.
__device__ int last_bin(const Mass (&masses)[kBins], const unsigned (&counts)[kBins], Mass total,
                        int32_t top_k, float top_p) {
  const Mass target = top_k > 0 ? static_cast<Mass>(top_k) : mass_of_top_p(top_p, total);
  Mass passed = 0;
  int bin = 0;
  for (; bin < kBins - 1; ++bin) {
    passed += top_k > 0 ? counts[bin] : masses[bin];
    if (passed >= target) {
      break;
    }
  }
  return bin;
}

/// Where the thread's token, of this bin, lies among the row's candidates; -1: it is none. kBlock
/// threads call; blocks lie in the order of ids. The last one leaves count and total.
__device__ int64_t place_candidate(int bin, int32_t top_k, float top_p, const Bins& bins,
                                   const Candidates& candidates) {
  __shared__ Mass masses[kBins];
  __shared__ unsigned counts[kBins];
  __shared__ unsigned before;  // candidates of earlier blocks
  __shared__ int last;
  __shared__ Mass total;
  __shared__ int of_warp[kWarps];
  if (threadIdx.x < kBins) {
    masses[threadIdx.x] = 0;
    counts[threadIdx.x] = 0;
  }
  if (threadIdx.x == 0) {
    before = 0;
  }
  __syncthreads();
  const unsigned own = threadIdx.x % kBins;
  Mass mass = 0;
  unsigned count = 0;
  unsigned earlier = 0;
  for (unsigned block = threadIdx.x / kBins; block < gridDim.x; block += kBlock / kBins) {
    mass += bins.masses[block * kBins + own];
    count += bins.counts[block * kBins + own];
    earlier += block < blockIdx.x ? bins.counts[block * kBins + own] : 0;
  }
  atomicAdd(&masses[own], mass);
  atomicAdd(&counts[own], count);
  __syncthreads();
  if (threadIdx.x == 0) {
    Mass sum = 0;
    for (int i = 0; i < kBins; ++i) {
      sum += masses[i];
    }
    total = sum;
    last = last_bin(masses, counts, sum, top_k, top_p);
  }
  __syncthreads();
  if (static_cast<int>(own) <= last) {
    atomicAdd(&before, earlier);
  }
  const int warp = threadIdx.x / cuda::kWarp;
  const int lane = threadIdx.x % cuda::kWarp;
  const unsigned lanes = __ballot_sync(0xffffffffU, bin <= last);
  if (lane == 0) {
    of_warp[warp] = __popc(lanes);
  }
  __syncthreads();
  int64_t place = before;
  int64_t end = before;
  for (int w = 0; w < kWarps; ++w) {
    place += w < warp ? of_warp[w] : 0;
    end += of_warp[w];
  }
  if (blockIdx.x == gridDim.x - 1 && threadIdx.x == 0) {
    *candidates.count = end;
    *candidates.total = total;
  }
  return bin <= last ? place + __popc(lanes & ((1U << lane) - 1U)) : -1;
}

}  // namespace
}  // namespace triax::dense
