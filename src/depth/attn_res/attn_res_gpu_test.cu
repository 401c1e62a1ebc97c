// Attention Residuals on the GPU against the formulas in double.
#include <gtest/gtest.h>

#include "depth/attn_res/attn_res_case.cuh"

namespace triax::depth {
namespace {

using testing::gpu_check;
using testing::relative_rms;

// A score's error is a few 2^-24 times sqrt(D); an error d of the scores moves the mix by about d.
constexpr double kFloatBound = 3e-6;
constexpr double kBf16Bound = 2.5e-3;  // 2^-9 where it is largest, 1.66e-3 over random values

double bound(DType type) { return type == DType::kBf16 ? kBf16Bound : kFloatBound; }

/// The mix of query q at each token, dense [T, D]; `rows` holds each source's values.
std::vector<double> reference(const MixProblem& p, const std::vector<std::vector<float>>& rows,
                              int64_t q) {
  std::vector<double> result;
  const auto dim = static_cast<size_t>(p.c.dim);
  for (int64_t t = 0; t < p.c.tokens; ++t) {
    std::vector<double> scores;
    for (const std::vector<float>& row : rows) {
      double dot = 0.0;
      double squares = 0.0;
      for (size_t d = 0; d < dim; ++d) {
        const double v = row[static_cast<size_t>(t * p.stride) + d];
        dot += v * p.queries[static_cast<size_t>(q) * dim + d];
        squares += v * v;
      }
      scores.push_back(dot / std::sqrt(squares / static_cast<double>(dim) + 1e-5));
    }
    const double max = *std::max_element(scores.begin(), scores.end());
    double sum = 0.0;
    std::vector<double> mixed(dim);
    for (size_t i = 0; i < rows.size(); ++i) {
      const double weight = std::exp(scores[i] - max);
      sum += weight;
      for (size_t d = 0; d < dim; ++d) {
        mixed[d] += weight * rows[i][static_cast<size_t>(t * p.stride) + d];
      }
    }
    double squares = 0.0;
    for (double& x : mixed) {
      x /= sum;
      squares += x * x;
    }
    for (size_t d = 0; d < dim && p.c.norm; ++d) {
      mixed[d] *= p.norm[d] / std::sqrt(squares / static_cast<double>(dim) + 1e-5);
    }
    result.insert(result.end(), mixed.begin(), mixed.end());
  }
  return result;
}

/// The sources before a call, the last one with delta added in their type.
std::vector<std::vector<float>> source_values(const MixProblem& p) {
  std::vector<std::vector<float>> rows;
  for (const TypedRows& source : p.sources) {
    rows.push_back(source.get());
  }
  if (p.c.delta) {
    const std::vector<float> delta = p.delta.get();
    for (int64_t t = 0; t < p.c.tokens; ++t) {
      for (int64_t d = 0; d < p.c.dim; ++d) {
        const auto i = static_cast<size_t>(t * p.stride + d);
        const float sum = rows.back()[i] + delta[i];
        rows.back()[i] = p.c.type == DType::kBf16 ? __bfloat162float(__float2bfloat16(sum)) : sum;
      }
    }
  }
  return rows;
}

std::vector<double> dense_out(const MixProblem& p) {
  std::vector<double> dense;
  const std::vector<float> out = p.out.get();
  for (int64_t t = 0; t < p.c.tokens; ++t) {
    const auto row = out.begin() + t * p.stride;
    dense.insert(dense.end(), row, row + p.c.dim);
    EXPECT_TRUE(std::all_of(row + p.c.dim, row + p.stride, [](float x) { return std::isnan(x); }));
  }
  return dense;
}

void run(const AttnResMixCuda& mix) {
  ASSERT_EQ(triax_cuda_attn_res_mix(&mix, nullptr), cudaSuccess);
  gpu_check(cudaDeviceSynchronize(), "mix");
}

void run(const AttnResBankCuda& bank) {
  ASSERT_EQ(triax_cuda_attn_res_bank(&bank, nullptr), cudaSuccess);
  gpu_check(cudaDeviceSynchronize(), "bank");
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
}

void check_mix(const MixCase& c) {
  SCOPED_TRACE(::testing::Message()
               << "T " << c.tokens << " D " << c.dim << " B " << c.sources << " bf16 "
               << (c.type == DType::kBf16) << " delta " << c.delta << " norm " << c.norm);
  MixProblem p(c);
  const std::vector<std::vector<float>> rows = source_values(p);
  run(p.mix());
  EXPECT_LE(relative_rms(dense_out(p), reference(p, rows, 0)), bound(c.out_type));
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_TRUE(same_bits(p.sources[i].get(), rows[i])) << "source " << i;
    EXPECT_TRUE(p.sources[i].guards_intact());
  }
  EXPECT_TRUE(p.out.guards_intact());
}

void check_bank(const MixCase& c) {
  SCOPED_TRACE(::testing::Message() << "T " << c.tokens << " D " << c.dim << " B " << c.sources
                                    << " Q " << c.queries << " bf16 " << (c.type == DType::kBf16));
  MixProblem p(c);
  run(p.bank());
  std::vector<std::vector<float>> rows = source_values(p);
  EXPECT_TRUE(p.acc.guards_intact() && p.max.guards_intact() && p.sum.guards_intact());
  for (int64_t q = 0; q < c.queries; ++q) {
    run(p.merge(q));
    EXPECT_LE(relative_rms(dense_out(p), reference(p, rows, q)),
              std::max(bound(c.out_type), bound(c.acc_type)))
        << "query " << q;
  }
}

class AttnResGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::gpu_present()) {
      GTEST_SKIP() << "no GPU";
    }
  }
};

TEST_F(AttnResGpu, MixMatchesDouble) {
  for (const int64_t tokens : {1, 2, 63, 200}) {
    for (const int64_t dim : {32, 64, 1056, 7168}) {
      for (const int32_t sources : {1, 9}) {
        for (const AttnResForm form : {AttnResForm::kAnyTokens, AttnResForm::kFewTokens}) {
          check_mix({.tokens = tokens, .dim = dim, .sources = sources, .form = form});
        }
      }
    }
  }
}

TEST_F(AttnResGpu, MixOptions) {
  for (const DType type : {DType::kF32, DType::kBf16}) {
    for (const bool delta : {false, true}) {
      for (const bool norm : {false, true}) {
        for (const AttnResForm form : {AttnResForm::kAnyTokens, AttnResForm::kFewTokens}) {
          for (const int32_t sources : {1, 2, 8, 9, 10, 16}) {
            check_mix({.tokens = 5,
                       .dim = 928,
                       .sources = sources,
                       .type = type,
                       .out_type = type,
                       .form = form,
                       .delta = delta,
                       .norm = norm,
                       .padding = 16});
          }
        }
      }
    }
  }
}

TEST_F(AttnResGpu, BankAndMergeMatchDouble) {
  for (const int64_t tokens : {1, 5, 12, 70}) {
    for (const int64_t queries : {1, 6, 24}) {
      for (const int32_t sources : {2, 9, 11}) {
        for (const int64_t dim : {128, 1024, 1056}) {
          check_bank({.tokens = tokens, .dim = dim, .sources = sources, .queries = queries});
        }
      }
    }
  }
  check_bank({.tokens = 33, .dim = 7168, .sources = 9, .queries = 24});
}

TEST_F(AttnResGpu, BankOptions) {
  check_bank({.tokens = 9,
              .dim = 512,
              .sources = 9,
              .queries = 24,
              .type = DType::kBf16,
              .out_type = DType::kBf16,
              .acc_type = DType::kBf16,
              .norm = true,
              .padding = 8});
}

// More tokens than blocks run at once: a block streams the rows of several.
TEST_F(AttnResGpu, ManyTokens) {
  for (const DType type : {DType::kF32, DType::kBf16}) {
    for (const bool norm : {false, true}) {
      check_mix({.tokens = 1321,
                 .dim = 96,
                 .sources = 5,
                 .type = type,
                 .out_type = type,
                 .delta = true,
                 .norm = norm});
    }
  }
}

// Large scores of both signs: the softmax must not overflow, one source may take all.
TEST_F(AttnResGpu, LargeScores) {
  for (const AttnResForm form : {AttnResForm::kAnyTokens, AttnResForm::kFewTokens}) {
    MixProblem p({.tokens = 4, .dim = 512, .sources = 9, .form = form, .query_scale = 20.0f});
    run(p.mix());
    EXPECT_LE(relative_rms(dense_out(p), reference(p, source_values(p), 0)), 1e-4);
  }
}

/// Two runs, and the last token alone.
void check_invariance(int64_t dim) {
  const MixCase many = {.tokens = 100, .dim = dim, .sources = 9, .queries = 24};
  MixProblem a(many);
  MixProblem b(many);
  run(a.bank());
  run(b.bank());
  EXPECT_TRUE(same_bits(a.acc.get(), b.acc.get()));
  run(a.mix());
  const std::vector<float> all = a.out.get();
  run(b.mix());
  EXPECT_TRUE(same_bits(all, b.out.get()));
  AttnResMixCuda one = b.mix();  // token 99 alone
  one.tokens = 1;
  for (int32_t i = 0; i < one.sources.count; ++i) {
    one.sources.rows[i] = static_cast<const float*>(one.sources.rows[i]) + 99 * b.stride;
  }
  run(one);
  const std::vector<float> alone = b.out.get();
  EXPECT_EQ(
      std::memcmp(alone.data(), all.data() + 99 * a.stride, static_cast<size_t>(many.dim) * 4), 0);
  AttnResBankCuda bank = b.bank();
  bank.tokens = 1;
  for (int32_t i = 0; i < bank.sources.count; ++i) {
    bank.sources.rows[i] = static_cast<const float*>(bank.sources.rows[i]) + 99 * b.stride;
  }
  run(bank);
  const std::vector<float> acc = a.acc.get();
  const std::vector<float> acc_alone = b.acc.get();
  for (int64_t q = 0; q < many.queries; ++q) {
    EXPECT_EQ(std::memcmp(acc_alone.data() + q * dim, acc.data() + (q * 100 + 99) * dim,
                          static_cast<size_t>(dim) * 4),
              0)
        << "query " << q;
  }
}

TEST_F(AttnResGpu, SameBitsInTwoRunsAndAnyBatch) {
  check_invariance(1056);
  check_invariance(1024);
}

TEST(AttnResGpuEdges, Arguments) {
  AttnResMixCuda mix;
  EXPECT_EQ(triax_cuda_attn_res_mix(&mix, nullptr), cudaSuccess);
  mix.tokens = 1;
  mix.dim = 7200;
  EXPECT_EQ(triax_cuda_attn_res_mix(&mix, nullptr), cudaErrorInvalidValue);
  AttnResBankCuda bank;
  EXPECT_EQ(triax_cuda_attn_res_bank(&bank, nullptr), cudaSuccess);
}

}  // namespace
}  // namespace triax::depth
