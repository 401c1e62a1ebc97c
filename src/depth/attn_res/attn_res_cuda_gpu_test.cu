#include <gtest/gtest.h>

#include "depth/attn_res/attn_res_cuda.h"
#include "testing/gpu.h"

namespace triax::depth {
namespace {

using testing::GpuArray;
using Floats = std::vector<float>;

constexpr float kEps = 1e-5f;

size_t at(int64_t i) { return static_cast<size_t>(i); }

/// B sources of [T, D], rows apart by D + 3.
struct Sources {
  Sources(int64_t count, int64_t tokens, int64_t size) : tokens_(tokens), size_(size) {
    args.count = count;
    for (int64_t i = 0; i < count; ++i) {
      values.push_back(
          testing::random_floats(at(tokens * (size + 3)), 100 + static_cast<uint64_t>(i)));
      arrays.emplace_back(values.back());
      args.data[i] = arrays.back().data();
      args.stride[i] = size + 3;
    }
  }
  const float* row(int64_t i, int64_t t) const { return &values[at(i)][at(t * (size_ + 3))]; }

  int64_t tokens_, size_;
  std::vector<Floats> values;
  std::vector<GpuArray<float>> arrays;
  AttnResSourcesPlain args = {};
};

struct Mixed {
  double max, sum;
  std::vector<double> acc;
};

Mixed mix(const Sources& sources, int64_t t, const float* query) {
  std::vector<double> scores;
  for (int64_t i = 0; i < sources.args.count; ++i) {
    double dot = 0.0;
    double squares = 0.0;
    for (int64_t d = 0; d < sources.size_; ++d) {
      const double v = sources.row(i, t)[d];
      dot += query[d] * v;
      squares += v * v;
    }
    scores.push_back(dot / std::sqrt(squares / static_cast<double>(sources.size_) + kEps));
  }
  Mixed m = {*std::max_element(scores.begin(), scores.end()), 0.0, {}};
  m.acc.resize(at(sources.size_));
  for (size_t i = 0; i < scores.size(); ++i) {
    const double weight = std::exp(scores[i] - m.max);
    m.sum += weight;
    for (int64_t d = 0; d < sources.size_; ++d) {
      m.acc[at(d)] += weight * sources.row(static_cast<int64_t>(i), t)[d];
    }
  }
  return m;
}

Floats queries_of(int64_t count, int64_t size) {
  return testing::random_floats(at(count * size), 7, 1.0f / std::sqrt(static_cast<float>(size)));
}

TEST(AttnResCuda, MixesSources) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  for (const int64_t size : {1, 63, 64, 65, 300, 2304}) {
    for (const int64_t count : {1, 2, 9, 33, 300}) {
      const Sources sources(count, 3, size);
      const Floats query = queries_of(1, size);
      GpuArray<float> gpu_query(query);
      GpuArray<float> out(at(3 * size));
      const AttnResCuda args = {sources.args, gpu_query.data(), kEps, out.data(), size, 3, size};
      ASSERT_EQ(triax_cuda_attn_res(&args, nullptr), 0);
      const Floats found = out.get();
      for (int64_t t = 0; t < 3; ++t) {
        const Mixed m = mix(sources, t, query.data());
        for (int64_t d = 0; d < size; ++d) {
          ASSERT_NEAR(found[at(t * size + d)], m.acc[at(d)] / m.sum, 5e-6);
        }
      }
      EXPECT_TRUE(out.guards_intact());
    }
  }
}

// The bank of some queries; then a merge with one more source is the mix of all.
void expect_two_phases(int64_t queries, int64_t count, int64_t size) {
  const int64_t tokens = 4;
  const Sources all(count + 1, tokens, size);
  Sources banked(count, tokens, size);  // the same seeds
  const Floats query = queries_of(queries, size);
  GpuArray<float> gpu_queries(query);
  GpuArray<float> acc(at(queries * tokens * size)), max(at(queries * tokens)),
      sum(at(queries * tokens)), out(at(tokens * size));
  const AttnResBankPlain bank = {
      banked.args, gpu_queries.data(), size,   queries,    kEps,   acc.data(), tokens * size,
      size,        max.data(),         tokens, sum.data(), tokens, tokens,     size};
  ASSERT_EQ(triax_cuda_attn_res_bank_plain(&bank, nullptr), 0);
  const Floats found_acc = acc.get(), found_max = max.get(), found_sum = sum.get();
  for (int64_t q = 0; q < queries; ++q) {
    const AttnResMergeCuda merge = {acc.data() + q * tokens * size,
                                    size,
                                    max.data() + q * tokens,
                                    sum.data() + q * tokens,
                                    all.args.data[count],
                                    all.args.stride[count],
                                    gpu_queries.data() + q * size,
                                    kEps,
                                    out.data(),
                                    size,
                                    tokens,
                                    size};
    ASSERT_EQ(triax_cuda_attn_res_merge(&merge, nullptr), 0);
    const Floats merged = out.get();
    for (int64_t t = 0; t < tokens; ++t) {
      const Mixed part = mix(banked, t, &query[at(q * size)]);
      const Mixed whole = mix(all, t, &query[at(q * size)]);
      ASSERT_NEAR(found_max[at(q * tokens + t)], part.max, 1e-5);
      ASSERT_NEAR(found_sum[at(q * tokens + t)], part.sum, 1e-5 * part.sum);
      for (int64_t d = 0; d < size; ++d) {
        ASSERT_NEAR(found_acc[at((q * tokens + t) * size + d)], part.acc[at(d)], 1e-5 * part.sum);
        ASSERT_NEAR(merged[at(t * size + d)], whole.acc[at(d)] / whole.sum, 5e-6);
      }
    }
  }
  EXPECT_TRUE(acc.guards_intact() && max.guards_intact() && sum.guards_intact());
}

TEST(AttnResCuda, BanksThenMerges) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  for (const int64_t queries : {1, 7, 8, 9, 24}) {
    expect_two_phases(queries, 3, 100);
  }
  expect_two_phases(2, 12, 2304);
  expect_two_phases(9, 40, 65);
}

TEST(AttnResCuda, RefusesTooManySources) {
  AttnResCuda args = {};
  args.sources.count = kAttnResCudaSourcesMax + 1;
  args.tokens = 1;
  args.size = 1;
  EXPECT_EQ(triax_cuda_attn_res(&args, nullptr), cudaErrorNotSupported);
}

}  // namespace
}  // namespace triax::depth
