// The products around absorbed attention for few tokens, against double.
#include <gtest/gtest.h>

#include "sequence/mla/mla_absorb_cuda.h"
#include "testing/gpu.h"

namespace triax::sequence {
namespace {

using testing::GpuArray;
using Bf16 = __nv_bfloat16;

constexpr int64_t kNope = 128, kShared = 64, kLatent = 512, kValue = 128;
constexpr double kBf16Result = 4e-3;   // one rounding to bf16, 2^-9 at most
constexpr double kFloatResult = 1e-5;  // sums of 512 products in float32

double value(Bf16 x) { return static_cast<double>(__bfloat162float(x)); }
size_t at(int64_t i) { return static_cast<size_t>(i); }

void expect_products(int64_t tokens, int64_t heads) {
  const int64_t depth = kNope + kShared;
  const int64_t width = kLatent + kShared;
  const auto q = testing::random_floats(at(tokens * heads * depth), 1);
  const auto kv_b =
      testing::to_bf16(testing::random_floats(at(heads * (kNope + kValue) * kLatent), 2));
  const auto sums = testing::to_bf16(testing::random_floats(at(tokens * heads * kLatent), 3));
  const GpuArray<float> q_d(q), out_d(at(tokens * heads * kValue));
  const GpuArray<Bf16> kv_d(kv_b), sums_d(sums), latent_d(at(tokens * heads * width));
  const MlaAbsorbCuda args = {.q = q_d.data(),
                              .q_token = heads * depth,
                              .q_head = depth,
                              .kv_b = kv_d.data(),
                              .tokens = tokens,
                              .heads = heads,
                              .latent_q = latent_d.data(),
                              .latent_sums = sums_d.data(),
                              .out = out_d.data(),
                              .out_token = heads * kValue,
                              .out_head = kValue};
  ASSERT_EQ(triax_cuda_mla_absorb_queries(&args, nullptr), 0);
  ASSERT_EQ(triax_cuda_mla_expand_values(&args, nullptr), 0);
  testing::gpu_check(cudaDeviceSynchronize(), "mla_absorb");
  EXPECT_TRUE(latent_d.guards_intact() && out_d.guards_intact());
  std::vector<double> latent, out;
  for (int64_t row = 0; row < tokens * heads; ++row) {
    const Bf16* weights = kv_b.data() + row % heads * (kNope + kValue) * kLatent;
    const float* query = q.data() + row * depth;
    for (int64_t r = 0; r < kLatent; ++r) {
      double sum = 0.0;
      for (int64_t c = 0; c < kNope; ++c) {
        sum += value(__float2bfloat16(query[c])) * value(weights[c * kLatent + r]);
      }
      latent.push_back(sum);
    }
    for (int64_t e = 0; e < kShared; ++e) {
      latent.push_back(value(__float2bfloat16(query[kNope + e])));
    }
    for (int64_t v = 0; v < kValue; ++v) {
      double sum = 0.0;
      for (int64_t r = 0; r < kLatent; ++r) {
        sum += value(sums[at(row * kLatent + r)]) * value(weights[(kNope + v) * kLatent + r]);
      }
      out.push_back(sum);
    }
  }
  std::vector<float> latent_found;
  for (const Bf16 x : latent_d.get()) {
    latent_found.push_back(__bfloat162float(x));
  }
  EXPECT_LT(testing::relative_rms(latent_found, latent), kBf16Result) << tokens << " tokens";
  EXPECT_LT(testing::relative_rms(out_d.get(), out), kFloatResult) << tokens << " tokens";
}

TEST(MlaAbsorbGpu, Small) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  for (const int64_t tokens : {1, 3, 8}) {
    expect_products(tokens, 8);
  }
}

TEST(MlaAbsorbGpu, RefusesManyTokens) {
  MlaAbsorbCuda args = {};
  args.tokens = kMlaAbsorbTokensMax + 1;
  args.heads = 8;
  EXPECT_NE(triax_cuda_mla_absorb_queries(&args, nullptr), 0);
  EXPECT_NE(triax_cuda_mla_expand_values(&args, nullptr), 0);
}

}  // namespace
}  // namespace triax::sequence
