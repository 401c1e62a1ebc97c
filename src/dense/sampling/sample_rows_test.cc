// sample_rows on every backend against a Sampler of its own for each row.
#include "dense/sampling/sample_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "testing/mirror.h"
#include "testing/testing.h"

namespace triax::dense {
namespace {

using triax::testing::random_tensor;
using triax::testing::TestDevice;

class SampleRows : public ::testing::TestWithParam<TestDevice> {
 protected:
  std::vector<RowSample> sample(ConstTensorView logits, std::vector<Sampler>& samplers) {
    std::vector<Sampler*> pointers;
    for (Sampler& sampler : samplers) {
      pointers.push_back(&sampler);
    }
    std::vector<RowSample> samples(samplers.size());
    triax::testing::Mirror mirror(device_);
    mirror.in(&logits);
    status_ = mirror.run([&] { return sample_rows(device_, logits, pointers, samples); });
    return samples;
  }

  OwnedDevice device_ = GetParam().open();
  Status status_;
};

INSTANTIATE_TEST_SUITE_P(Devices, SampleRows, ::testing::ValuesIn(triax::testing::test_devices()),
                         [](const auto& device) { return device.param.name(); });

std::vector<SamplingParams> settings() {
  return {{.temperature = 0.0f},
          {.temperature = 1.0f, .seed = 1},
          {.temperature = 0.7f, .top_k = 20, .seed = 2},
          {.temperature = 1.3f, .top_p = 0.9f, .seed = 3},
          {.temperature = 0.9f, .top_k = 50, .top_p = 0.8f, .min_p = 0.05f, .seed = 4},
          {.temperature = 0.0f, .top_logprobs = 5},
          {.temperature = 1.0f, .repetition_penalty = 1.2f, .frequency_penalty = 0.5f, .seed = 5},
          {.temperature = 1.0f, .seed = 6, .logit_bias = {{7, 3.0f}}}};
}

std::vector<Sampler> samplers() {
  std::vector<Sampler> all;
  for (const SamplingParams& params : settings()) {
    all.emplace_back(params);
    all.back().observe_prompt(std::vector<int32_t>{1, 2, 3});
  }
  return all;
}

TEST_P(SampleRows, DrawsAsEachRowsOwnSamplerStepAfterStep) {
  std::vector<Sampler> together = samplers();
  std::vector<Sampler> alone = samplers();
  const auto rows = static_cast<int64_t>(together.size());
  for (const int64_t vocab : {33, 1000, 5003}) {
    for (uint64_t step = 0; step < 6; ++step) {
      Tensor logits = random_tensor({rows, vocab + 5}, 100 * step + static_cast<uint64_t>(vocab));
      for (int64_t i = 0; i < logits.view().elements(); ++i) {
        logits.data<float>()[i] *= 4.0f;
      }
      const ConstTensorView view = ConstTensorView(logits.view()).slice(1, 0, vocab);
      const std::vector<RowSample> samples = sample(view, together);
      ASSERT_TRUE(status_.ok()) << status_.message();
      for (int64_t n = 0; n < rows; ++n) {
        const auto i = static_cast<size_t>(n);
        const Result<SampledToken> expected = alone[i].sample(
            std::span(view.data<float>() + n * view.stride(0), static_cast<size_t>(vocab)));
        ASSERT_TRUE(expected.ok());
        ASSERT_TRUE(samples[i].status.ok()) << samples[i].status.message();
        EXPECT_EQ(samples[i].token.id, expected->id) << "row " << n << " of " << vocab;
        EXPECT_NEAR(samples[i].token.logprob, expected->logprob, 1e-5);
        EXPECT_EQ(samples[i].token.top.size(), expected->top.size());
      }
    }
  }
}

TEST_P(SampleRows, ABadRowIsAnErrorOfItsOwn) {
  Tensor logits = random_tensor({4, 100}, 1);
  logits.data<float>()[1 * 100 + 17] = std::nanf("");
  for (int64_t i = 0; i < 100; ++i) {
    logits.data<float>()[2 * 100 + i] = -std::numeric_limits<float>::infinity();
  }
  std::vector<Sampler> some;
  for (const float temperature : {0.0f, 0.0f, 1.0f, 1.0f}) {
    some.emplace_back(SamplingParams{.temperature = temperature});
  }
  const std::vector<RowSample> samples = sample(logits, some);
  ASSERT_TRUE(status_.ok());
  EXPECT_TRUE(samples[0].status.ok());
  EXPECT_NE(samples[1].status.message().find("token 17 is nan"), std::string::npos);
  EXPECT_NE(samples[2].status.message().find("every logit is -inf"), std::string::npos);
  EXPECT_TRUE(samples[3].status.ok());
}

TEST_P(SampleRows, RowsAndSamplersMustMatch) {
  const Tensor logits = random_tensor({3, 10}, 1);
  std::vector<Sampler> two(2, Sampler({}));
  sample(logits, two);
  EXPECT_FALSE(status_.ok());
}

}  // namespace
}  // namespace triax::dense
