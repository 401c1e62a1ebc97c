// triax bench ops: each operation of a shape by itself, beside the limit that binds it.
#include <fmt/core.h>

#include <functional>

#include "app/bench.h"
#include "base/rng.h"
#include "dense/norm/norm.h"
#include "depth/attn_res/attn_res.h"
#include "model/shapes.h"
#include "sequence/kda/kda.h"
#include "sequence/mla/mla.h"
#include "sequence/short_conv/short_conv.h"
#include "width/latent_moe/latent_moe.h"

namespace triax::app {
namespace {

/// What one call reads and writes at least, and computes.
struct Work {
  double bytes = 0.0;
  double flops = 0.0;
};

/// Runs operations of one shape on random data.
class OpsBench {
 public:
  OpsBench(const BenchFlags& flags, const checkpoint::ModelConfig& config, const Device& device)
      : flags_(flags), config_(config), device_(device), peaks_(measure_peaks(device)) {}

  void header() const {
    if (!flags_.json) {
      fmt::print("{}, {} threads, {}: streaming read {:.1f} GB/s, fp32 FMA {:.1f} GFLOP/s\n",
                 cpu_name(), device_.threads->threads(), isa_name(device_.isa),
                 peaks_.read_bytes_per_second / 1e9, peaks_.fma_flops_per_second / 1e9);
      fmt::print("{:<34} {:>11} {:>10} {:>8} {:>11} {:>8}\n", "operation", "time", "GB/s",
                 "of read", "GFLOP/s", "of FMA");
    }
  }

  Status run(const std::string& name, const Work& work, const std::function<Status()>& operation) {
    if (Status s = operation(); !s.ok()) {
      return s;
    }
    std::vector<double> seconds;
    const double begin = now_seconds();
    while (static_cast<int64_t>(seconds.size()) < flags_.repeat || now_seconds() - begin < 0.2) {
      const double start = now_seconds();
      if (Status s = operation(); !s.ok()) {
        return s;
      }
      seconds.push_back(now_seconds() - start);
    }
    print(name, work, Samples(seconds), seconds.size());
    return {};
  }

  Tensor random(std::initializer_list<int64_t> shape, double mean = 0.0) {
    Tensor tensor = Tensor::f32(shape);
    for (int64_t i = 0; i < tensor.view().elements(); ++i) {
      tensor.data<float>()[i] = static_cast<float>(mean + rng_.normal());
    }
    return tensor;
  }

  Status linear(int64_t tokens);
  Status norm(int64_t tokens);
  Status kda(int64_t tokens);
  Status mla(int64_t tokens, int64_t context);
  Status attn_res(int64_t tokens);
  Status latent_moe(int64_t tokens, const model::ModelWeights& weights);

 private:
  void print(const std::string& name, const Work& work, const Samples& samples,
             size_t count) const {
    const double bandwidth = work.bytes / samples.median;
    const double rate = work.flops / samples.median;
    if (flags_.json) {
      nlohmann::json line = bench_context(flags_, peaks_, device_);
      line["case"] = name;
      line["samples"] = count;
      line["seconds_median"] = samples.median;
      line["seconds_p10"] = samples.p10;
      line["seconds_p90"] = samples.p90;
      line["bytes"] = work.bytes;
      line["flops"] = work.flops;
      line["share_of_read"] = bandwidth / peaks_.read_bytes_per_second;
      line["share_of_fma"] = rate / peaks_.fma_flops_per_second;
      fmt::print("{}\n", line.dump());
    } else {
      fmt::print("{:<34} {:>8.1f} us {:>10.2f} {:>7.1f}% {:>11.2f} {:>7.1f}%\n", name,
                 samples.median * 1e6, bandwidth / 1e9,
                 100.0 * bandwidth / peaks_.read_bytes_per_second, rate / 1e9,
                 100.0 * rate / peaks_.fma_flops_per_second);
    }
    std::fflush(stdout);
  }

  const BenchFlags& flags_;
  const checkpoint::ModelConfig& config_;
  const Device& device_;
  MachinePeaks peaks_;
  Rng rng_{1};
};

Status OpsBench::linear(int64_t tokens) {
  const Result<MatrixFormat> format = parse_matrix_format(flags_.dense);
  const Result<engine::EngineOptions> options = flags_.engine.options();
  if (!format.ok() || !options.ok()) {
    return format.ok() ? options.status() : format.status();
  }
  const int64_t rows = config_.kda.width();
  const OwnedMatrix weight = quantize_matrix(*format, random({rows, config_.hidden}).view());
  const Tensor in = random({tokens, config_.hidden});
  Tensor out = Tensor::f32({tokens, rows});
  const Work work{static_cast<double>(weight.view.bytes()),
                  2.0 * static_cast<double>(tokens * rows * config_.hidden)};
  return run(fmt::format("linear {} [{} x {}] T={}", flags_.dense, rows, config_.hidden, tokens),
             work, [&] {
               return dense::linear(device_, {in.view(), weight.view, out.view()}, options->dense);
             });
}

Status OpsBench::norm(int64_t tokens) {
  const Tensor in = random({tokens, config_.hidden});
  const Tensor weight = random({config_.hidden}, 1.0);
  Tensor out = Tensor::f32({tokens, config_.hidden});
  const auto elements = static_cast<double>(tokens * config_.hidden);
  return run(fmt::format("rms_norm T={}", tokens), {8.0 * elements, 4.0 * elements}, [&] {
    return dense::rms_norm(device_, {in.view(), weight.view(), config_.norm_eps, out.view()});
  });
}

Status OpsBench::kda(int64_t tokens) {
  const int64_t heads = config_.kda.heads;
  const int64_t dim = config_.kda.head_dim;
  const Tensor q = random({tokens, heads, dim});
  const Tensor k = random({tokens, heads, dim});
  const Tensor v = random({tokens, heads, dim});
  const Tensor z = random({tokens, heads, dim}, -4.0);
  const Tensor beta = random({tokens, heads});
  const Tensor a_log = random({heads});
  const Tensor dt_bias = random({heads, dim});
  Tensor states = Tensor::f32({1, heads, dim, dim});
  Tensor out = Tensor::f32({tokens, heads, dim});
  const int64_t cu[] = {0, tokens};
  const int64_t starts[] = {0};
  const int32_t slots[] = {0};
  sequence::KdaArgs args;
  args.gate = config_.kda.gate == checkpoint::GateKind::kBounded ? sequence::DecayGate::kBounded
                                                                 : sequence::DecayGate::kSoftplus;
  args.q = q.view();
  args.k = k.view();
  args.v = v.view();
  args.decay_logit = z.view();
  args.beta_logit = beta.view();
  args.a_log = a_log.view();
  args.dt_bias = dt_bias.view();
  args.cu_seqlens = cu;
  args.starts = starts;
  args.slots = slots;
  args.states = states.view();
  args.out = out.view();
  // Decode: the state once in and once out. Prefill: the chunk form's count, C = 64 (spec 2.2).
  const auto h = static_cast<double>(heads);
  const auto d = static_cast<double>(dim);
  constexpr double kC = 64.0;
  const double chunks = static_cast<double>(tokens) / kC;
  const Work work =
      tokens == 1 ? Work{8.0 * h * d * d, 7.0 * h * d * d}
                  : Work{static_cast<double>(tokens) * h * 5.0 * d * 4.0,
                         chunks * h * (12.0 * kC * kC * kC + 8.0 * kC * kC * d + 6.0 * kC * d * d)};
  return run(fmt::format("kda H={} T={}", heads, tokens), work,
             [&] { return sequence::kda(device_, args); });
}

Status OpsBench::mla(int64_t tokens, int64_t context) {
  const auto& mla = config_.mla;
  const Result<MatrixFormat> format = parse_matrix_format(flags_.dense);
  if (!format.ok()) {
    return format.status();
  }
  const OwnedMatrix kv_b = quantize_matrix(
      *format, random({mla.heads * (mla.nope_dim + mla.value_dim), mla.kv_lora}).view());
  const int64_t pages = (context + tokens + sequence::kLatentPage - 1) / sequence::kLatentPage;
  Tensor pool = random({pages, sequence::kLatentPage, mla.latent_dim()});
  std::vector<int32_t> table(static_cast<size_t>(pages));
  for (size_t i = 0; i < table.size(); ++i) {
    table[i] = static_cast<int32_t>(i);
  }
  const std::span<const int32_t> tables[] = {table};
  const Tensor q = random({tokens, mla.heads, mla.query_dim()});
  Tensor out = Tensor::f32({tokens, mla.heads, mla.value_dim});
  const int64_t cu[] = {0, tokens};
  const int64_t starts[] = {context};
  sequence::MlaArgs args;
  args.q = q.view();
  args.kv_b = kv_b.view;
  args.value_dim = mla.value_dim;
  args.scale = 0.072f;
  args.cu_seqlens = cu;
  args.starts = starts;
  args.pages = {pool.view(), tables};
  args.out = out.view();
  const auto t = static_cast<double>(tokens);
  const double pairs = t * static_cast<double>(context) + t * (t + 1.0) / 2.0;
  const auto heads = static_cast<double>(mla.heads);
  const double latents = 4.0 * static_cast<double>((context + tokens) * mla.latent_dim());
  const double per_pair = tokens == 1
                              ? 2.0 * heads * static_cast<double>(mla.latent_dim() + mla.kv_lora)
                              : 2.0 * heads * static_cast<double>(mla.query_dim() + mla.value_dim);
  return run(fmt::format("mla H={} T={} after {}", mla.heads, tokens, context),
             {latents + static_cast<double>(kv_b.view.bytes()), pairs * per_pair},
             [&] { return sequence::mla(device_, args); });
}

Status OpsBench::attn_res(int64_t tokens) {
  constexpr int64_t kSources = 9;
  std::vector<Tensor> sources;
  std::vector<ConstTensorView> views;
  for (int64_t i = 0; i < kSources; ++i) {
    sources.push_back(random({tokens, config_.hidden}));
    views.push_back(sources.back().view());
  }
  const Tensor query = random({config_.hidden});
  Tensor out = Tensor::f32({tokens, config_.hidden});
  const auto elements = static_cast<double>(tokens * config_.hidden);
  return run(fmt::format("attn_res of {} sources T={}", kSources, tokens),
             {4.0 * elements * (kSources + 1), 6.0 * elements * kSources}, [&] {
               return depth::attn_res(device_, {views, query.view(), 1e-5f, out.view()});
             });
}

Status OpsBench::latent_moe(int64_t tokens, const model::ModelWeights& weights) {
  const Result<engine::EngineOptions> options = flags_.engine.options();
  if (!options.ok()) {
    return options.status();
  }
  const auto& moe = config_.moe;
  const model::MoeWeights& layer = weights.layers.back().moe;
  const Tensor in = random({tokens, config_.hidden});
  Tensor out = Tensor::f32({tokens, config_.hidden});
  Tensor ids(DType::kI32, {tokens, moe.top_k});
  Tensor route_weights = Tensor::f32({tokens, moe.top_k});
  const width::LatentMoeArgs args{.weights = layer.view(),
                                  .activation = {},
                                  .scaling_factor = moe.scaling,
                                  .expert_precision = options->experts,
                                  .dense_precision = options->dense,
                                  .in = in.view(),
                                  .out = out.view(),
                                  .ids = ids.view(),
                                  .route_weights = route_weights.view()};
  const auto visits = static_cast<double>(tokens * moe.top_k);
  const auto& expert = layer.experts.front();
  const auto expert_bytes =
      static_cast<double>(expert.gate.bytes() + expert.up.bytes() + expert.down.bytes());
  const double hit = std::min(visits, static_cast<double>(moe.experts));
  double dense = 0.0;
  double dense_elements = 0.0;
  for (const MatrixView& m : {layer.router, layer.latent_down, layer.latent_up, layer.shared.gate,
                              layer.shared.up, layer.shared.down}) {
    dense += m.empty() ? 0.0 : static_cast<double>(m.bytes());
    dense_elements += static_cast<double>(m.rows * m.cols);
  }
  const double flops =
      2.0 * (visits * 3.0 * static_cast<double>(expert.gate.rows * expert.gate.cols) +
             static_cast<double>(tokens) * dense_elements);
  return run(fmt::format("latent_moe {} of {} T={}", moe.top_k, moe.experts, tokens),
             {hit * expert_bytes + dense, flops}, [&] { return width::latent_moe(device_, args); });
}

/// The last layer of the shape alone, with its experts.
Result<model::ModelWeights> one_moe_layer(const checkpoint::ModelConfig& config,
                                          const BenchFlags& flags) {
  const Result<MatrixFormat> experts = parse_matrix_format(flags.experts);
  const Result<MatrixFormat> dense = parse_matrix_format(flags.dense);
  if (!experts.ok() || !dense.ok()) {
    return experts.ok() ? dense.status() : experts.status();
  }
  checkpoint::ModelConfig one = config;
  one.layers.resize(1);
  one.moe.first_dense = 0;
  one.vocab = 32;
  return model::random_weights(one, {*experts, *dense, 1, {}, nullptr});
}

}  // namespace

int bench_ops(const BenchFlags& flags) {
  const Result<checkpoint::ModelConfig> config =
      model::named_shape(flags.shape, {flags.layers, flags.vocab});
  const Result<engine::EngineOptions> options = flags.engine.options();
  if (!config.ok() || !options.ok()) {
    return fail(config.ok() ? options.status() : config.status());
  }
  if (options->backend == Backend::kCuda) {
    return fail(
        Status::unavailable("bench ops measures the CPU; a GPU's kernels have benchmarks of their "
                            "own (make gpu-test)"));
  }
  const OwnedDevice device(options->backend, options->isa, options->threads);
  const Result<model::ModelWeights> weights = one_moe_layer(*config, flags);
  if (!weights.ok()) {
    return fail(weights.status());
  }
  OpsBench bench(flags, *config, device);
  bench.header();
  std::vector<int64_t> lengths = {1};
  lengths.insert(lengths.end(), flags.prefill.begin(), flags.prefill.end());
  Status status;
  const auto step = [&](Status next) {
    status = status.ok() ? std::move(next) : std::move(status);
  };
  for (const int64_t tokens : lengths) {
    step(bench.norm(tokens));
    step(bench.linear(tokens));
    step(bench.kda(tokens));
    step(bench.attn_res(tokens));
    step(bench.latent_moe(tokens, *weights));
    if (tokens > 1) {
      step(bench.mla(tokens, 0));
    }
  }
  for (const int64_t context : flags.decode_after) {
    step(bench.mla(1, context));
  }
  return status.ok() ? kExitOk : fail(status);
}

}  // namespace triax::app
