// triax bench model: random weights of a shape, decode and prefill, shares of the machine's limits.
#include <fmt/chrono.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ctime>

#include "app/bench.h"
#include "base/rng.h"
#include "checkpoint/shapes.h"
#include "device/cuda/cuda_queue.h"
#include "device/machine_peak.h"
#include "model/footprint.h"

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

namespace {

std::string activations_name(const EngineFlags& flags) {
  if (!flags.activations.empty()) {
    return flags.activations;
  }
  return parse_cuda_device(flags.device) ? "bf16" : "fp32";
}

}  // namespace

nlohmann::json bench_context(const BenchFlags& flags, const MachinePeaks& peaks,
                             const Device& device) {
  return {{"date", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)))},
          {"commit", TRIAX_COMMIT},
          {"machine", cpu_name()},
          {"device", device.cuda == nullptr ? std::string(backend_name(device.backend))
                                            : std::string(device.cuda->gpu().name)},
          {"threads", device.threads->threads()},
          {"isa", isa_name(device.isa)},
          {"shape", flags.shape},
          {"layers", flags.layers},
          {"vocab", flags.vocab},
          {"experts", flags.experts},
          {"dense", flags.dense},
          {"activations", activations_name(flags.engine)},
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
  int64_t batch = 1;    // sequences (decode)
  double tokens = 0.0;  // of one sample, of all sequences
  double bytes = 0.0;   // that one token of the batch must read (decode)
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
    for (int64_t i = 0; i <= flags_.repeat + (on_gpu() ? 1 : 0); ++i) {
      Result<model::SequenceState> state = engine_.pool().create();
      if (!state.ok()) {
        return state.status();
      }
      const std::vector<int32_t> prompt =
          random_tokens(tokens, engine_.config().vocab, static_cast<uint64_t>(i));
      if (Status s = timed(*state, prompt, i, out); !s.ok()) {
        return s;
      }
    }
    return {};
  }

  Status decode(int64_t context, int64_t batch, Case& out) {
    out.name = batch == 1 ? fmt::format("decode after {}", context)
                          : fmt::format("decode {} after {}", batch, context);
    out.batch = batch;
    out.tokens = static_cast<double>(flags_.decode_tokens * batch);
    out.bytes = step_bytes(context, batch) / static_cast<double>(batch);
    std::vector<model::SequenceState> states;
    for (int64_t n = 0; n < batch; ++n) {
      Result<model::SequenceState> state = engine_.pool().create();
      if (!state.ok()) {
        return state.status();
      }
      const std::vector<int32_t> prompt =
          random_tokens(context, engine_.config().vocab, static_cast<uint64_t>(7 + n));
      if (Status s = engine_.prefill(*state, prompt, model::LogitRows::kNone, {}); !s.ok()) {
        return s;
      }
      states.push_back(std::move(*state));
    }
    for (int64_t i = 0; i <= flags_.repeat + (on_gpu() ? 1 : 0); ++i) {
      const std::vector<int32_t> tokens = random_tokens(
          flags_.decode_tokens * batch, engine_.config().vocab, static_cast<uint64_t>(1000 + i));
      // A GPU's times by operation need waits, so they are taken in a pass that is not counted.
      const bool timed = on_gpu() ? i > flags_.repeat : i > 0;
      engine_.forward_options().times = timed ? &out.times : nullptr;
      const double begin = now_seconds();
      if (Status s = steps(states, tokens); !s.ok()) {
        return s;
      }
      if (i > 0 && i <= flags_.repeat) {
        out.seconds.push_back(now_seconds() - begin);
      }
    }
    return {};
  }

 private:
  bool on_gpu() const { return engine_.device().cuda != nullptr; }

  /// Bytes of one step of a batch: every expert that some sequence visits is read once.
  double step_bytes(int64_t context, int64_t batch) const {
    const model::DecodeBytes one = model::decode_bytes(engine_.model().weights(), context);
    const auto experts = static_cast<double>(engine_.config().moe.experts);
    const auto visited = static_cast<double>(engine_.config().moe.top_k);
    const double latent_share =
        static_cast<double>(dtype_bytes(engine_.pool().latent_type())) / sizeof(float);
    const double hit =
        experts * (1.0 - std::pow(1.0 - visited / experts, static_cast<double>(batch)));
    return one.dense + one.experts * hit / visited +
           static_cast<double>(batch) * (one.state + one.latents * latent_share);
  }

  /// tokens.size() / states.size() decode steps of all sequences: each draws a token, but runs the
  /// given ones.
  Status steps(std::vector<model::SequenceState>& states, std::span<const int32_t> tokens) {
    const size_t batch = states.size();
    std::vector<dense::Sampler> greedy(batch, dense::Sampler({.temperature = 0.0f}));
    std::vector<dense::Sampler*> samplers;
    for (dense::Sampler& sampler : greedy) {
      samplers.push_back(&sampler);
    }
    std::vector<dense::RowSample> samples(batch);
    for (size_t at = 0; at < tokens.size(); at += batch) {
      std::vector<model::SequenceInput> inputs;
      for (size_t n = 0; n < batch; ++n) {
        inputs.push_back({&states[n], tokens.subspan(at + n, 1), model::LogitRows::kLast});
      }
      if (Status s = engine_.decode(inputs, samplers, samples); !s.ok()) {
        return s;
      }
    }
    return {};
  }

  /// One prompt; sample 0 warms up, and a GPU's times by operation come from a pass after the last.
  Status timed(model::SequenceState& state, std::span<const int32_t> prompt, int64_t sample,
               Case& out) {
    const bool by_operation = on_gpu() ? sample > flags_.repeat : sample > 0;
    engine_.forward_options().times = by_operation ? &out.times : nullptr;
    const double begin = now_seconds();
    Status status = engine_.prefill(state, prompt, model::LogitRows::kLast, logits_.view());
    if (sample > 0 && sample <= flags_.repeat) {
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
  if (c.bytes > 0.0) {
    return c.bytes * c.tokens / seconds / peaks.read_bytes_per_second;
  }
  return peaks.fma_flops_per_second > 0.0 ? c.flops / seconds / peaks.fma_flops_per_second : 0.0;
}

std::string_view limit_name(const Case& c, const nlohmann::json& context) {
  const bool gpu = context["device"] != "cpu" && context["device"] != "reference";
  if (c.bytes > 0.0) {
    return gpu ? "copy bandwidth" : "streaming read";
  }
  return gpu ? "bf16 peak" : "fp32 FMA peak";
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
    line["batch"] = c.batch;
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
             100.0 * share(c, peaks, samples.median), limit_name(c, context));
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
  Result<engine::EngineOptions> options = flags.engine.options();
  if (!options.ok()) {
    return options.status();
  }
  int64_t longest = 1;
  for (int64_t n : flags.prefill) {
    longest = std::max(longest, n);
  }
  for (int64_t n : flags.decode_after) {
    longest = std::max(longest, n + (flags.repeat + 2) * flags.decode_tokens);
  }
  options->context_tokens = std::max(options->context_tokens, longest);
  options->sequences = *std::ranges::max_element(flags.batch);
  if (options->backend == Backend::kCuda) {
    options->prefill_chunk = 8192;
  }
  return random_engine(flags, *options);
}

}  // namespace

Result<std::unique_ptr<engine::Engine>> random_engine(const ShapeFlags& shape,
                                                      engine::EngineOptions options) {
  Result<checkpoint::ModelConfig> config =
      checkpoint::named_shape(shape.shape, {shape.layers, shape.vocab});
  if (!config.ok()) {
    return config.status();
  }
  const Result<MatrixFormat> experts = parse_matrix_format(shape.experts);
  const Result<MatrixFormat> dense = parse_matrix_format(shape.dense);
  if (!experts.ok() || !dense.ok()) {
    return experts.ok() ? dense.status() : experts.status();
  }
  std::unique_ptr<CudaQueue> queue;
  if (options.backend == Backend::kCuda) {
    Result<std::unique_ptr<CudaQueue>> opened = CudaQueue::open(options.gpu);
    if (!opened.ok()) {
      return opened.status();
    }
    queue = std::move(*opened);
  }
  Progress progress("making weights");
  Result<model::ModelWeights> weights = model::random_weights(
      *config,
      {*experts, *dense, 1, [&](double fraction) { progress.update(fraction); }, queue.get()});
  if (!weights.ok()) {
    return weights.status();
  }
  if (queue != nullptr) {
    return engine::Engine::create_on_gpu(std::move(queue), std::move(*weights), options);
  }
  return engine::Engine::create(std::move(*weights), options);
}

namespace {

/// Bytes read and written a second by a copy within the GPU's memory.
double copy_bytes_per_second(CudaQueue& queue) {
  constexpr int64_t kBytes = int64_t{1} << 31;
  const int64_t shape[] = {kBytes};
  Tensor from(DType::kU8, shape, &queue.memory());
  Tensor to(DType::kU8, shape, &queue.memory());
  std::vector<double> rates;
  for (int i = 0; i < 6; ++i) {
    const Result<double> ms =
        queue.time([&] { return queue.copy(to.view().raw(), from.view().raw(), kBytes); });
    if (ms.ok() && i > 0) {
      rates.push_back(2.0 * static_cast<double>(kBytes) / (1e-3 * *ms));
    }
  }
  return rates.empty() ? 0.0 : Samples(rates).median;
}

/// bf16 products of large square matrices, as measured on that GPU with its maker's library.
double known_bf16_flops(std::string_view gpu) {
  return gpu.find("H200") != std::string_view::npos ? 769e12 : 0.0;
}

}  // namespace

MachinePeaks measure_peaks(const Device& device) {
  if (device.cuda != nullptr) {
    return {copy_bytes_per_second(*device.cuda), known_bf16_flops(device.cuda->gpu().name)};
  }
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

namespace {

void print_machine(const Device& device, const MachinePeaks& peaks) {
  if (device.cuda != nullptr) {
    fmt::print("{}: copy {:.0f} GB/s, bf16 {:.0f} TFLOP/s\n", device.cuda->gpu().name,
               peaks.read_bytes_per_second / 1e9, peaks.fma_flops_per_second / 1e12);
    return;
  }
  fmt::print("{}, {} threads, {}: streaming read {:.1f} GB/s, fp32 FMA {:.1f} GFLOP/s\n",
             cpu_name(), device.threads->threads(), isa_name(device.isa),
             peaks.read_bytes_per_second / 1e9, peaks.fma_flops_per_second / 1e9);
}

}  // namespace

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
    print_machine(device, peaks);
    fmt::print(
        "{}: {} a token to read: {} experts, {} other matrices, {} state (ready in {:.1f} s)\n",
        flags.shape, human_bytes(bytes.total()), human_bytes(bytes.experts),
        human_bytes(bytes.dense), human_bytes(bytes.state), now_seconds() - begin);
  }
  ModelBench bench(flags, **engine);
  for (const int64_t context_tokens : flags.decode_after) {
    for (const int64_t batch : flags.batch) {
      Case c;
      if (Status s = bench.decode(context_tokens, batch, c); !s.ok()) {
        return fail(s);
      }
      print_case(flags, c, peaks, context);
    }
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
