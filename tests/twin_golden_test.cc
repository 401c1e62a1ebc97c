// The golden twins: tiny random checkpoints and what the vendors' own code makes of them.
#include <algorithm>
#include <cstring>
#include <map>

#include "golden.h"

namespace triax::testing {
namespace {

// The bound is 2e-3 of the logits' root mean square at every position; float32 runs of
// other implementations are within 1e-4, so that a mistake of 1e-3 already shows.
constexpr double kLogitsBound = 2e-3;
constexpr double kInnerBound = 1e-4;

struct Twin {
  std::string name;
  TestDevice device;
};

class TwinTest : public ::testing::TestWithParam<Twin> {
 protected:
  void SetUp() override {
    if (shared_directory().empty()) {
      GTEST_SKIP() << "the golden twins are not here; set TRIAX_SHARED to their folder's parent";
    }
    const std::string directory = shared_directory() + "/data/twins/" + GetParam().name;
    engine_ = open_engine(directory, GetParam().device);
    ASSERT_NE(engine_, nullptr);
    goldens_ = std::make_unique<Goldens>(directory + "/goldens.safetensors");
  }

  void expect_logits(const std::string& set, const std::string& prompt) {
    const ConstTensorView expected = goldens_->view(set + "." + prompt + ".logits");
    const Tensor logits = all_logits(*engine_, goldens_->ids(prompt + ".ids"));
    EXPECT_LE(max_abs_difference(logits.view(), expected), kLogitsBound * rms(expected))
        << set << " " << prompt;
  }

  /// Runs prompt70 and keeps copies of all that the observer sees.
  void record(model::SequenceState& state) {
    engine_->forward_options().observer = [this](int64_t layer, std::string_view name,
                                                 ConstTensorView value) {
      Tensor copy(value.dtype(), value.shape());
      std::memcpy(copy.view().raw(), value.raw(), static_cast<size_t>(copy.bytes()));
      seen_[fmt::format("{}.{}", layer, name)] = std::move(copy);
    };
    const std::vector<int32_t> ids = goldens_->ids("prompt70.ids");
    Tensor logits = Tensor::f32({70, engine_->config().vocab});
    const Status status = engine_->prefill(state, ids, model::LogitRows::kAll, logits.view());
    engine_->forward_options().observer = {};
    ASSERT_TRUE(status.ok()) << status.message();
  }

  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<Goldens> goldens_;
  std::map<std::string, Tensor> seen_;
};

TEST_P(TwinTest, LogitsOfEveryPromptAgree) {
  for (const char* prompt :
       {"prompt1", "prompt15", "prompt16", "prompt17", "prompt70", "prompt200"}) {
    expect_logits("fp32", prompt);
  }
}

TEST_P(TwinTest, EveryLayersInputsAndOutputsAgree) {
  model::SequenceState state = std::move(*engine_->pool().create());
  record(state);
  for (int64_t layer = 0; layer < engine_->config().layer_count(); ++layer) {
    for (const char* name : {"h_attn", "attn_out", "h_mlp", "mlp_out", "out"}) {
      const auto expected = goldens_->view(fmt::format("fp32.prompt70.layer{}.{}", layer, name));
      EXPECT_LE(relative_rms(seen_.at(fmt::format("{}.{}", layer, name)).view(), expected),
                kInnerBound)
          << "layer " << layer << " " << name;
    }
  }
  EXPECT_LE(relative_rms(seen_.at("-1.pre_norm").view(), goldens_->view("fp32.prompt70.pre_norm")),
            kInnerBound);
}

TEST_P(TwinTest, ExpertChoicesAreEqualAndWeightsAgree) {
  model::SequenceState state = std::move(*engine_->pool().create());
  record(state);
  for (int64_t layer = 1; layer < engine_->config().layer_count(); ++layer) {
    const std::string prefix = fmt::format("fp32.prompt70.layer{}.", layer);
    const std::vector<int32_t> expected = goldens_->ids(prefix + "expert_ids");
    const auto* expected_weights = goldens_->view(prefix + "expert_weights").data<float>();
    const Tensor& ids = seen_.at(fmt::format("{}.expert_ids", layer));
    const Tensor& weights = seen_.at(fmt::format("{}.expert_weights", layer));
    const auto k = static_cast<size_t>(ids.size(1));
    for (size_t t = 0; t < 70; ++t) {
      std::map<int32_t, float> chosen;  // the goldens list ids in ascending order
      for (size_t j = 0; j < k; ++j) {
        chosen[ids.data<int32_t>()[t * k + j]] = weights.data<float>()[t * k + j];
      }
      size_t j = t * k;
      for (const auto& [id, weight] : chosen) {
        EXPECT_EQ(id, expected[j]) << "layer " << layer << " token " << t;
        EXPECT_NEAR(weight, expected_weights[j], 1e-4) << "layer " << layer << " token " << t;
        ++j;
      }
    }
  }
}

TEST_P(TwinTest, StateAndConvolutionWindowsOfLayer1Agree) {
  model::SequenceState state = std::move(*engine_->pool().create());
  record(state);
  const auto& kda = engine_->config().kda;
  const int64_t dim = kda.head_dim;
  // The goldens keep [head, K, V], we keep [head, V, K].
  const ConstTensorView golden = goldens_->view("fp32.prompt70.layer1.kda_state");
  Tensor expected = Tensor::f32({kda.heads, dim, dim});
  for (int64_t h = 0; h < kda.heads; ++h) {
    for (int64_t k = 0; k < dim; ++k) {
      for (int64_t v = 0; v < dim; ++v) {
        expected.data<float>()[(h * dim + v) * dim + k] =
            golden.data<float>()[(h * dim + k) * dim + v];
      }
    }
  }
  const Tensor states = to_host(*engine_, engine_->pool().kda_states(1));
  const ConstTensorView own(states.data<float>() + state.slot() * states.view().stride(0),
                            {kda.heads, dim, dim});
  EXPECT_LE(relative_rms(own, expected.view()), kInnerBound);

  const Tensor windows = to_host(*engine_, engine_->pool().conv_windows(1));
  const float* window = windows.data<float>() + state.slot() * windows.view().stride(0);
  const char* names[] = {"q", "k", "v"};
  for (int64_t part = 0; part < 3; ++part) {
    const ConstTensorView raw =
        goldens_->view(fmt::format("fp32.prompt70.layer1.conv_state_{}", names[part]));
    for (int64_t c = 0; c < kda.width(); ++c) {
      for (int64_t i = 0; i < 3; ++i) {  // their slot 0 is no longer needed
        EXPECT_NEAR(window[i * 3 * kda.width() + part * kda.width() + c],
                    raw.data<float>()[c * 4 + i + 1], 1e-4 * rms(raw));
      }
    }
  }
}

TEST_P(TwinTest, GreedyContinuationIsEqual) {
  const std::vector<int32_t> prompt = goldens_->ids("prompt17.ids");
  const std::vector<int32_t> expected = goldens_->ids("fp32.greedy17.ids");
  const ConstTensorView expected_logits = goldens_->view("fp32.greedy17.logits");
  model::SequenceState state = std::move(*engine_->pool().create());
  Tensor logits = Tensor::f32({1, engine_->config().vocab});
  ASSERT_TRUE(engine_->prefill(state, prompt, model::LogitRows::kLast, logits.view()).ok());
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto row = static_cast<int64_t>(i);
    EXPECT_LE(max_abs_difference(logits.view(), expected_logits.rows(row, row + 1)),
              kLogitsBound * rms(expected_logits));
    const int32_t id = argmax({logits.data<float>(), static_cast<size_t>(logits.size(1))});
    ASSERT_EQ(id, expected[i]) << "step " << i;
    ASSERT_TRUE(
        engine_->prefill(state, std::span(&id, 1), model::LogitRows::kLast, logits.view()).ok());
  }
}

TEST_P(TwinTest, TheVendorsRouterMistakeIsReproducedWhenAskedFor) {
  if (GetParam().name != "kimi-linear-twin") {
    GTEST_SKIP() << "K3's published code has the correct router";
  }
  engine_->forward_options().route_weights = width::RouteWeights::kBiased;
  expect_logits("fp32_hfbug", "prompt70");
}

std::vector<Twin> twins() {
  std::vector<Twin> all;
  for (const char* name : {"k3-twin-a", "kimi-linear-twin"}) {
    std::vector<TestDevice> devices = {{Backend::kReference, Isa::kPortable, 1}};
    for (Isa isa : supported_isas()) {
      devices.push_back({Backend::kCpu, isa, 2});
    }
    add_gpu(devices);
    for (const TestDevice& device : devices) {
      all.push_back({name, device});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Twins, TwinTest, ::testing::ValuesIn(twins()), [](const auto& param_info) {
  std::string name = param_info.param.name + "_" + param_info.param.device.name();
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace triax::testing
