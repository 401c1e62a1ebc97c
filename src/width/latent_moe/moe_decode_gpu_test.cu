// The one-launch decode of routed experts against double: sizes, skew, bits, poison.
#include <gtest/gtest.h>

#include "width/latent_moe/moe_cases_sm90.cuh"

namespace triax::width {
namespace {

using namespace sm90_cases;
using testing::random_floats;
using testing::relative_rms;

constexpr Activation kSilu{.kind = Activation::Kind::kSilu};
constexpr Activation kSitu{.kind = Activation::Kind::kSitu, .beta = 4.0f, .linear_beta = 25.0f};

struct Case {
  int64_t experts, width, hidden, tokens, routes;
};

// Runs the kernel; rows of `out` are `pad` floats longer than they need to be.
class Runner {
 public:
  Runner(const Experts& experts, Activation activation, int64_t tokens, int64_t routes)
      : experts_(experts),
        activation_(activation),
        tokens_(tokens),
        routes_(routes),
        scratch_(static_cast<size_t>(triax_cuda_moe_decode_sm90_scratch_bytes(
            tokens, routes, experts.gate.cols, experts.gate.rows))) {
    gpu_check(cudaMemset(scratch_.data(), 0, 256), "barrier");
  }

  std::vector<float> run(const std::vector<float>& in, const std::vector<int32_t>& ids,
                         const std::vector<float>& weights) {
    return run(in, GpuArray<int32_t>(ids), GpuArray<float>(weights), nullptr, {});
  }

  /// With logits (device) they decide, and ids and weights are written.
  std::vector<float> run(const std::vector<float>& in, const GpuArray<int32_t>& ids_d,
                         const GpuArray<float>& weights_d, const float* logits,
                         const RouterChoice& choice) {
    const int64_t width = experts_.gate.cols;
    const GpuArray<float> in_d(in);
    GpuArray<float> out_d(static_cast<size_t>(tokens_ * (width + kPad)));
    gpu_check(cudaMemset(scratch_.data() + 256, 0xFF, scratch_.bytes() - 256), "poison");
    const MoeDecodeSm90 args{
        .weights = experts_.view(),
        .activation = activation_,
        .in = in_d.data(),
        .in_stride = width,
        .tokens = tokens_,
        .ids = ids_d.data(),
        .ids_stride = routes_,
        .route_weights = weights_d.data(),
        .route_weights_stride = routes_,
        .routes = routes_,
        .out = out_d.data(),
        .out_stride = width + kPad,
        .scratch = scratch_.data(),
        .routes_from = logits != nullptr ? MoeRoutes::kLogits : MoeRoutes::kGiven,
        .logits = logits,
        .choice = choice};
    EXPECT_EQ(triax_cuda_moe_decode_sm90(&args, nullptr), 0);
    gpu_check(cudaDeviceSynchronize(), "moe_decode");
    EXPECT_TRUE(out_d.guards_intact());
    EXPECT_TRUE(scratch_.guards_intact());
    const std::vector<float> padded = out_d.get();
    std::vector<float> out;
    for (int64_t t = 0; t < tokens_; ++t) {
      const auto row = padded.begin() + t * (width + kPad);
      out.insert(out.end(), row, row + width);
      EXPECT_TRUE(std::isnan(row[width]));
    }
    return out;
  }

 private:
  static constexpr int64_t kPad = 3;
  const Experts& experts_;
  Activation activation_;
  int64_t tokens_, routes_;
  GpuArray<uint8_t> scratch_;
};

std::vector<float> route_weights(int64_t count) {
  std::vector<float> p = random_floats(static_cast<size_t>(count), 5, 0.1f, 0.3f);
  return p;
}

// Both operands are exact to 2^-17 and sums are float32: 1e-5 leaves a factor of some 3.
constexpr double kBound = 1e-5;

TEST(MoeDecodeGpu, AgreesWithDouble) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  const Case cases[] = {{4, 128, 128, 1, 1},   {7, 256, 128, 3, 2},   {16, 384, 640, 5, 4},
                        {40, 512, 256, 17, 8}, {12, 640, 384, 63, 2}, {12, 128, 256, 64, 12},
                        {3, 2304, 1024, 2, 2}, {2, 3584, 3072, 3, 1}, {1, 4096, 256, 6, 1}};
  for (const Case& c : cases) {
    for (const Activation& activation : {kSilu, kSitu}) {
      const Experts experts(c.experts, c.width, c.hidden, 1);
      const auto in = random_floats(static_cast<size_t>(c.tokens * c.width), 2);
      const auto ids = random_routes(c.tokens, c.routes, c.experts, 3);
      const auto p = route_weights(c.tokens * c.routes);
      Runner runner(experts, activation, c.tokens, c.routes);
      const auto out = runner.run(in, ids, p);
      const auto truth = moe_double(experts, activation, in, ids, p, c.tokens, c.routes);
      const double error = relative_rms(out, truth);
      std::printf("E %d L %d F %d T %d k %d: %.2e\n", int(c.experts), int(c.width), int(c.hidden),
                  int(c.tokens), int(c.routes), error);
      EXPECT_LT(error, kBound);
      EXPECT_EQ(runner.run(in, ids, p), out) << "two runs";
    }
  }
}

TEST(MoeDecodeGpu, WideScalesAreExact) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  // One column alone decides each row, so an inexact weight of any scale would show.
  const Experts experts(2, 128, 128, 7, 87, 139);
  std::vector<float> in(128, 0.0f);
  in[37] = 1.0f;
  Runner runner(experts, kSitu, 1, 2);
  const std::vector<int32_t> ids = {1, 0};
  const std::vector<float> p = {0.5f, 0.25f};
  const auto out = runner.run(in, ids, p);
  const auto truth = moe_double(experts, kSitu, in, ids, p, 1, 2);
  EXPECT_LT(relative_rms(out, truth), kBound) << out[0] << " " << truth[0];
}

TEST(MoeDecodeGpu, TokenIsIndependentOfItsBatch) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  const int64_t tokens = 29;
  const int64_t routes = 6;
  const Experts experts(20, 640, 384, 11);
  const auto in = random_floats(static_cast<size_t>(tokens * 640), 12);
  const auto ids = random_routes(tokens, routes, 20, 13);
  const auto p = route_weights(tokens * routes);
  Runner batch(experts, kSitu, tokens, routes);
  const auto all = batch.run(in, ids, p);
  Runner single(experts, kSitu, 1, routes);
  for (int64_t t = 0; t < tokens; ++t) {
    const auto one = single.run({in.begin() + t * 640, in.begin() + (t + 1) * 640},
                                {ids.begin() + t * routes, ids.begin() + (t + 1) * routes},
                                {p.begin() + t * routes, p.begin() + (t + 1) * routes});
    EXPECT_EQ(one, std::vector<float>(all.begin() + t * 640, all.begin() + (t + 1) * 640));
  }
}

TEST(MoeDecodeGpu, AbsentRoutesCountAsZero) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  const Experts experts(8, 256, 256, 21);
  const auto in = random_floats(3 * 256, 22);
  std::vector<int32_t> ids = {-1, 3, 8, -1, -1, -1, 0, 1, 7};
  const auto p = route_weights(9);
  Runner runner(experts, kSilu, 3, 3);
  const auto out = runner.run(in, ids, p);
  EXPECT_LT(relative_rms(out, moe_double(experts, kSilu, in, ids, p, 3, 3)), kBound);
  EXPECT_EQ(std::vector<float>(out.begin() + 256, out.begin() + 512), std::vector<float>(256));
  std::fill(ids.begin(), ids.end(), -1);
  EXPECT_EQ(runner.run(in, ids, p), std::vector<float>(3 * 256));
}

TEST(MoeDecodeGpu, ChoosesAsTheRouterDoes) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  const Case cases[] = {{20, 256, 128, 1, 6},  {256, 128, 128, 4, 8}, {300, 128, 128, 2, 16},
                        {20, 256, 128, 29, 6}, {300, 128, 128, 5, 9}, {896, 128, 128, 64, 16}};
  for (const Case& c : cases) {
    const Experts experts(c.experts, c.width, c.hidden, 41);
    const auto in = random_floats(static_cast<size_t>(c.tokens * c.width), 42);
    const GpuArray<float> logits(random_floats(static_cast<size_t>(c.tokens * c.experts), 43));
    const GpuArray<float> bias(random_floats(static_cast<size_t>(c.experts), 44, 0.1f));
    const size_t routes = static_cast<size_t>(c.tokens * c.routes);
    const GpuArray<int32_t> ids(routes), own_ids(routes);
    const GpuArray<float> weights(routes), own_weights(routes);
    const RouterSelectCuda select{.logits = logits.data(),
                                  .tokens = c.tokens,
                                  .experts = c.experts,
                                  .choice = {bias.data(), true, 2.5f, RouteWeights::kUnbiased},
                                  .count = c.routes,
                                  .ids = ids.data(),
                                  .ids_stride = c.routes,
                                  .weights = weights.data(),
                                  .weights_stride = c.routes};
    ASSERT_EQ(triax_cuda_router_select(&select, nullptr), 0);
    Runner runner(experts, kSitu, c.tokens, c.routes);
    const auto out = runner.run(in, own_ids, own_weights, logits.data(), select.choice);
    EXPECT_EQ(own_ids.get(), ids.get());
    EXPECT_EQ(own_weights.get(), weights.get());
    EXPECT_TRUE(own_ids.guards_intact() && own_weights.guards_intact());
    EXPECT_EQ(out, runner.run(in, ids, weights, nullptr, {}));
  }
}

TEST(MoeDecodeGpu, RefusesWhatItCannotDo) {
  MoeExpertsSm90 w{};
  w.experts = 8;
  w.width = 256;
  w.hidden = 256;
  EXPECT_TRUE(moe_decode_sm90_supports(w, 64, 8));
  EXPECT_TRUE(moe_decode_sm90_supports(w, 0, 8));
  EXPECT_FALSE(moe_decode_sm90_supports(w, 65, 8));
  w.hidden = 96;
  EXPECT_FALSE(moe_decode_sm90_supports(w, 1, 8));
}

}  // namespace
}  // namespace triax::width
