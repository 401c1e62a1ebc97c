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

TEST(MoePrefillGpu, AgreesWithDouble) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  const Case cases[] = {{4, 128, 128, 1, 1},   {7, 256, 128, 63, 2},  {5, 384, 640, 40, 3},
                        {9, 512, 256, 65, 4},  {2, 256, 128, 333, 1}, {1, 128, 384, 193, 1},
                        {40, 256, 256, 30, 2}, {2, 3584, 3072, 3, 2}};
  for (const Case& c : cases) {
    for (const Activation& activation : {kSilu, kSitu}) {
      const Experts experts(c.experts, c.width, c.hidden, 1);
      const auto in = random_floats(static_cast<size_t>(c.tokens * c.width), 2);
      const auto ids = random_routes(c.tokens, c.routes, c.experts, 3);
      const auto p = random_floats(static_cast<size_t>(c.tokens * c.routes), 5, 0.1f, 0.3f);
      const auto out = run(experts, activation, in, ids, p, c.tokens, c.routes);
      const double error =
          relative_rms(out, moe_double(experts, activation, in, ids, p, c.tokens, c.routes));
      std::printf("E %d L %d F %d T %d k %d: %.2e\n", int(c.experts), int(c.width), int(c.hidden),
                  int(c.tokens), int(c.routes), error);
      EXPECT_LT(error, kBound);
      EXPECT_EQ(run(experts, activation, in, ids, p, c.tokens, c.routes), out) << "two runs";
    }
  }
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

TEST(MoePrefillGpu, DenseProduct) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  for (const int64_t tokens : {1, 65, 159, 160, 161, 321}) {
    const Matrices m(1, 640, 128, 31);
    const auto in = random_floats(static_cast<size_t>(tokens * 128), 32);
    const GpuArray<float> in_d(in), out_d(static_cast<size_t>(tokens * 640));
    const GpuArray<uint8_t> scratch(
        static_cast<size_t>(triax_cuda_linear_mxfp4_sm90_scratch_bytes(tokens, 128)));
    const LinearMxfp4Sm90 args{.data = m.data.data(),
                               .scales = m.scales.data(),
                               .rows = 640,
                               .cols = 128,
                               .in = in_d.data(),
                               .in_stride = 128,
                               .tokens = tokens,
                               .out = out_d.data(),
                               .scratch = scratch.data()};
    EXPECT_EQ(triax_cuda_linear_mxfp4_sm90(&args, nullptr), 0);
    gpu_check(cudaDeviceSynchronize(), "linear");
    const HostMatrices host(m);
    std::vector<double> truth;
    for (int64_t t = 0; t < tokens; ++t) {
      const auto y = host.multiply(0, {in.begin() + t * 128, in.begin() + (t + 1) * 128});
      truth.insert(truth.end(), y.begin(), y.end());
    }
    EXPECT_LT(relative_rms(out_d.get(), truth), kBound);
    EXPECT_TRUE(out_d.guards_intact());
  }
}

}  // namespace
}  // namespace triax::width
