// What a probe of the three axes reports is what the forward pass did: checked with the operations
// themselves, on the shipped model.
#include "engine/axes.h"

#include <map>
#include <string>

#include "dense/norm/norm.h"
#include "golden.h"
#include "sequence/kda/kda.h"
#include "width/router/router.h"

namespace triax::testing {
namespace {

using Before = engine::DepthMix::Before;

class AxesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    engine_ = open_engine(boot_directory(), {Backend::kCpu, best_isa(), 2});
    ASSERT_NE(engine_, nullptr);
    tokens_ = Goldens(boot_directory() + "/goldens.safetensors").ids("document.prompt_ids");
    tokens_.resize(100);
  }

  engine::Axes probe(int64_t first) {
    Result<std::unique_ptr<engine::AxesProbe>> probe =
        engine::AxesProbe::create(*engine_, tokens_, first);
    EXPECT_TRUE(probe.ok()) << probe.status().message();
    while (!(*probe)->done()) {
      EXPECT_TRUE((*probe)->advance().ok());
    }
    return (*probe)->take();
  }

  /// All that the forward pass shows of the tokens from `first` on, after the chunks of a probe.
  void watch(int64_t first, const model::Observer& observer) {
    model::SequenceState state = std::move(*engine_->pool().create());
    const std::span<const int32_t> all = tokens_;
    const auto at = static_cast<size_t>(first);
    ASSERT_TRUE(engine_->prefill(state, all.first(at), model::LogitRows::kNone, {}).ok());
    engine_->forward_options().observer = observer;
    Tensor logits = Tensor::f32({1, engine_->config().vocab});
    ASSERT_TRUE(
        engine_->prefill(state, all.subspan(at), model::LogitRows::kLast, logits.view()).ok());
    engine_->forward_options().observer = {};
  }

  /// The same by name and layer.
  std::map<std::pair<std::string, int64_t>, Tensor> watch(int64_t first) {
    std::map<std::pair<std::string, int64_t>, Tensor> seen;
    watch(first, [&](int64_t layer, std::string_view name, ConstTensorView value) {
      seen[{std::string(name), layer}] = to_host(*engine_, value);
    });
    return seen;
  }

  /// The input of a layer's sublayer after its norm, by the reference.
  Tensor normed(const Tensor& in, const Tensor& weight) {
    Tensor out = Tensor::f32({in.view().size(0), in.view().size(1)});
    EXPECT_TRUE(dense::rms_norm(reference_,
                                {in.view(), weight.view(), engine_->config().norm_eps, out.view()})
                    .ok());
    return out;
  }

  std::unique_ptr<engine::Engine> engine_;
  OwnedDevice reference_{Backend::kReference, best_isa(), 1};
  std::vector<int32_t> tokens_;
};

/// The embedding, the sums of complete blocks and the running sum, as the pass itself shows them.
class Sources {
 public:
  Sources(std::map<std::pair<std::string, int64_t>, Tensor>& seen, int64_t block)
      : seen_(seen), block_(block) {}

  /// Before the attention of `layer`, or behind the last one.
  std::vector<Tensor> before(int64_t layer) {
    std::vector<Tensor> all;
    copy(seen_.at({"h_attn", 0}), all);
    for (int64_t end = block_; end <= layer; end += block_) {
      copy(seen_.at({"out", end - 1}), all);
    }
    if (layer % block_ != 0) {
      copy(seen_.at({"out", layer - 1}), all);
    }
    return all;
  }

  /// Before its FFN: the running sum has the attention's output, too, or begins with it.
  std::vector<Tensor> within(int64_t layer) {
    std::vector<Tensor> all = before(layer);
    const ConstTensorView delta = seen_.at({"attn_out", layer}).view();
    if (layer % block_ == 0) {
      copy(seen_.at({"attn_out", layer}), all);
      return all;
    }
    auto* sum = all.back().view().data<float>();
    for (int64_t i = 0; i < delta.elements(); ++i) {
      sum[i] += delta.data<float>()[i];
    }
    return all;
  }

 private:
  static void copy(const Tensor& from, std::vector<Tensor>& to) {
    Tensor made(DType::kF32, from.view().shape());
    std::memcpy(made.view().raw(), from.view().raw(), static_cast<size_t>(made.bytes()));
    to.push_back(std::move(made));
  }

  std::map<std::pair<std::string, int64_t>, Tensor>& seen_;
  int64_t block_;
};

/// `weights` of `sources` give `mixed`, and each row of them is a distribution.
void expect_mix(const std::vector<float>& weights, const std::vector<Tensor>& sources,
                ConstTensorView mixed, const std::string& where) {
  const auto count = static_cast<int64_t>(sources.size());
  const int64_t tokens = mixed.size(0);
  ASSERT_EQ(static_cast<int64_t>(weights.size()), tokens * count) << where;
  Tensor again = Tensor::f32({tokens, mixed.size(1)});
  for (int64_t t = 0; t < tokens; ++t) {
    double sum = 0.0;
    for (int64_t d = 0; d < mixed.size(1); ++d) {
      double value = 0.0;
      for (int64_t i = 0; i < count; ++i) {
        value += static_cast<double>(weights[static_cast<size_t>(t * count + i)]) *
                 sources[static_cast<size_t>(i)].view().data<float>()[t * mixed.size(1) + d];
      }
      again.view().data<float>()[t * mixed.size(1) + d] = static_cast<float>(value);
    }
    for (int64_t i = 0; i < count; ++i) {
      const float weight = weights[static_cast<size_t>(t * count + i)];
      EXPECT_GT(weight, 0.0f) << where;
      sum += static_cast<double>(weight);
    }
    EXPECT_NEAR(sum, 1.0, static_cast<double>(count) * 1e-7) << where << " token " << t;
  }
  EXPECT_LE(relative_rms(again.view(), mixed), 2e-6) << where;
}

// 100 tokens at once take the mix as a whole, a probe's 36 the two phases: both are checked.
TEST_F(AxesTest, WeightsOverDepthGiveTheInputOfEverySublayer) {
  for (const int64_t first : {0, 64}) {
    auto seen = watch(first);
    Sources sources(seen, engine_->config().attn_res_block);
    const int64_t layers = engine_->config().layer_count();
    const auto weights = [&](const char* name, int64_t layer) {
      const ConstTensorView view = seen.at({name, layer}).view();
      return std::vector<float>(view.data<float>(), view.data<float>() + view.elements());
    };
    for (int64_t layer = 0; layer < layers; ++layer) {
      const std::string where = fmt::format("layer {} from {}", layer, first);
      expect_mix(weights("attn_mix", layer), sources.before(layer),
                 seen.at({"h_attn", layer}).view(), where + ", attention");
      expect_mix(weights("mlp_mix", layer), sources.within(layer), seen.at({"h_mlp", layer}).view(),
                 where + ", FFN");
    }
    const std::vector<float> last = weights("output_mix", -1);
    const std::vector<Tensor> ends = sources.before(layers);
    const int64_t row = seen.at({"out", 0}).view().size(0) - 1;
    std::vector<Tensor> rows;
    for (const Tensor& source : ends) {
      Tensor copy = Tensor::f32({1, source.view().size(1)});
      std::memcpy(copy.view().raw(), source.view().rows(row, row + 1).raw(),
                  static_cast<size_t>(copy.bytes()));
      rows.push_back(std::move(copy));
    }
    const std::vector<float> one(last.end() - static_cast<std::ptrdiff_t>(ends.size()), last.end());
    expect_mix(one, rows, seen.at({"pre_norm", -1}).view(), "output");
  }
}

TEST_F(AxesTest, AProbeKeepsWhatThePassShows) {
  constexpr int64_t kFirst = 64;  // on the grid of chunks, so that both passes have the same bits
  const engine::Axes axes = probe(kFirst);
  auto seen = watch(kFirst);
  EXPECT_EQ(axes.first, kFirst);
  EXPECT_EQ(axes.tokens, std::vector<int32_t>(tokens_.begin() + kFirst, tokens_.end()));
  const auto same = [&](const std::vector<float>& kept, const char* name, int64_t layer) {
    const ConstTensorView view = seen.at({name, layer}).view();
    ASSERT_EQ(static_cast<int64_t>(kept.size()), view.elements()) << name << layer;
    EXPECT_TRUE(std::equal(kept.begin(), kept.end(), view.data<float>())) << name << layer;
  };
  const auto& config = engine_->config();
  ASSERT_EQ(static_cast<int64_t>(axes.depth.size()), 2 * config.layer_count() + 1);
  for (const engine::DepthMix& mix : axes.depth) {
    same(mix.weights,
         mix.before == Before::kAttention ? "attn_mix"
         : mix.before == Before::kFfn     ? "mlp_mix"
                                          : "output_mix",
         mix.layer);
  }
  ASSERT_EQ(static_cast<int64_t>(axes.width.size()), config.layer_count() - 1);  // one is dense
  for (const engine::WidthRoute& route : axes.width) {
    same(route.weights, "expert_weights", route.layer);
  }
  ASSERT_EQ(axes.sequence.size(), 9u);
  for (const engine::SequenceDecay& decay : axes.sequence) {
    const ConstTensorView g = seen.at({"log_decay", decay.layer}).view();
    const auto channels = static_cast<int64_t>(decay.rate.size());
    ASSERT_EQ(g.elements(), channels * 36);
    for (int64_t c = 0; c < channels; ++c) {
      double sum = 0.0;
      for (int64_t t = 0; t < 36; ++t) {
        sum -= static_cast<double>(g.data<float>()[t * channels + c]);
      }
      EXPECT_NEAR(decay.rate[static_cast<size_t>(c)], sum / 36, 1e-5 * (1.0 + sum / 36));
    }
  }
}

TEST_F(AxesTest, ExpertsAreThoseOfTheRouter) {
  const engine::Axes axes = probe(0);
  const auto& config = engine_->config();
  auto seen = watch(0);
  int64_t differ = 0;
  for (const engine::WidthRoute& route : axes.width) {
    const model::LayerWeights& layer =
        engine_->model().weights().layers[static_cast<size_t>(route.layer)];
    const Tensor in = normed(seen.at({"h_mlp", route.layer}), layer.ffn_norm);
    Tensor ids(DType::kI32, std::initializer_list<int64_t>{100, config.moe.top_k});
    Tensor weights = Tensor::f32({100, config.moe.top_k});
    ASSERT_TRUE(width::route(reference_, {.in = in.view(),
                                          .gate = layer.moe.router,
                                          .bias = layer.moe.router_bias.view(),
                                          .renormalize = config.moe.renormalize,
                                          .scaling_factor = config.moe.scaling,
                                          .ids = ids.view(),
                                          .weights = weights.view()})
                    .ok());
    for (int64_t i = 0; i < ids.view().elements(); ++i) {
      differ += ids.view().data<int32_t>()[i] == route.ids[static_cast<size_t>(i)] ? 0 : 1;
      if (ids.view().data<int32_t>()[i] == route.ids[static_cast<size_t>(i)]) {
        EXPECT_NEAR(weights.view().data<float>()[i], route.weights[static_cast<size_t>(i)], 1e-3);
      }
    }
  }
  // Float32 against double, and other chunks: where two experts are equally good they may swap.
  EXPECT_LE(differ, 4) << "of " << axes.width.size() * 100 * static_cast<size_t>(config.moe.top_k);
}

// With beta = 0 the recurrence is S <- Diag(exp(g)) S alone: a state of ones shows exp(g).
TEST_F(AxesTest, DecaysAreThoseOfTheRecurrence) {
  const auto& kda = engine_->config().kda;
  const auto& layer = engine_->model().weights().layers[0];
  const auto row = static_cast<int64_t>(tokens_.size()) - 1;
  auto seen = watch(0);
  const Tensor in = normed(seen.at({"h_attn", 0}), layer.attn_norm);
  const auto linear = [&](ConstTensorView x, const MatrixView& weight) {
    Tensor out = Tensor::f32({x.size(0), weight.rows});
    const dense::Product product{x, weight, out.view()};
    EXPECT_TRUE(dense::linear(reference_, std::span(&product, 1), dense::Activations::kF32).ok());
    return out;
  };
  const Tensor low = linear(in.view().rows(row, row + 1), layer.kda.f_a);
  const Tensor logit = linear(low.view(), layer.kda.f_b);
  Tensor zeros = Tensor::f32({1, kda.heads, kda.head_dim});
  Tensor out = Tensor::f32({1, kda.heads, kda.head_dim});
  Tensor beta = Tensor::f32({1, kda.heads});
  Tensor states = Tensor::f32({1, kda.heads, kda.head_dim, kda.head_dim});
  std::fill_n(zeros.view().data<float>(), zeros.view().elements(), 0.0f);
  std::fill_n(beta.view().data<float>(), beta.view().elements(), -1e9f);
  std::fill_n(states.view().data<float>(), states.view().elements(), 1.0f);
  const int64_t cu_seqlens[] = {0, 1};
  const int64_t starts[] = {0};
  const int32_t slots[] = {0};
  sequence::KdaArgs args;
  args.lower_bound = kda.lower_bound;
  args.q = args.k = args.v = zeros.view();
  args.decay_logit = logit.view().split_last(kda.heads, kda.head_dim);
  args.beta_logit = beta.view();
  args.a_log = layer.kda.a_log.view();
  args.dt_bias = layer.kda.dt_bias.view();
  args.cu_seqlens = cu_seqlens;
  args.starts = starts;
  args.slots = slots;
  args.states = states.view();
  args.out = out.view();
  const Status ran = sequence::kda(reference_, args);
  ASSERT_TRUE(ran.ok()) << ran.message();
  const ConstTensorView g = seen.at({"log_decay", 0}).view();
  for (int64_t h = 0; h < kda.heads; ++h) {
    for (int64_t c = 0; c < kda.head_dim; ++c) {
      const float decay = states.view().data<float>()[h * kda.head_dim * kda.head_dim + c];
      const float shown = g.data<float>()[(row * kda.heads + h) * kda.head_dim + c];
      EXPECT_NEAR(decay, std::exp(shown), 1e-5) << "head " << h << " channel " << c;
    }
  }
}

TEST_F(AxesTest, ItRefusesWhatItCannotWatch) {
  EXPECT_FALSE(engine::AxesProbe::create(*engine_, {}, 0).ok());
  EXPECT_FALSE(engine::AxesProbe::create(*engine_, tokens_, 100).ok());
  EXPECT_FALSE(engine::AxesProbe::create(*engine_, tokens_, -1).ok());
  EXPECT_FALSE(engine::AxesProbe::create(*engine_, std::vector<int32_t>(5000, 7), 0).ok());
  Result<std::unique_ptr<engine::AxesProbe>> bad =
      engine::AxesProbe::create(*engine_, {7, engine_->config().vocab > 0 ? -3 : 0}, 0);
  ASSERT_TRUE(bad.ok());
  EXPECT_FALSE((*bad)->advance().ok());
}

TEST(HalfLife, IsWhereHalfIsLeft) {
  EXPECT_DOUBLE_EQ(engine::SequenceDecay::half_life(std::log(2.0)), 1.0);
  EXPECT_DOUBLE_EQ(engine::SequenceDecay::half_life(std::log(2.0) / 1000), 1000.0);
  EXPECT_TRUE(std::isinf(engine::SequenceDecay::half_life(0.0)));
}

}  // namespace
}  // namespace triax::testing
