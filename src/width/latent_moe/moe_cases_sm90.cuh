// Random MXFP4 experts on the GPU and their product in double on the host: what the tests and
// benches of moe_*_sm90 share.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "testing/gpu.h"
#include "width/latent_moe/latent_moe_cuda.h"
#include "width/latent_moe/moe_decode_sm90.h"

namespace triax::width::sm90_cases {

using triax::testing::gpu_check;
using triax::testing::GpuArray;

/// Every byte a hash of its place; scales around 2^-6 (narrow) or over 2^-25 .. 2^11 (wide).
static __global__ void fill_random_bytes(uint8_t* data, int64_t count, uint64_t seed, int low,
                                         int high) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    uint64_t x = static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15ull + seed;
    x = (x ^ (x >> 31)) * 0xBF58476D1CE4E5B9ull;
    x ^= x >> 29;
    data[i] = static_cast<uint8_t>(low + static_cast<int>((x >> 11) % (high - low + 1)));
  }
}

inline double e2m1(int nibble) {
  constexpr double kValues[8] = {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0};
  return (nibble & 8) != 0 ? -kValues[nibble & 7] : kValues[nibble & 7];
}

/// `count` matrices [rows, cols], each with its scales.
struct Matrices {
  int64_t count, rows, cols;
  GpuArray<uint8_t> data;
  GpuArray<uint8_t> scales;
  GpuArray<const uint8_t*> data_pointers;
  GpuArray<const uint8_t*> scale_pointers;

  Matrices(int64_t count_, int64_t rows_, int64_t cols_, uint64_t seed, int scale_low = 119,
           int scale_high = 123)
      : count(count_),
        rows(rows_),
        cols(cols_),
        data(static_cast<size_t>(count * rows * cols / 2)),
        scales(static_cast<size_t>(count * rows * cols / 32)),
        data_pointers(static_cast<size_t>(count)),
        scale_pointers(static_cast<size_t>(count)) {
    fill_random_bytes<<<2048, 256>>>(data.data(), count * rows * cols / 2, seed, 0, 255);
    fill_random_bytes<<<2048, 256>>>(scales.data(), count * rows * cols / 32, seed + 1, scale_low,
                                     scale_high);
    gpu_check(cudaDeviceSynchronize(), "fill");
    std::vector<const uint8_t*> d;
    std::vector<const uint8_t*> s;
    for (int64_t e = 0; e < count; ++e) {
      d.push_back(data.data() + e * rows * cols / 2);
      s.push_back(scales.data() + e * rows * cols / 32);
    }
    data_pointers.set(d);
    scale_pointers.set(s);
  }
};

/// Packed matrices on the host, unpacked on demand.
struct HostMatrices {
  int64_t rows, cols;
  std::vector<uint8_t> data;
  std::vector<uint8_t> scales;

  explicit HostMatrices(const Matrices& m)
      : rows(m.rows), cols(m.cols), data(m.data.get()), scales(m.scales.get()) {}

  // W_e x
  std::vector<double> multiply(int64_t e, const std::vector<double>& x) const {
    std::vector<double> y(static_cast<size_t>(rows));
    for (int64_t r = 0; r < rows; ++r) {
      double sum = 0.0;
      for (int64_t b = 0; b < cols / 32; ++b) {
        const int64_t row = e * rows + r;
        double block = 0.0;
        for (int64_t c = 0; c < 32; ++c) {
          const int byte = data[static_cast<size_t>((row * cols + b * 32 + c) / 2)];
          block += e2m1(c % 2 == 0 ? byte & 15 : byte >> 4) * x[static_cast<size_t>(b * 32 + c)];
        }
        sum += block * std::ldexp(1.0, scales[static_cast<size_t>(row * (cols / 32) + b)] - 127);
      }
      y[static_cast<size_t>(r)] = sum;
    }
    return y;
  }
};

inline double activate_double(const Activation& a, double gate, double up) {
  const double sigmoid = 1.0 / (1.0 + std::exp(-gate));
  return a.kind == Activation::Kind::kSilu ? gate * sigmoid * up
                                           : a.beta * std::tanh(gate / a.beta) * sigmoid *
                                                 a.linear_beta * std::tanh(up / a.linear_beta);
}

struct Experts {
  Matrices gate, up, down;

  Experts(int64_t experts, int64_t width, int64_t hidden, uint64_t seed, int scale_low = 119,
          int scale_high = 123)
      : gate(experts, hidden, width, seed, scale_low, scale_high),
        up(experts, hidden, width, seed + 10, scale_low, scale_high),
        down(experts, width, hidden, seed + 20, scale_low, scale_high) {}

  MoeExpertsSm90 view() const {
    return {gate.data_pointers.data(),
            gate.scale_pointers.data(),
            up.data_pointers.data(),
            up.scale_pointers.data(),
            down.data_pointers.data(),
            down.scale_pointers.data(),
            gate.count,
            gate.cols,
            gate.rows};
  }
};

/// `routes` distinct experts of each token, in random order; p random in (0, 1).
inline std::vector<int32_t> random_routes(int64_t tokens, int64_t routes, int64_t experts,
                                          uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::vector<int32_t> ids;
  std::vector<int32_t> all(static_cast<size_t>(experts));
  for (size_t e = 0; e < all.size(); ++e) {
    all[e] = static_cast<int32_t>(e);
  }
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t j = 0; j < routes; ++j) {
      const auto other = static_cast<size_t>(j) + rng() % (all.size() - static_cast<size_t>(j));
      std::swap(all[static_cast<size_t>(j)], all[other]);
      ids.push_back(all[static_cast<size_t>(j)]);
    }
  }
  return ids;
}

/// The routes sorted by expert, as triax_cuda_group_experts leaves them; ids all valid.
class HostGroups {
 public:
  HostGroups(const std::vector<int32_t>& ids, int64_t tokens, int64_t routes, int64_t experts)
      : routes_(tokens * routes),
        experts_(experts),
        offsets_(static_cast<size_t>(experts + 1)),
        tokens_(ids.size()),
        rows_(ids.size()) {
    std::vector<int64_t> offsets(static_cast<size_t>(experts + 1));
    for (const int32_t e : ids) {
      offsets[static_cast<size_t>(e) + 1] += 1;
    }
    for (size_t e = 1; e < offsets.size(); ++e) {
      offsets[e] += offsets[e - 1];
    }
    std::vector<int64_t> next = offsets;
    std::vector<int64_t> row_tokens(ids.size());
    std::vector<int64_t> rows(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      rows[i] = next[static_cast<size_t>(ids[i])]++;
      row_tokens[static_cast<size_t>(rows[i])] = static_cast<int64_t>(i) / routes;
    }
    offsets_.set(offsets);
    tokens_.set(row_tokens);
    rows_.set(rows);
  }

  ExpertGroupsCuda view() const {
    return {.routes = routes_,
            .experts = experts_,
            .tile = kGroupTileLarge,
            .offsets = offsets_.data(),
            .tile_offsets = nullptr,
            .tokens = tokens_.data(),
            .rows = rows_.data()};
  }

 private:
  int64_t routes_, experts_;
  GpuArray<int64_t> offsets_, tokens_, rows_;
};

/// The layer in double; ids outside [0, E) count as zero.
inline std::vector<double> moe_double(const Experts& experts, const Activation& activation,
                                      const std::vector<float>& in, const std::vector<int32_t>& ids,
                                      const std::vector<float>& weights, int64_t tokens,
                                      int64_t routes) {
  const HostMatrices gate(experts.gate);
  const HostMatrices up(experts.up);
  const HostMatrices down(experts.down);
  std::vector<double> out;
  for (int64_t t = 0; t < tokens; ++t) {
    const auto row = in.begin() + t * gate.cols;
    const std::vector<double> x(row, row + gate.cols);
    std::vector<double> sum(static_cast<size_t>(gate.cols), 0.0);
    for (int64_t j = 0; j < routes; ++j) {
      const int32_t e = ids[static_cast<size_t>(t * routes + j)];
      if (e < 0 || e >= experts.gate.count) {
        continue;
      }
      std::vector<double> h = gate.multiply(e, x);
      const std::vector<double> u = up.multiply(e, x);
      for (size_t f = 0; f < h.size(); ++f) {
        h[f] = activate_double(activation, h[f], u[f]);
      }
      const std::vector<double> y = down.multiply(e, h);
      for (size_t d = 0; d < y.size(); ++d) {
        sum[d] += static_cast<double>(weights[static_cast<size_t>(t * routes + j)]) * y[d];
      }
    }
    out.insert(out.end(), sum.begin(), sum.end());
  }
  return out;
}

}  // namespace triax::width::sm90_cases
