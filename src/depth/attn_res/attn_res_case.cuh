// Random sources on the GPU with the formulas in double beside them; for tests and benches of
// Attention Residuals.
#pragma once

#include <cmath>
#include <memory>

#include "depth/attn_res/attn_res_sm90.h"
#include "testing/gpu.h"

namespace triax::depth {

using testing::GpuArray;

template <typename T>
__global__ void fill_random(T* p, size_t count, uint64_t seed, float scale) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    uint64_t x = (i + seed * 0x9e3779b97f4a7c15ull) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    x ^= x >> 31;
    // A sum of three uniform numbers, of deviation 1/2 about 3/2.
    const float sum = static_cast<float>((x & 0x1fffff) + ((x >> 21) & 0x1fffff) + (x >> 43)) *
                      (1.0f / 2097152.0f);
    p[i] = T(scale * 2.0f * (sum - 1.5f));
  }
}

/// An array of floats that the GPU holds as kF32 or kBf16; `get` gives what it holds now.
class TypedRows {
 public:
  /// Random values of deviation `scale`.
  TypedRows(size_t count, DType type, uint64_t seed, float scale) : TypedRows(count, type) {
    if (type == DType::kBf16) {
      fill_random<<<1024, 256>>>(bf16_->data(), count, seed, scale);
    } else {
      fill_random<<<1024, 256>>>(f32_->data(), count, seed, scale);
    }
    testing::gpu_check(cudaGetLastError(), "fill");
  }
  /// Poison.
  TypedRows(size_t count, DType type) : type_(type) {
    if (type == DType::kBf16) {
      bf16_ = std::make_unique<GpuArray<__nv_bfloat16>>(count);
    } else {
      f32_ = std::make_unique<GpuArray<float>>(count);
    }
  }
  void* data() const {
    return type_ == DType::kBf16 ? static_cast<void*>(bf16_->data()) : f32_->data();
  }
  std::vector<float> get() const {
    return type_ == DType::kBf16 ? testing::to_floats(bf16_->get()) : f32_->get();
  }
  bool guards_intact() const {
    return type_ == DType::kBf16 ? bf16_->guards_intact() : f32_->guards_intact();
  }

 private:
  DType type_;
  std::unique_ptr<GpuArray<__nv_bfloat16>> bf16_;
  std::unique_ptr<GpuArray<float>> f32_;
};

struct MixCase {
  int64_t tokens = 1;
  int64_t dim = 512;
  int32_t sources = 3;
  int64_t queries = 1;
  DType type = DType::kF32;
  DType out_type = DType::kF32;
  DType acc_type = DType::kF32;
  AttnResForm form = AttnResForm::kAnyTokens;
  bool delta = false;
  bool norm = false;
  float query_scale = 0.05f;  // scores have a deviation of scale sqrt(D)
  int64_t padding = 0;        // of rows
  uint64_t seed = 1;
};

class MixProblem {
 public:
  explicit MixProblem(const MixCase& c)
      : c(c),
        stride(c.dim + c.padding),
        queries(testing::random_floats(static_cast<size_t>(c.queries * c.dim), c.seed + 50,
                                       c.query_scale)),
        norm(testing::random_floats(static_cast<size_t>(c.dim), c.seed + 51, 0.2f, 1.0f)),
        queries_gpu(queries),
        norm_gpu(norm),
        delta(static_cast<size_t>(c.tokens * stride), c.type, c.seed + 52, 1.0f),
        acc(static_cast<size_t>(c.queries * c.tokens * c.dim), c.acc_type),
        max(static_cast<size_t>(c.queries * c.tokens)),
        sum(static_cast<size_t>(c.queries * c.tokens)),
        out(static_cast<size_t>(c.tokens * stride), c.out_type) {
    for (int32_t i = 0; i < c.sources; ++i) {
      const float size = i % 2 == 0 ? 1.0f : 3.0f;
      sources.emplace_back(static_cast<size_t>(c.tokens * stride), c.type,
                           c.seed + 100 + static_cast<uint64_t>(i), size);
    }
  }

  AttnResSourcesCuda views(int32_t from, int32_t to) const {
    AttnResSourcesCuda s;
    s.type = c.type;
    s.count = to - from;
    for (int32_t i = from; i < to; ++i) {
      s.rows[i - from] = sources[static_cast<size_t>(i)].data();
      s.strides[i - from] = stride;
    }
    return s;
  }

  AttnResMixCuda mix(int32_t from = 0) const {
    AttnResMixCuda m;
    m.tokens = c.tokens;
    m.dim = c.dim;
    m.sources = views(from, c.sources);
    m.query = queries_gpu.data();
    m.form = c.form;
    m.delta = c.delta ? delta.data() : nullptr;
    m.delta_stride = stride;
    m.norm_weight = c.norm ? norm_gpu.data() : nullptr;
    m.out = out.data();
    m.out_type = c.out_type;
    m.out_stride = stride;
    return m;
  }

  /// Over all sources but the last.
  AttnResBankCuda bank() const {
    AttnResBankCuda b;
    b.tokens = c.tokens;
    b.dim = c.dim;
    b.query_count = c.queries;
    b.sources = views(0, c.sources - 1);
    b.queries = queries_gpu.data();
    b.acc = acc.data();
    b.acc_type = c.acc_type;
    b.max = max.data();
    b.sum = sum.data();
    return b;
  }

  /// The last source on what the bank holds of query q.
  AttnResMixCuda merge(int64_t q) const {
    AttnResMixCuda m = mix(c.sources - 1);
    m.form = AttnResForm::kAnyTokens;
    m.query += q * c.dim;
    m.acc = static_cast<const char*>(acc.data()) +
            q * c.tokens * c.dim * (c.acc_type == DType::kBf16 ? 2 : 4);
    m.acc_type = c.acc_type;
    m.max = max.data() + q * c.tokens;
    m.sum = sum.data() + q * c.tokens;
    return m;
  }

  MixCase c;
  int64_t stride;
  std::vector<float> queries, norm;
  GpuArray<float> queries_gpu, norm_gpu;
  TypedRows delta;
  TypedRows acc;
  GpuArray<float> max, sum;
  TypedRows out;
  std::vector<TypedRows> sources;
};

}  // namespace triax::depth
