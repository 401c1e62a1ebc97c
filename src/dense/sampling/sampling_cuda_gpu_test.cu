#include <gtest/gtest.h>

#include "dense/sampling/sampling.h"
#include "dense/sampling/sampling_cuda.h"
#include "testing/gpu.h"

namespace triax::dense {
namespace {

using testing::GpuArray;

/// Rows of logits with ties, forbidden tokens and a few favourites.
std::vector<float> random_logits(int64_t rows, int64_t vocab, uint64_t seed, float scale) {
  auto logits = testing::random_floats(static_cast<size_t>(rows * vocab), seed, scale);
  std::mt19937_64 rng(seed);
  for (size_t i = 0; i < logits.size(); ++i) {
    const auto kind = rng() % 8;
    logits[i] = kind == 0 ? std::round(logits[i]) : (kind == 1 && i > 0 ? -INFINITY : logits[i]);
  }
  return logits;
}

struct Best {
  std::vector<int32_t> ids;
  std::vector<float> logprobs;
  std::vector<double> log_totals;
};

Best argmax(const GpuArray<float>& logits, int64_t rows, int64_t vocab) {
  GpuArray<int32_t> ids(static_cast<size_t>(rows));
  GpuArray<float> logprobs(ids.size());
  GpuArray<double> totals(ids.size());
  const GpuArray<uint8_t> scratch(
      static_cast<size_t>(triax_cuda_argmax_scratch_bytes(rows, vocab)));
  const ArgmaxCuda args = {.logits = logits.data(),
                           .logits_stride = vocab,
                           .rows = rows,
                           .vocab = vocab,
                           .scratch = scratch.data(),
                           .ids = ids.data(),
                           .logprobs = logprobs.data(),
                           .log_totals = totals.data()};
  EXPECT_EQ(triax_cuda_argmax(&args, nullptr), 0);
  testing::gpu_check(cudaDeviceSynchronize(), "argmax");
  EXPECT_TRUE(ids.guards_intact() && logprobs.guards_intact() && totals.guards_intact());
  EXPECT_TRUE(scratch.guards_intact());
  return {ids.get(), logprobs.get(), totals.get()};
}

TEST(ArgmaxCuda, FindsTheLargestAndItsLogprob) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  for (const int64_t vocab : {1, 2, 1023, 2048, 2049, 163840}) {
    const int64_t rows = 3;
    const std::vector<float> logits = random_logits(rows, vocab, 1, 3.0f);
    const GpuArray<float> gpu_logits(logits);
    const Best best = argmax(gpu_logits, rows, vocab);
    const std::vector<int32_t> asked = {
        0, -1, static_cast<int32_t>(vocab - 1), 0, static_cast<int32_t>(vocab), 0};
    const GpuArray<int32_t> ids(asked);
    const GpuArray<double> totals(best.log_totals);
    const GpuArray<float> logprobs(asked.size());
    const LogprobsCuda args = {gpu_logits.data(), vocab, rows,          vocab,
                               ids.data(),        2,     totals.data(), logprobs.data()};
    ASSERT_EQ(triax_cuda_logprobs(&args, nullptr), 0);
    const std::vector<float> found = logprobs.get();
    for (int64_t t = 0; t < rows; ++t) {
      const auto row = logits.begin() + t * vocab;
      const auto largest = std::max_element(row, row + vocab);
      if (!std::isfinite(*largest)) {
        EXPECT_EQ(best.ids[static_cast<size_t>(t)], -1);
        continue;
      }
      double sum = 0.0;
      for (auto x = row; x != row + vocab; ++x) {
        sum += std::exp(static_cast<double>(*x) - *largest);
      }
      const auto i = static_cast<size_t>(t);
      EXPECT_EQ(best.ids[i], largest - row);
      EXPECT_NEAR(best.logprobs[i], -std::log(sum), 1e-6 * std::log(sum) + 1e-12);
      EXPECT_NEAR(best.log_totals[i], *largest + std::log(sum), 1e-10);
      for (size_t j = 0; j < 2; ++j) {
        const int32_t id = asked[2 * i + j];
        if (id < 0 || id >= vocab) {
          EXPECT_TRUE(std::isnan(found[2 * i + j]));
        } else if (std::isfinite(row[id])) {
          EXPECT_NEAR(found[2 * i + j], row[id] - *largest - std::log(sum), 4e-6);
        }
      }
    }
  }
}

TEST(ArgmaxCuda, ShowsUnusableRows) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  const GpuArray<float> logits(std::vector<float>{1.0f, NAN, 2.0f, 1.0f, INFINITY, 0.0f, -INFINITY,
                                                  -INFINITY, -INFINITY, 4.0f, 5.0f, 5.0f});
  EXPECT_EQ(argmax(logits, 4, 3).ids, (std::vector<int32_t>{-1, -1, -1, 1}));
}

/// Draws row by row with the seeds 0, 1, ...
std::vector<int32_t> draw(const std::vector<float>& logits, int64_t rows, int64_t vocab,
                          const SamplingParams& params) {
  std::vector<SampleSettings> settings;
  for (int64_t t = 0; t < rows; ++t) {
    settings.push_back({params.temperature, params.top_k, params.top_p, params.min_p,
                        Rng(static_cast<uint64_t>(t)).uniform()});
  }
  const GpuArray<float> gpu_logits(logits);
  const GpuArray<SampleSettings> gpu_settings(settings);
  const GpuArray<int32_t> ids(argmax(gpu_logits, rows, vocab).ids);
  const GpuArray<uint8_t> scratch(
      static_cast<size_t>(triax_cuda_sample_scratch_bytes(rows, vocab)));
  const SampleCuda args = {.logits = gpu_logits.data(),
                           .logits_stride = vocab,
                           .rows = rows,
                           .vocab = vocab,
                           .settings = gpu_settings.data(),
                           .filtered = params.top_k > 0 || params.top_p < 1.0f,
                           .scratch = scratch.data(),
                           .ids = ids.data()};
  EXPECT_EQ(triax_cuda_sample(&args, nullptr), 0);
  testing::gpu_check(cudaDeviceSynchronize(), "sample");
  EXPECT_TRUE(ids.guards_intact() && scratch.guards_intact());
  return ids.get();
}

void expect_as_sampler(int64_t rows, int64_t vocab, float scale, SamplingParams params) {
  const std::vector<float> logits = random_logits(rows, vocab, 5, scale);
  const std::vector<int32_t> found = draw(logits, rows, vocab, params);
  EXPECT_EQ(draw(logits, rows, vocab, params), found);
  for (int64_t t = 0; t < rows; ++t) {
    params.seed = static_cast<uint64_t>(t);
    Sampler sampler(params);
    const auto row =
        std::span(logits).subspan(static_cast<size_t>(t * vocab), static_cast<size_t>(vocab));
    const Result<SampledToken> token = sampler.sample(row);
    const int32_t expected = token.ok() ? token->id : -1;
    ASSERT_EQ(found[static_cast<size_t>(t)], expected)
        << "row " << t << " vocab " << vocab << " top_k " << params.top_k << " top_p "
        << params.top_p << " min_p " << params.min_p;
  }
}

TEST(SampleCuda, Small) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  expect_as_sampler(3, 5000, 4.0f, {.temperature = 0.7f, .min_p = 0.01f});
  expect_as_sampler(3, 2049, 4.0f,
                    {.temperature = 0.9f, .top_k = 50, .top_p = 0.8f, .min_p = 0.02f});
}

TEST(SampleCuda, DrawsAsTheSampler) {
  if (!testing::gpu_present()) {
    GTEST_SKIP() << "no GPU";
  }
  for (const int64_t vocab : {1, 3, 1000, 1024, 5000}) {
    for (const float scale : {0.5f, 4.0f}) {
      expect_as_sampler(24, vocab, scale, {.temperature = 0.0f});
      expect_as_sampler(24, vocab, scale, {.temperature = 0.7f});
      expect_as_sampler(24, vocab, scale, {.temperature = 1.0f, .top_k = 40});
      expect_as_sampler(24, vocab, scale, {.temperature = 1.0f, .top_k = 1});
      expect_as_sampler(24, vocab, scale, {.temperature = 1.3f, .top_p = 0.9f});
      expect_as_sampler(24, vocab, scale, {.temperature = 1.0f, .top_p = 0.01f});
      expect_as_sampler(24, vocab, scale, {.temperature = 1.0f, .min_p = 0.05f});
      expect_as_sampler(24, vocab, scale,
                        {.temperature = 0.9f, .top_k = 50, .top_p = 0.8f, .min_p = 0.02f});
    }
  }
  expect_as_sampler(2, 163840, 2.0f, {.temperature = 1.0f});
  expect_as_sampler(2, 163840, 2.0f, {.temperature = 1.0f, .top_k = 200, .top_p = 0.95f});
  expect_as_sampler(2, 163840, 1.0f, {.temperature = 1.0f, .top_p = 0.95f});
}

}  // namespace
}  // namespace triax::dense
