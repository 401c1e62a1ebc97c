// The fast ways of a GPU against its exact ones, in a model of true width: tensor-core products,
// fused KDA, attention over bf16 latents, experts in MXFP4, replayed decode steps.
#include <functional>
#include <map>

#include "base/rng.h"
#include "checkpoint/shapes.h"
#include "golden.h"

namespace triax::testing {
namespace {

// Rounding of operands to bf16 (2^-9 each) through four layers of random weights.
constexpr double kBf16Bound = 3e-2;

class GpuModelTest : public ::testing::Test {
 protected:
  /// Two engines for all tests: making the weights takes seconds.
  static void SetUpTestSuite() {
    if (test_queue() != nullptr) {
      exact_ = make(dense::Activations::kF32);
      fast_ = make(dense::Activations::kBf16);
    }
  }
  static void TearDownTestSuite() {
    exact_.reset();
    fast_.reset();
  }

  void SetUp() override {
    if (test_queue() == nullptr) {
      GTEST_SKIP() << "no GPU here";
    }
    ASSERT_NE(exact_, nullptr);
    ASSERT_NE(fast_, nullptr);
    for (engine::Engine* engine : {exact_.get(), fast_.get()}) {
      engine->forward_options().graphs = &graphs_[engine];
    }
    Rng rng(5);
    for (int i = 0; i < 330; ++i) {
      ids_.push_back(static_cast<int32_t>(rng.below(1024)));
    }
  }
  void TearDown() override {
    for (const std::unique_ptr<engine::Engine>& engine : {std::cref(exact_), std::cref(fast_)}) {
      if (engine != nullptr) {
        engine->forward_options().graphs = nullptr;
      }
    }
  }

  /// Four layers of Kimi Linear 48B: three KDA, one MLA; the first FFN dense. Every token visits
  /// every expert, so that no choice flips by rounding and hides what is compared.
  static std::unique_ptr<engine::Engine> make(dense::Activations activations) {
    Result<checkpoint::ModelConfig> config =
        checkpoint::named_shape("kimi-linear-48b", {.layers = 4, .vocab = 1024});
    EXPECT_TRUE(config.ok());
    config->moe.experts = config->moe.top_k;
    Result<model::ModelWeights> weights = model::random_weights(*config, {});
    EXPECT_TRUE(weights.ok()) << weights.status().message();
    engine::EngineOptions options;
    options.backend = Backend::kCuda;
    options.context_tokens = 2048;
    options.experts = options.dense = activations;
    Result<std::unique_ptr<engine::Engine>> engine =
        engine::Engine::create(std::move(*weights), options);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    return engine.ok() ? std::move(*engine) : nullptr;
  }

  std::span<const int32_t> ids(size_t begin, size_t end) const {
    return std::span(ids_).subspan(begin, end - begin);
  }

  /// Three sequences prefilled to 300, 65 and 1 tokens, then `steps` decode steps of all together.
  Tensor decode(engine::Engine& engine, int64_t steps) {
    std::vector<model::SequenceState> states;
    for (const size_t length : {size_t{300}, size_t{65}, size_t{1}}) {
      states.push_back(std::move(*engine.pool().create()));
      const Status status =
          engine.prefill(states.back(), ids(0, length), model::LogitRows::kNone, {});
      EXPECT_TRUE(status.ok()) << status.message();
    }
    Tensor logits = Tensor::f32({steps * 3, engine.config().vocab});
    for (int64_t i = 0; i < steps; ++i) {
      std::vector<model::SequenceInput> batch;
      for (size_t n = 0; n < 3; ++n) {
        const size_t at = 300 + static_cast<size_t>(i);
        batch.push_back({&states[n], ids(at, at + 1), model::LogitRows::kLast});
      }
      const Status status =
          engine.model().forward(engine.device(), engine.pool(), batch, engine.forward_options(),
                                 logits.view().rows(3 * i, 3 * i + 3));
      EXPECT_TRUE(status.ok()) << status.message();
    }
    return logits;
  }

  static inline std::unique_ptr<engine::Engine> exact_, fast_;
  std::map<engine::Engine*, model::DecodeGraphs> graphs_;
  std::vector<int32_t> ids_;
};

TEST_F(GpuModelTest, PrefillOnTensorCoresIsWithinItsBound) {
  for (const size_t length : {size_t{3}, size_t{70}, size_t{330}}) {
    const Tensor exact = all_logits(*exact_, ids(0, length));
    const Tensor fast = all_logits(*fast_, ids(0, length));
    EXPECT_LE(relative_rms(fast.view(), exact.view()), kBf16Bound) << length;
    RecordProperty("relative_rms_" + std::to_string(length),
                   fmt::format("{:.2e}", relative_rms(fast.view(), exact.view())));
  }
}

TEST_F(GpuModelTest, DecodeStepsAreWithinTheirBound) {
  EXPECT_LE(relative_rms(decode(*fast_, 20).view(), decode(*exact_, 20).view()), kBf16Bound);
}

TEST_F(GpuModelTest, ReplayedStepsHaveTheBitsOfLaunchedOnes) {
  for (engine::Engine* engine : {exact_.get(), fast_.get()}) {
    const Tensor replayed = decode(*engine, 20);
    engine->forward_options().graphs = nullptr;
    EXPECT_TRUE(bitwise_equal(decode(*engine, 20).view(), replayed.view()));
  }
}

TEST_F(GpuModelTest, TwoRunsGiveTheSameBits) {
  const Tensor once = all_logits(*fast_, ids(0, 330));
  EXPECT_TRUE(bitwise_equal(all_logits(*fast_, ids(0, 330)).view(), once.view()));
}

}  // namespace
}  // namespace triax::testing
