// The grouped tensor-core products of routed experts against double: sizes, skew, bits, poison.
#include <gtest/gtest.h>

#include "width/latent_moe/moe_cases_sm90.cuh"
#include "width/latent_moe/moe_prefill_sm90.h"

namespace triax::width {
namespace {

using namespace sm90_cases;
using testing::random_floats;
using testing::relative_rms;

constexpr Activation kSilu{.kind = Activation::Kind::kSilu};
constexpr Activation kSitu{.kind = Activation::Kind::kSitu, .beta = 4.0f, .linear_beta = 25.0f};

// x and the activations are rounded to bf16, each by up to 2^-9 of itself, 1.7e-3 rms; the first
// error reaches the output twice, through gate and up.
constexpr double kBound = 4e-3;

std::vector<float> run(const Experts& experts, Activation activation, const std::vector<float>& in,
                       const std::vector<int32_t>& ids, const std::vector<float>& weights,
                       int64_t tokens, int64_t routes) {
  constexpr int64_t kPad = 3;
  const int64_t width = experts.gate.cols;
  const GpuArray<float> in_d(in), weights_d(weights);
  const GpuArray<float> out_d(static_cast<size_t>(tokens * (width + kPad)));
  const HostGroups groups(ids, tokens, routes, experts.gate.count);
  const GpuArray<uint8_t> scratch(static_cast<size_t>(
      triax_cuda_moe_prefill_sm90_scratch_bytes(tokens, routes, width, experts.gate.rows)));
  const MoePrefillSm90 args{.weights = experts.view(),
                            .activation = activation,
                            .in = in_d.data(),
                            .in_stride = width,
                            .tokens = tokens,
                            .groups = groups.view(),
                            .route_weights = weights_d.data(),
                            .route_weights_stride = routes,
                            .routes = routes,
                            .out = out_d.data(),
                            .out_stride = width + kPad,
                            .scratch = scratch.data()};
  EXPECT_EQ(triax_cuda_moe_prefill_sm90(&args, nullptr), 0);
  gpu_check(cudaDeviceSynchronize(), "moe_prefill");
  EXPECT_TRUE(out_d.guards_intact());
  EXPECT_TRUE(scratch.guards_intact());
  const std::vector<float> padded = out_d.get();
  std::vector<float> out;
  for (int64_t t = 0; t < tokens; ++t) {
    const auto row = padded.begin() + t * (width + kPad);
    out.insert(out.end(), row, row + width);
    EXPECT_TRUE(std::isnan(row[width]));
  }
  return out;
}

struct Case {
  int64_t experts, width, hidden, tokens, routes;
};

void expect_agreement(const Case& c) {
  for (const Activation& activation : {kSilu, kSitu}) {
    const Experts experts(c.experts, c.width, c.hidden, 1);
    const auto in = random_floats(static_cast<size_t>(c.tokens * c.width), 2);
    const auto ids = random_routes(c.tokens, c.routes, c.experts, 3);
    const auto p = random_floats(static_cast<size_t>(c.tokens * c.routes), 5, 0.1f, 0.3f);
    const auto out = run(experts, activation, in, ids, p, c.tokens, c.routes);
    EXPECT_LT(relative_rms(out, moe_double(experts, activation, in, ids, p, c.tokens, c.routes)),
              kBound)
        << c.experts << " experts, " << c.width << " x " << c.hidden << ", " << c.tokens
        << " tokens, " << c.routes << " routes";
    EXPECT_EQ(run(experts, activation, in, ids, p, c.tokens, c.routes), out) << "two runs";
  }
}

TEST(MoePrefillGpu, AgreesWithDouble) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  // Among them one expert with as many tokens as a tile holds, and one more and less.
  const Case cases[] = {{4, 128, 128, 1, 1},   {7, 256, 128, 63, 2},  {5, 384, 640, 40, 3},
                        {9, 512, 256, 65, 4},  {2, 256, 128, 333, 1}, {1, 128, 384, 193, 1},
                        {40, 256, 256, 30, 2}, {2, 3584, 3072, 3, 2}, {1, 640, 128, 159, 1},
                        {1, 128, 128, 160, 1}, {1, 128, 640, 161, 1}, {1, 640, 128, 321, 1}};
  for (const Case& c : cases) {
    expect_agreement(c);
  }
}

TEST(MoePrefillGpu, Small) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  expect_agreement({3, 256, 128, 40, 2});
}

TEST(MoePrefillGpu, TokenIsIndependentOfItsBatch) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  const int64_t tokens = 400;
  const Experts experts(3, 384, 256, 11);
  const auto in = random_floats(static_cast<size_t>(tokens * 384), 12);
  const auto ids = random_routes(tokens, 2, 3, 13);
  const auto p = random_floats(static_cast<size_t>(tokens * 2), 14, 0.1f, 0.3f);
  const auto all = run(experts, kSitu, in, ids, p, tokens, 2);
  for (const int64_t first : {0, 37, 390}) {
    for (const int64_t count : {1, 9}) {
      const auto some =
          run(experts, kSitu, {in.begin() + first * 384, in.begin() + (first + count) * 384},
              {ids.begin() + first * 2, ids.begin() + (first + count) * 2},
              {p.begin() + first * 2, p.begin() + (first + count) * 2}, count, 2);
      EXPECT_EQ(some,
                std::vector<float>(all.begin() + first * 384, all.begin() + (first + count) * 384));
    }
  }
}

}  // namespace
}  // namespace triax::width
