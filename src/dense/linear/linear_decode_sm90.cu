// Products with few rows: every block takes an even share of the matrix's rows, its warps read 32
// rows at a time straight into registers, two steps of loads ahead of the products.
//
// Eight warps share 16 rows and cut the columns; two such teams work side by side. The inputs lie
// in shared memory as two bf16 planes a token; products run on tensor cores, weight rows by planes.
#include <cuda_runtime.h>

#include <algorithm>

#include "dense/linear/linear_decode_sm90.h"
#include "dense/linear/linear_mxfp4_sm90.cuh"

namespace triax::dense {
namespace {

using namespace sm90;

constexpr int kThreads = 512;
constexpr int kSlices = 8;
constexpr int kTeamRows = 16;
constexpr int kRoundRows = kThreads / 32 / kSlices * kTeamRows;
constexpr int kTokensMax = static_cast<int>(kLinearDecodeTokensMax);
constexpr int kSums = kThreads / 32 * kTeamRows * kTokensMax;  // floats of one round
constexpr int kSharedMax = 232448;

// Rows of planes 64 bytes off a multiple of 128: two of them meet no bank twice.
__host__ __device__ constexpr int plane_bytes(int cols) { return cols * 2 + 64; }

__device__ __forceinline__ uint4 stream16(const void* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

__device__ __forceinline__ uint4 plane16(const unsigned char* from) {
  return *reinterpret_cast<const uint4*>(from);
}

// Where a lane reads: its two rows of weights and scales, its plane of inputs.
struct Lane {
  const unsigned char* upper;
  const unsigned char* lower;
  const unsigned char* upper_scales;
  const unsigned char* lower_scales;
};

// One step of a warp's loads and what becomes of them, for each format. kGroups of 128 columns.
template <MatrixFormat kFormat>
struct Step;

template <>
struct Step<MatrixFormat::kBf16> {
  static constexpr int kGroups = 1;
  uint4 upper[4], lower[4];

  __device__ __forceinline__ void load(const Lane& lane, int group, int) {
    const int at = group * 256 + threadIdx.x % 4 * 16;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      upper[i] = stream16(lane.upper + at + i * 64);
      lower[i] = stream16(lane.lower + at + i * 64);
    }
  }

  __device__ __forceinline__ void multiply(const unsigned char* tokens, int group, int,
                                           float (&sum)[4]) const {
    const unsigned char* at = tokens + group * 256 + threadIdx.x % 4 * 16;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 b = plane16(at + i * 64);
      mma_bf16(sum, upper[i].x, lower[i].x, upper[i].y, lower[i].y, b.x, b.y);
      mma_bf16(sum, upper[i].z, lower[i].z, upper[i].w, lower[i].w, b.z, b.w);
    }
  }
};

// Bytes 2 h and 2 h + 1 of a word of int8 as two bf16. With u = v's lower seven bits and s its
// sign, v = (128 + u) - (128 + 128 s), and both terms are a byte below 0x43.
template <int kHalf>
__device__ __forceinline__ uint32_t unpack_int8(uint32_t word) {
  const uint32_t bytes = __byte_perm(word, 0x43434343u, kHalf == 0 ? 0x4140 : 0x4342);
  const uint32_t value = bytes & 0xFF7FFF7Fu;
  const uint32_t offset = bytes & 0xFF80FF80u;
  uint32_t pair;
  asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(pair) : "r"(value), "r"(offset));
  return pair;
}

// A lane loads 16 columns of one block of 32; four lanes hold two blocks. Lanes two apart exchange
// halves, so that each has 8 columns of both: pieces 0, 2, 1, 3 of a block lie in lanes 0 to 3.
__device__ __forceinline__ void exchange_halves(const uint4& v, uint2& even, uint2& odd) {
  const bool low = threadIdx.x % 4 < 2;
  const uint32_t x = __shfl_xor_sync(~0u, low ? v.z : v.x, 2);
  const uint32_t y = __shfl_xor_sync(~0u, low ? v.w : v.y, 2);
  even = low ? make_uint2(v.x, v.y) : make_uint2(x, y);
  odd = low ? make_uint2(x, y) : make_uint2(v.z, v.w);
}

// sum += one block of 32 columns: an exact sum of integers times inputs, then the scale.
__device__ __forceinline__ void multiply_block(const uint2& u, const uint2& l, uint32_t us,
                                               uint32_t ls, const unsigned char* tokens,
                                               float (&sum)[4]) {
  const uint4 b = plane16(tokens);
  float c[4] = {};
  mma_bf16(c, unpack_int8<0>(u.x), unpack_int8<0>(l.x), unpack_int8<1>(u.x), unpack_int8<1>(l.x),
           b.x, b.y);
  mma_bf16(c, unpack_int8<0>(u.y), unpack_int8<0>(l.y), unpack_int8<1>(u.y), unpack_int8<1>(l.y),
           b.z, b.w);
  const float upper = __uint_as_float(us << 16);
  const float lower = __uint_as_float(ls << 16);
  sum[0] += upper * c[0];
  sum[1] += upper * c[1];
  sum[2] += lower * c[2];
  sum[3] += lower * c[3];
}

template <>
struct Step<MatrixFormat::kInt8> {
  static constexpr int kGroups = 2;
  uint4 upper[kGroups][2], lower[kGroups][2];
  uint32_t upper_scale[kGroups], lower_scale[kGroups];  // of the block that lane % 4 names

  __device__ __forceinline__ void load(const Lane& lane, int group, int end) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      const int g = min(group + n, end - 1);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        upper[n][i] = stream16(lane.upper + g * 128 + i * 64 + t * 16);
        lower[n][i] = stream16(lane.lower + g * 128 + i * 64 + t * 16);
      }
      upper_scale[n] = reinterpret_cast<const uint16_t*>(lane.upper_scales)[g * 4 + t];
      lower_scale[n] = reinterpret_cast<const uint16_t*>(lane.lower_scales)[g * 4 + t];
    }
  }

  __device__ __forceinline__ void multiply(const unsigned char* tokens, int group, int end,
                                           float (&sum)[4]) const {
    const int lane = threadIdx.x % 32;
    const int piece = lane % 4 == 1 ? 2 : lane % 4 == 2 ? 1 : lane % 4;
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      if (group + n < end) {
        const unsigned char* at = tokens + (group + n) * 256 + piece * 16;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          uint2 u[2];
          uint2 l[2];
          exchange_halves(upper[n][i], u[0], u[1]);
          exchange_halves(lower[n][i], l[0], l[1]);
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const int block = 2 * i + h;
            const uint32_t us = __shfl_sync(~0u, upper_scale[n], lane / 4 * 4 + block);
            const uint32_t ls = __shfl_sync(~0u, lower_scale[n], lane / 4 * 4 + block);
            multiply_block(u[h], l[h], us, ls, at + block * 64, sum);
          }
        }
      }
    }
  }
};

template <>
struct Step<MatrixFormat::kMxfp4> {
  static constexpr int kGroups = 4;
  uint4 upper[kGroups], lower[kGroups];
  uint32_t upper_scale[kGroups], lower_scale[kGroups];

  __device__ __forceinline__ void load(const Lane& lane, int group, int end) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      const int g = min(group + n, end - 1);
      upper[n] = stream16(lane.upper + g * 64 + t * 16);
      lower[n] = stream16(lane.lower + g * 64 + t * 16);
      upper_scale[n] = lane.upper_scales[g * 4 + t];
      lower_scale[n] = lane.lower_scales[g * 4 + t];
    }
  }

  __device__ __forceinline__ void multiply(const unsigned char* tokens, int group, int end,
                                           float (&sum)[4]) const {
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      if (group + n < end) {
        const uint32_t us = mxfp4_multiplier(upper_scale[n]);
        const uint32_t ls = mxfp4_multiplier(lower_scale[n]);
        const uint32_t u[4] = {upper[n].x, upper[n].y, upper[n].z, upper[n].w};
        const uint32_t l[4] = {lower[n].x, lower[n].y, lower[n].z, lower[n].w};
        const unsigned char* at = tokens + (group + n) * 256 + threadIdx.x % 4 * 16;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint4 b = plane16(at + i * 64);
          uint32_t a[4];
          unpack_mxfp4_half<0>(u[i], us, a[0], a[2]);
          unpack_mxfp4_half<0>(l[i], ls, a[1], a[3]);
          mma_bf16(sum, a[0], a[1], a[2], a[3], b.x, b.y);
          unpack_mxfp4_half<1>(u[i], us, a[0], a[2]);
          unpack_mxfp4_half<1>(l[i], ls, a[1], a[3]);
          mma_bf16(sum, a[0], a[1], a[2], a[3], b.z, b.w);
        }
      }
    }
  }
};

// The inputs as two bf16 planes a token, columns as the format's products take them.
template <MatrixFormat kFormat>
__device__ void load_tokens(const LinearDecodeSm90& p, unsigned char* planes) {
  const int cols = static_cast<int>(p.weight.cols);
  const int octets = cols / 8;
#pragma unroll 2
  for (int i = threadIdx.x; i < static_cast<int>(p.tokens) * octets; i += kThreads) {
    const int token = i / octets;
    const int octet = i - token * octets;
    const auto* from = reinterpret_cast<const float4*>(p.in + token * p.in_stride) + 2 * octet;
    const float4 a = from[0];
    const float4 b = from[1];
    const float high[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    float low[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      low[j] = high[j] - __bfloat162float(__float2bfloat16_rn(high[j]));
    }
    unsigned char* to = planes + 2 * token * plane_bytes(cols);
    if constexpr (kFormat == MatrixFormat::kMxfp4) {
      to += octet / 16 * 256 + octet_position(octet % 16) * 16;
      *reinterpret_cast<uint4*>(to) = permuted_octet(high);
      *reinterpret_cast<uint4*>(to + plane_bytes(cols)) = permuted_octet(low);
    } else {
      to += octet * 16;
      *reinterpret_cast<uint4*>(to) = octet_of(high);
      *reinterpret_cast<uint4*>(to + plane_bytes(cols)) = octet_of(low);
    }
  }
}

// Adds the slices of a finished round, ascending, and stores.
template <MatrixFormat kFormat>
__device__ __forceinline__ void store_round(const LinearDecodeSm90& p, const float* sums, int base,
                                            int end) {
  const int thread = threadIdx.x;
  if (thread >= kRoundRows * kTokensMax) {
    return;
  }
  const int row = thread % kTeamRows;
  const int token = thread / kTeamRows % kTokensMax;
  const int team = thread / (kTeamRows * kTokensMax);
  float total = 0.0f;
#pragma unroll
  for (int s = 0; s < kSlices; ++s) {
    total += sums[((team * kSlices + s) * kTokensMax + token) * kTeamRows + row];
  }
  if constexpr (kFormat == MatrixFormat::kMxfp4) {
    total *= static_cast<float>(1ull << -kWeightExponent);
  }
  const int at = base + team * kTeamRows + row;
  if (at < end && token < p.tokens) {
    p.out[token * p.out_stride + at] = total;
  }
}

template <MatrixFormat kFormat>
__device__ constexpr int64_t row_bytes(int64_t cols) {
  return kFormat == MatrixFormat::kBf16   ? 2 * cols
         : kFormat == MatrixFormat::kInt8 ? cols
                                          : cols / 2;
}
template <MatrixFormat kFormat>
__device__ constexpr int64_t scale_row_bytes(int64_t cols) {
  return kFormat == MatrixFormat::kInt8 ? cols / 16 : cols / 32;
}

// Where a warp stands: rows from `base`, columns from group `group`.
struct Place {
  int base, group;
};

__device__ __forceinline__ Lane lane_of(const LinearDecodeSm90& p, int base, int end, int64_t bytes,
                                        int64_t scale_bytes) {
  const int row = base + threadIdx.x / 32 / kSlices * kTeamRows + threadIdx.x % 32 / 4;
  const int64_t upper = min(row, end - 1);  // rows past the end repeat the last
  const int64_t lower = min(row + 8, end - 1);
  const auto* data = static_cast<const unsigned char*>(p.weight.data);
  const auto* scales = static_cast<const unsigned char*>(p.weight.scales);
  return {data + upper * bytes, data + lower * bytes, scales + upper * scale_bytes,
          scales + lower * scale_bytes};
}

template <MatrixFormat kFormat>
__global__ void __launch_bounds__(kThreads, 1)
    linear_decode_sm90(const __grid_constant__ LinearDecodeSm90 p) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto* sums = reinterpret_cast<float*>(memory);  // [2][warps][kTokensMax][kTeamRows]
  unsigned char* planes = memory + 2 * kSums * 4;
  const int rows = static_cast<int>(p.weight.rows);
  const int cols = static_cast<int>(p.weight.cols);
  const int first = static_cast<int>(static_cast<int64_t>(rows) * blockIdx.x / gridDim.x);
  const int end = static_cast<int>(static_cast<int64_t>(rows) * (blockIdx.x + 1) / gridDim.x);
  if (first == end) {
    return;
  }
  const int g = threadIdx.x % 32 / 4;
  const int t = threadIdx.x % 4;
  const int warp = threadIdx.x / 32;
  const int slice = warp % kSlices;
  const int groups = cols / kGroupColumns;
  const int begin_group = groups * slice / kSlices;
  const int end_group = groups * (slice + 1) / kSlices;
  const unsigned char* tokens =
      planes + min(g, 2 * static_cast<int>(p.tokens) - 1) * plane_bytes(cols);

  Step<kFormat> step[2];
  Place ahead{first, begin_group};
  Lane lane = lane_of(p, first, end, row_bytes<kFormat>(cols), scale_row_bytes<kFormat>(cols));
  const auto load = [&](Step<kFormat>& to) {
    if (ahead.base >= end || begin_group == end_group) {
      return;
    }
    to.load(lane, ahead.group, end_group);
    ahead.group += Step<kFormat>::kGroups;
    if (ahead.group >= end_group) {
      ahead = {ahead.base + kRoundRows, begin_group};
      lane = lane_of(p, ahead.base, end, row_bytes<kFormat>(cols), scale_row_bytes<kFormat>(cols));
    }
  };
  load(step[0]);
  load(step[1]);
  load_tokens<kFormat>(p, planes);
  __syncthreads();

  Place now{first, begin_group};
  float sum[4] = {};
  int buffer = 0;
  const auto finish = [&] {
    float* to = sums + buffer * kSums + (warp * kTokensMax + t) * kTeamRows + g;
    to[0] = sum[0] + sum[1];
    to[8] = sum[2] + sum[3];
    sum[0] = sum[1] = sum[2] = sum[3] = 0.0f;
    __syncthreads();
    store_round<kFormat>(p, sums + buffer * kSums, now.base, end);
    buffer ^= 1;
    now = {now.base + kRoundRows, begin_group};
  };
  const auto multiply = [&](const Step<kFormat>& from) {
    if (begin_group < end_group) {
      from.multiply(tokens, now.group, end_group, sum);
    }
    now.group += Step<kFormat>::kGroups;
    if (now.group >= end_group) {
      finish();
    }
  };
  while (true) {
    multiply(step[0]);
    load(step[0]);
    if (now.base >= end) {
      break;
    }
    multiply(step[1]);
    load(step[1]);
    if (now.base >= end) {
      break;
    }
  }
}

int shared_bytes(int64_t tokens, int64_t cols) {
  return 2 * kSums * 4 + 2 * static_cast<int>(tokens) * plane_bytes(static_cast<int>(cols));
}

template <MatrixFormat kFormat>
cudaError_t launch(const LinearDecodeSm90& args, cudaStream_t stream) {
  const int bytes = shared_bytes(args.tokens, args.weight.cols);
  cudaError_t error = cudaFuncSetAttribute(linear_decode_sm90<kFormat>,
                                           cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  int device = 0;
  int processors = 0;
  if (error == cudaSuccess) {
    error = cudaGetDevice(&device);
  }
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  }
  if (error != cudaSuccess) {
    return error;
  }
  linear_decode_sm90<kFormat><<<static_cast<unsigned>(processors), kThreads, bytes, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace

bool linear_decode_sm90_supports(const MatrixView& weight, int64_t tokens) {
  const bool known = weight.format == MatrixFormat::kBf16 || weight.format == MatrixFormat::kInt8 ||
                     weight.format == MatrixFormat::kMxfp4;
  return known && weight.rows >= 0 && weight.rows < 1 << 30 && weight.cols > 0 &&
         weight.cols % kGroupColumns == 0 && tokens >= 0 && tokens <= kLinearDecodeTokensMax &&
         weight.cols < 1 << 17 && shared_bytes(tokens, weight.cols) <= kSharedMax;
}

extern "C" int triax_cuda_linear_decode_sm90(const LinearDecodeSm90* args, void* stream) {
  if (!linear_decode_sm90_supports(args->weight, args->tokens)) {
    return cudaErrorNotSupported;
  }
  if (args->tokens == 0 || args->weight.rows == 0) {
    return cudaSuccess;
  }
  auto* queue = static_cast<cudaStream_t>(stream);
  switch (args->weight.format) {
    case MatrixFormat::kBf16:
      return launch<MatrixFormat::kBf16>(*args, queue);
    case MatrixFormat::kInt8:
      return launch<MatrixFormat::kInt8>(*args, queue);
    default:
      return launch<MatrixFormat::kMxfp4>(*args, queue);
  }
}

}  // namespace triax::dense
