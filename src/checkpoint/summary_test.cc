#include "checkpoint/summary.h"

#include <gtest/gtest.h>

#include <string>

#include "testing/testing.h"

namespace triax::checkpoint {
namespace {

ModelSummary summary_of(const std::string& file) {
  Result<ModelConfig> config = load_config(testing::shared_directory() + "/spec/" + file);
  EXPECT_TRUE(config.ok()) << config.status().message();
  return summarize(*config);
}

class SummaryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (testing::shared_directory().empty()) {
      GTEST_SKIP() << "the shared test data is not here";
    }
  }
};

TEST_F(SummaryTest, KimiK3MatchesThePublishedNumbers) {
  const ModelSummary k3 = summary_of("kimi-k3.config.json");
  EXPECT_EQ(k3.total.parameters, 2'779'484'478'208);
  EXPECT_EQ(k3.total.active, 104'189'614'848);
  EXPECT_EQ(k3.total.bytes, 1'559'965'606'912);  // text tensors of the release, to the byte
  EXPECT_EQ(k3.kda_state_bytes, 434'110'464);
  EXPECT_EQ(k3.latent_bytes_per_token, 27'648);
  EXPECT_EQ(k3.conv_window_bytes, 69 * 3 * 36'864 * 4);
  // With fp8 latents, half as many bytes, the state costs about 31 thousand tokens.
  EXPECT_NEAR(2 * k3.checkpoint_cost_tokens, 31'403, 1);
}

TEST_F(SummaryTest, KimiK3PartsMatchTheSplitOfTheReport) {
  const ModelSummary k3 = summary_of("kimi-k3.config.json");
  const auto billions = [&](Part part) {
    return static_cast<double>(k3.parts[static_cast<size_t>(part)].parameters) / 1e9;
  };
  EXPECT_NEAR(billions(Part::kExperts), 2722.7, 0.05);
  EXPECT_NEAR(billions(Part::kKda), 30.6, 0.05);
  EXPECT_NEAR(billions(Part::kShared), 12.2, 0.05);
  EXPECT_NEAR(billions(Part::kMla), 5.6, 0.05);
  EXPECT_NEAR(billions(Part::kLatent), 4.7, 0.05);
  EXPECT_NEAR(billions(Part::kEmbedding) + billions(Part::kLmHead), 2.35, 0.005);
}

TEST_F(SummaryTest, KimiLinearMatchesThePublishedNumbers) {
  const ModelSummary linear = summary_of("kimi-linear-48b.config.json");
  EXPECT_EQ(linear.total.parameters, 49'122'681'728);
  EXPECT_EQ(linear.total.bytes, 98'245'528'576);
  EXPECT_NEAR(static_cast<double>(linear.total.active), 3e9, 0.3e9);
  EXPECT_EQ(linear.kda_state_bytes, 41'943'040);
  EXPECT_EQ(linear.latent_bytes_per_token, 8'064);
}

TEST_F(SummaryTest, PartsAddUpToTheTotal) {
  for (const char* file : {"kimi-k3.config.json", "kimi-linear-48b.config.json"}) {
    const ModelSummary summary = summary_of(file);
    PartSummary sum;
    for (const PartSummary& part : summary.parts) {
      sum.parameters += part.parameters;
      sum.active += part.active;
      sum.bytes += part.bytes;
    }
    int64_t by_type = 0;
    for (const auto& [type, bytes] : summary.bytes_by_type) {
      by_type += bytes;
    }
    EXPECT_EQ(sum.parameters, summary.total.parameters);
    EXPECT_EQ(sum.active, summary.total.active);
    EXPECT_EQ(sum.bytes, summary.total.bytes);
    EXPECT_EQ(by_type, summary.total.bytes);
  }
}

}  // namespace
}  // namespace triax::checkpoint
