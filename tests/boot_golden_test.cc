// The model that ships, against an independent reference: logits, states, text, held-out loss.
#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "engine/evaluate.h"
#include "golden.h"

namespace triax::testing {
namespace {

class BootTest : public ::testing::TestWithParam<TestDevice> {
 protected:
  void SetUp() override {
    engine_ = open_engine(boot_directory(), GetParam());
    ASSERT_NE(engine_, nullptr);
  }

  std::unique_ptr<engine::Engine> engine_;
  Goldens goldens_{boot_directory() + "/goldens.safetensors"};
};

TEST_P(BootTest, LogitsStatesAndResidualsAgree) {
  for (const std::string set : {"plain", "chat", "document"}) {
    const std::vector<int32_t> ids = goldens_.ids(set + ".prompt_ids");
    const ConstTensorView residual = goldens_.view(set + ".residual_last");
    std::vector<double> errors;
    engine_->forward_options().observer = [&](int64_t layer, std::string_view name,
                                              ConstTensorView value) {
      if (name == "out") {
        errors.push_back(relative_rms(value.rows(value.size(0) - 1, value.size(0)),
                                      residual.rows(layer, layer + 1)));
      }
    };
    model::SequenceState state = std::move(*engine_->pool().create());
    const auto count = static_cast<int64_t>(ids.size());
    Tensor logits = Tensor::f32({count, engine_->config().vocab});
    ASSERT_TRUE(engine_->prefill(state, ids, model::LogitRows::kAll, logits.view()).ok());
    engine_->forward_options().observer = {};
    const ConstTensorView expected = goldens_.view(set + ".logits_last8");
    EXPECT_LE(max_abs_difference(logits.view().rows(count - 8, count), expected),
              2e-3 * rms(expected))
        << set;
    // The last observation of each layer belongs to the last chunk.
    const auto layers = static_cast<size_t>(engine_->config().layer_count());
    for (size_t i = errors.size() - layers; i < errors.size(); ++i) {
      EXPECT_LE(errors[i], 1e-3) << set << " layer " << i % layers;
    }
  }
}

TEST_P(BootTest, GreedyTextIsEqualWhereTheMarginIsNotTiny) {
  for (const std::string set : {"plain", "chat"}) {
    const std::vector<int32_t> expected = goldens_.ids(set + ".greedy_ids");
    const auto* margin = goldens_.view(set + ".greedy_margin").data<float>();
    model::SequenceState state = std::move(*engine_->pool().create());
    Tensor logits = Tensor::f32({1, engine_->config().vocab});
    const std::vector<int32_t> prompt = goldens_.ids(set + ".prompt_ids");
    ASSERT_TRUE(engine_->prefill(state, prompt, model::LogitRows::kLast, logits.view()).ok());
    for (size_t i = 0; i < expected.size(); ++i) {
      const int32_t id = argmax({logits.data<float>(), static_cast<size_t>(logits.size(1))});
      EXPECT_TRUE(id == expected[i] || margin[i] < 1e-3) << set << " step " << i;
      ASSERT_TRUE(
          engine_
              ->prefill(state, std::span(&expected[i], 1), model::LogitRows::kLast, logits.view())
              .ok());
    }
  }
}

std::vector<TestDevice> boot_devices() {
  std::vector<TestDevice> devices = {{Backend::kReference, Isa::kPortable, 2}};
  for (Isa isa : supported_isas()) {
    devices.push_back({Backend::kCpu, isa, 2});
  }
  add_gpu(devices);
  return devices;
}

INSTANTIATE_TEST_SUITE_P(Devices, BootTest, ::testing::ValuesIn(boot_devices()),
                         [](const auto& param_info) { return param_info.param.name(); });

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Nats of the first `windows` windows of the held-out text, beside the published ones.
void expect_heldout_loss(const TestDevice& device, size_t windows) {
  const std::unique_ptr<engine::Engine> engine = open_engine(boot_directory(), device);
  ASSERT_NE(engine, nullptr);
  const std::vector<int32_t> ids =
      engine->tokenizer()->encode(read_file(boot_directory() + "/heldout.txt"));
  const auto published = nlohmann::json::parse(read_file(boot_directory() + "/heldout.json"));
  ASSERT_EQ(ids.size(), published["tokens"].get<size_t>());
  const size_t count = std::min(ids.size(), windows * 2048 + 1);
  const Result<engine::EvalResult> result =
      engine::evaluate(*engine, std::span(ids).first(count), {});
  ASSERT_TRUE(result.ok()) << result.status().message();
  ASSERT_EQ(result->windows.size(), windows);
  for (size_t i = 0; i < windows; ++i) {
    EXPECT_NEAR(result->windows[i].nats / static_cast<double>(result->windows[i].scored),
                published["windows"][i][2].get<double>() / published["windows"][i][1].get<double>(),
                0.002)
        << "window " << i;
  }
  if (windows == published["windows"].size()) {
    EXPECT_NEAR(result->nats_per_token(), published["nats_per_token"].get<double>(), 0.002);
  }
}

TEST(BootLossTest, TheWholeHeldoutTextHasThePublishedLossOnTheCpu) {
  expect_heldout_loss({Backend::kCpu, best_isa(), 2}, 25);
}

TEST(BootLossTest, TheWholeHeldoutTextHasThePublishedLossOnAGpu) {
  if (test_queue() == nullptr) {
    GTEST_SKIP() << "no GPU here";
  }
  expect_heldout_loss({Backend::kCuda, best_isa(), 1}, 25);
}

TEST(BootLossTest, TheFirstWindowHasThePublishedLossOnTheReference) {
  expect_heldout_loss({Backend::kReference, Isa::kPortable, 2}, 1);
}

}  // namespace
}  // namespace triax::testing
