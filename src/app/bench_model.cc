// triax bench model: random weights of a shape, decode and prefill, shares of the machine's limits.
#include <fmt/chrono.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <ctime>

#include "app/bench.h"
#include "base/rng.h"
#include "device/machine_peak.h"
#include "model/footprint.h"
#include "model/shapes.h"

namespace triax::app {

Samples::Samples(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto at = [&](double quantile) {
    return values[static_cast<size_t>(quantile * static_cast<double>(values.size() - 1) + 0.5)];
  };
  median = at(0.5);
  p10 = at(0.1);
  p90 = at(0.9);
}

Result<MatrixFormat> parse_matrix_format(const std::string& name) {
  for (MatrixFormat format : {MatrixFormat::kF32, MatrixFormat::kF16, MatrixFormat::kBf16,
                              MatrixFormat::kMxfp4, MatrixFormat::kInt8}) {
    if (matrix_format_name(format) == name) {
      return format;
    }
  }
  return Status::invalid_argument(fmt::format("'{}' is no matrix format", name));
}

nlohmann::json bench_context(const BenchFlags& flags, const MachinePeaks& peaks,
                             const Device& device) {
  return {{"date", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)))},
          {"commit", TRIAX_COMMIT},
          {"machine", cpu_name()},
          {"threads", device.threads->threads()},
          {"isa", isa_name(device.isa)},
          {"shape", flags.shape},
          {"layers", flags.layers},
          {"vocab", flags.vocab},
          {"experts", flags.experts},
          {"dense", flags.dense},
          {"activations", flags.engine.activations},
          {"read_bytes_per_second", peaks.read_bytes_per_second},
          {"fma_flops_per_second", peaks.fma_flops_per_second}};
}

std::vector<int32_t> random_tokens(int64_t count, int64_t vocab, uint64_t seed) {
  Rng rng(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) {
    token = static_cast<int32_t>(rng.below(static_cast<uint64_t>(vocab)));
  }
  return tokens;
}

namespace {

/// One measured case and where its time went.
struct Case {
  std::string name;
  double tokens = 0.0;  // of one sample
  double bytes = 0.0;   // that one token must read (decode)
  double flops = 0.0;   // of one sample (prefill)
  std::vector<double> seconds;
  model::OpTimes times;
};

class ModelBench {
 public:
  ModelBench(const BenchFlags& flags, engine::Engine& engine) : flags_(flags), engine_(engine) {}

  Status prefill(int64_t tokens, Case& out) {
    out.name = fmt::format("prefill {}", tokens);
    out.tokens = static_cast<double>(tokens);
    out.flops = model::prefill_flops(engine_.model().weights(), tokens);
    for (int64_t i = 0; i <= flags_.repeat; ++i) {  // the first one warms up
      Result<model::SequenceState> state = engine_.pool().create();
      if (!state.ok()) {
        return state.status();
      }
      const std::vector<int32_t> prompt =
          random_tokens(tokens, engine_.config().vocab, static_cast<uint64_t>(i));
      if (Status s = timed(*state, prompt, i > 0, out); !s.ok()) {
        return s;
      }
    }
    return {};
  }

  Status decode(int64_t context, Case& out) {
    out.name = fmt::format("decode after {}", context);
    out.tokens = static_cast<double>(flags_.decode_tokens);
    out.bytes = model::decode_bytes(engine_.model().weights(), context).total();
    Result<model::SequenceState> state = engine_.pool().create();
    if (!state.ok()) {
      return state.status();
    }
    const std::vector<int32_t> prompt = random_tokens(context, engine_.config().vocab, 7);
    if (Status s = engine_.prefill(*state, prompt, model::LogitRows::kNone, {}); !s.ok()) {
      return s;
    }
    for (int64_t i = 0; i <= flags_.repeat; ++i) {
      const std::vector<int32_t> tokens = random_tokens(
          flags_.decode_tokens, engine_.config().vocab, static_cast<uint64_t>(1000 + i));
      const double begin = now_seconds();
      engine_.forward_options().times = i > 0 ? &out.times : nullptr;
      for (const int32_t token : tokens) {
        if (Status s = engine_.prefill(*state, std::span(&token, 1), model::LogitRows::kLast,
                                       logits_.view());
            !s.ok()) {
          return s;
        }
      }
      if (i > 0) {
        out.seconds.push_back(now_seconds() - begin);
      }
    }
    return {};
  }

 private:
  Status timed(model::SequenceState& state, std::span<const int32_t> prompt, bool count,
               Case& out) {
    engine_.forward_options().times = count ? &out.times : nullptr;
    const double begin = now_seconds();
    Status status = engine_.prefill(state, prompt, model::LogitRows::kLast, logits_.view());
    if (count) {
      out.seconds.push_back(now_seconds() - begin);
    }
    return status;
  }

  const BenchFlags& flags_;
  engine::Engine& engine_;
  Tensor logits_ = Tensor::f32({1, engine_.config().vocab});
};

/// Share of the limit that binds: bandwidth in decode, FMA peak in prefill.
double share(const Case& c, const MachinePeaks& peaks, double seconds) {
  return c.bytes > 0.0 ? c.bytes * c.tokens / seconds / peaks.read_bytes_per_second
                       : c.flops / seconds / peaks.fma_flops_per_second;
}

void print_case(const BenchFlags& flags, const Case& c, const MachinePeaks& peaks,
                const nlohmann::json& context) {
  const Samples samples(c.seconds);
  double total = 0.0;
  for (const auto& [name, seconds] : c.times.entries()) {
    total += seconds;
  }
  if (flags.json) {
    nlohmann::json line = context;
    line["case"] = c.name;
    line["samples"] = c.seconds.size();
    line["seconds_median"] = samples.median;
    line["seconds_p10"] = samples.p10;
    line["seconds_p90"] = samples.p90;
    line["tokens_per_second"] = c.tokens / samples.median;
    line["bytes_per_token"] = c.bytes;
    line["flops"] = c.flops;
    line["share_of_limit"] = share(c, peaks, samples.median);
    for (const auto& [name, seconds] : c.times.entries()) {
      line["time_share"][name] = seconds / total;
    }
    fmt::print("{}\n", line.dump());
    std::fflush(stdout);
    return;
  }
  fmt::print("{:<20} {:>9.1f} tokens/s ({:.1f} to {:.1f})  {:>5.1f}% of {}\n", c.name,
             c.tokens / samples.median, c.tokens / samples.p90, c.tokens / samples.p10,
             100.0 * share(c, peaks, samples.median),
             c.bytes > 0.0 ? "streaming read" : "fp32 FMA peak");
  std::vector<std::pair<std::string, double>> entries(c.times.entries().begin(),
                                                      c.times.entries().end());
  std::ranges::sort(entries, [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string where;
  for (const auto& [name, seconds] : entries) {
    where += fmt::format("{}{} {:.0f}%", where.empty() ? "" : ", ", name, 100.0 * seconds / total);
  }
  fmt::print("    {}\n", where);
  std::fflush(stdout);
}

Result<std::unique_ptr<engine::Engine>> make_engine(const BenchFlags& flags) {
  Result<checkpoint::ModelConfig> config =
      model::named_shape(flags.shape, {flags.layers, flags.vocab});
  if (!config.ok()) {
    return config.status();
  }
  const Result<MatrixFormat> experts = parse_matrix_format(flags.experts);
  const Result<MatrixFormat> dense = parse_matrix_format(flags.dense);
  if (!experts.ok() || !dense.ok()) {
    return experts.ok() ? dense.status() : experts.status();
  }
  Result<engine::EngineOptions> options = flags.engine.options();
  if (!options.ok()) {
    return options.status();
  }
  int64_t longest = 1;
  for (int64_t n : flags.prefill) {
    longest = std::max(longest, n);
  }
  for (int64_t n : flags.decode_after) {
    longest = std::max(longest, n + (flags.repeat + 1) * flags.decode_tokens);
  }
  options->context_tokens = std::max(options->context_tokens, longest);
  options->sequences = 1;
  Progress progress("making weights");
  Result<model::ModelWeights> weights = model::random_weights(
      *config, {*experts, *dense, 1, [&](double fraction) { progress.update(fraction); }});
  if (!weights.ok()) {
    return weights.status();
  }
  return engine::Engine::create(std::move(*weights), *options);
}

}  // namespace

MachinePeaks measure_peaks(const Device& device) {
  constexpr int64_t kBufferBytes = int64_t{1} << 30;
  constexpr int kSamples = 5;
  Tensor buffer(DType::kU8, {kBufferBytes});
  std::memset(buffer.view().raw(), 1, static_cast<size_t>(kBufferBytes));
  const std::span bytes(static_cast<const std::byte*>(buffer.view().raw()),
                        static_cast<size_t>(kBufferBytes));
  std::vector<double> read;
  std::vector<double> fma;
  for (int i = 0; i < kSamples; ++i) {
    read.push_back(read_bytes_per_second(*device.threads, device.isa, bytes));
    fma.push_back(fp32_flops_per_second(*device.threads, device.isa));
  }
  return {Samples(read).median, Samples(fma).median};
}

int bench_model(const BenchFlags& flags) {
  const double begin = now_seconds();
  const Result<std::unique_ptr<engine::Engine>> engine = make_engine(flags);
  if (!engine.ok()) {
    return fail(engine.status());
  }
  const Device& device = (*engine)->device();
  const MachinePeaks peaks = measure_peaks(device);
  const nlohmann::json context = bench_context(flags, peaks, device);
  if (!flags.json) {
    const model::DecodeBytes bytes = model::decode_bytes((*engine)->model().weights(), 0);
    fmt::print("{}, {} threads, {}: streaming read {:.1f} GB/s, fp32 FMA {:.1f} GFLOP/s\n",
               cpu_name(), device.threads->threads(), isa_name(device.isa),
               peaks.read_bytes_per_second / 1e9, peaks.fma_flops_per_second / 1e9);
    fmt::print(
        "{}: {} a token to read: {} experts, {} other matrices, {} state (ready in {:.1f} s)\n",
        flags.shape, human_bytes(bytes.total()), human_bytes(bytes.experts),
        human_bytes(bytes.dense), human_bytes(bytes.state), now_seconds() - begin);
  }
  ModelBench bench(flags, **engine);
  for (const int64_t context_tokens : flags.decode_after) {
    Case c;
    if (Status s = bench.decode(context_tokens, c); !s.ok()) {
      return fail(s);
    }
    print_case(flags, c, peaks, context);
  }
  for (const int64_t tokens : flags.prefill) {
    Case c;
    if (Status s = bench.prefill(tokens, c); !s.ok()) {
      return fail(s);
    }
    print_case(flags, c, peaks, context);
  }
  return kExitOk;
}

}  // namespace triax::app
