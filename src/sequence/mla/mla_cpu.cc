// The inner loops of MLA in plain C++.
#include <algorithm>
#include <bit>
#include <cmath>

#include "sequence/mla/mla_kernels.h"
#include "tensor/matrix.h"

namespace triax::sequence {
namespace {

/// 2^x for x <= 0, about 1 ulp; below 2^-126 it is 0.
inline float exp2_negative(float x) {
  if (x < -126.0f) {
    return 0.0f;
  }
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: the sum has no fraction bits left
  const float n = (x + kRound) - kRound;
  const float r = x - n;
  // Taylor terms ln(2)^k / k!; the remainder on [-1/2, 1/2] is below 6e-9.
  float y = 1.5252733804059841e-5f;
  y = y * r + 1.5403530393381610e-4f;
  y = y * r + 1.3333558146428443e-3f;
  y = y * r + 9.6181291076284772e-3f;
  y = y * r + 5.5504108664821580e-2f;
  y = y * r + 2.4022650695910072e-1f;
  y = y * r + 6.9314718055994531e-1f;
  y = y * r + 1.0f;
  return y * std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);
}

template <int64_t kWidth>
void scores_of(const MlaScores& tile) {
  for (int64_t j = 0; j < tile.rows; ++j) {
    float sum[kWidth] = {};
    const float* b = tile.b0 + j * tile.stride0;
    const float* a = tile.a;
    for (int64_t k = 0; k < tile.depth0; ++k, a += kWidth) {
      for (int64_t w = 0; w < kWidth; ++w) {
        sum[w] += a[w] * b[k];
      }
    }
    b = tile.b1 + j * tile.stride1;
    for (int64_t k = 0; k < tile.depth1; ++k, a += kWidth) {
      for (int64_t w = 0; w < kWidth; ++w) {
        sum[w] += a[w] * b[k];
      }
    }
    std::copy(sum, sum + kWidth, tile.s + j * kWidth);
  }
}

void scores(const MlaScores& tile) {
  tile.groups == 2 ? scores_of<2 * kMlaLanes>(tile) : scores_of<kMlaLanes>(tile);
}

template <int64_t kWidth>
void softmax_of(const MlaSoftmax& tile) {
  const auto visible = [&](int64_t j, int64_t w) {
    return tile.visible == nullptr || static_cast<float>(j) < tile.visible[w];
  };
  float max[kWidth];
  std::copy(tile.max, tile.max + kWidth, max);
  for (int64_t j = 0; j < tile.rows; ++j) {
    for (int64_t w = 0; w < kWidth; ++w) {
      max[w] = visible(j, w) ? std::max(max[w], tile.s[j * kWidth + w]) : max[w];
    }
  }
  for (int64_t w = 0; w < kWidth; ++w) {
    tile.alpha[w] = exp2_negative(tile.max[w] - max[w]);
    tile.max[w] = max[w];
    tile.sum[w] *= tile.alpha[w];
  }
  for (int64_t j = 0; j < tile.rows; ++j) {
    for (int64_t w = 0; w < kWidth; ++w) {
      float& s = tile.s[j * kWidth + w];
      s = visible(j, w) ? exp2_negative(s - max[w]) : 0.0f;
      tile.sum[w] += s;
    }
  }
}

void softmax(const MlaSoftmax& tile) {
  tile.groups == 2 ? softmax_of<2 * kMlaLanes>(tile) : softmax_of<kMlaLanes>(tile);
}

void weighted_sum(const MlaWeightedSum& tile) {
  const int64_t width = tile.groups * kMlaLanes;
  for (int64_t w = 0; w < tile.lanes; ++w) {
    float* acc = tile.acc + w * tile.acc_stride;
    for (int64_t c = 0; c < tile.cols; ++c) {
      acc[c] *= tile.alpha[w];
    }
    for (int64_t j = 0; j < tile.rows; ++j) {
      const float p = tile.p[j * width + w];
      const float* v = tile.v + j * tile.v_stride;
      for (int64_t c = 0; c < tile.cols; ++c) {
        acc[c] += p * v[c];
      }
    }
  }
}

void unpack(const MlaPackedRows& packed, int64_t stride, float* out) {
  MatrixView view;
  view.format = packed.format;
  view.rows = packed.rows;
  view.cols = packed.cols;
  view.data = packed.data;
  view.scales = packed.scales;
  for (int64_t i = 0; i < packed.rows; ++i) {
    dequantize_row(view, i, out + i * stride);
  }
}

void add_rows(const float* rows, int64_t stride, int64_t count, const float* factor, int64_t cols,
              float* out) {
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t c = 0; c < cols; ++c) {
      out[c] += factor[i] * rows[i * stride + c];
    }
  }
}

void dot_rows(const float* rows, int64_t stride, int64_t count, const float* x, int64_t cols,
              float* out) {
  for (int64_t i = 0; i < count; ++i) {
    float sum[kMlaLanes] = {};
    for (int64_t c = 0; c < cols; c += kMlaLanes) {
      for (int64_t w = 0; w < kMlaLanes; ++w) {
        sum[w] += rows[i * stride + c + w] * x[c + w];
      }
    }
    float total = 0.0f;
    for (float part : sum) {
      total += part;
    }
    out[i] = total;
  }
}

void finish(float factor, const float* gate, int64_t cols, float* x) {
  for (int64_t c = 0; c < cols; ++c) {
    float y = x[c] * factor;
    if (gate != nullptr) {
      const float e = exp2_negative(-std::fabs(gate[c]) * 1.44269504088896340736f);
      y *= (gate[c] < 0.0f ? e : 1.0f) / (1.0f + e);
    }
    x[c] = y;
  }
}

}  // namespace

const MlaKernels& mla_kernels_portable() {
  static constexpr MlaKernels kKernels = {scores,   softmax, weighted_sum, unpack, add_rows,
                                          dot_rows, nullptr, nullptr,      finish};
  return kKernels;
}

}  // namespace triax::sequence
