// triax bench ops, kda, mla, moe, attn-res: operations of a shape by themselves, beside the limit
// that binds them. On a GPU their results are compared with the reference first.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "app/ops_bench.h"
#include "checkpoint/shapes.h"
#include "device/cuda/cuda_queue.h"

namespace triax::app {
namespace {

// bf16 operands and MXFP4 or int8 weights that both sides share: 2^-9 an operand, a few roundings.
constexpr double kBf16Bound = 2e-2;
constexpr double kF32Bound = 1e-4;

/// The last layer of the shape alone, with its experts.
Result<model::ModelWeights> one_moe_layer(checkpoint::ModelConfig config, const BenchFlags& flags,
                                          CudaQueue* queue) {
  const Result<MatrixFormat> experts = parse_matrix_format(flags.experts);
  const Result<MatrixFormat> dense = parse_matrix_format(flags.dense);
  if (!experts.ok() || !dense.ok()) {
    return experts.ok() ? dense.status() : experts.status();
  }
  config.layers.erase(config.layers.begin(), config.layers.end() - 1);
  config.moe.first_dense = 0;
  config.vocab = 32;
  return model::random_weights(config, {*experts, *dense, 1, {}, queue});
}

bool wants(const std::string& only, std::string_view name) { return only.empty() || only == name; }

/// Every wanted operation at the sizes of the flags.
Status run_all(OpsBench& bench, const BenchFlags& flags, const std::string& only,
               const model::ModelWeights* weights) {
  std::set<int64_t> counts(flags.batch.begin(), flags.batch.end());
  counts.insert(flags.prefill.begin(), flags.prefill.end());
  Status status;
  const auto step = [&](const std::function<Status()>& next) {
    status = status.ok() ? next() : status;
  };
  for (const int64_t tokens : counts) {
    if (only.empty()) {
      step([&] { return bench.norm(tokens); });
      step([&] { return bench.linear(tokens); });
    }
    if (wants(only, "attn-res")) {
      step([&] { return bench.attn_res(tokens); });
    }
    if (wants(only, "moe")) {
      step([&] { return bench.latent_moe(tokens, *weights); });
    }
  }
  for (const int64_t sequences : flags.batch) {
    if (wants(only, "kda")) {
      step([&] { return bench.kda(1, sequences); });
    }
    for (const int64_t context : flags.decode_after) {
      if (wants(only, "mla")) {
        step([&] { return bench.mla(1, sequences, context); });
      }
    }
  }
  for (const int64_t tokens : flags.prefill) {
    if (wants(only, "kda")) {
      step([&] { return bench.kda(tokens, 1); });
    }
    if (wants(only, "mla")) {
      step([&] { return bench.mla(tokens, 1, 0); });
    }
  }
  return status;
}

double relative_rms(const std::vector<float>& found, const std::vector<float>& expected) {
  double error = 0.0;
  double size = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double e = static_cast<double>(expected[i]);
    error += (static_cast<double>(found[i]) - e) * (static_cast<double>(found[i]) - e);
    size += e * e;
  }
  return std::sqrt(error / std::max(size, 1e-300));
}

/// Small sizes of the same operations on the GPU and by plain loops in double. The shape's own
/// widths but for the heads and experts, of which a few stand for all.
Status compare(const BenchFlags& flags, const std::string& only, checkpoint::ModelConfig config,
               const Device& gpu, double& worst) {
  BenchFlags small = flags;
  small.prefill = {70};
  small.decode_after = {100};
  small.batch = {1, 3};
  config.kda.heads = std::min<int64_t>(config.kda.heads, 4);
  config.moe.experts =
      std::min<int64_t>(config.moe.experts, config.moe.top_k);  // no choice to flip
  const OwnedDevice host(Backend::kReference, Isa::kPortable, hardware_threads());
  std::vector<std::vector<float>> found, expected;
  for (const Device* device : {&gpu, &host.get()}) {
    const Result<model::ModelWeights> weights = one_moe_layer(config, small, device->cuda);
    if (!weights.ok()) {
      return weights.status();
    }
    OpsBench bench(small, config, *device, {});
    bench.keep_results(device == &gpu ? &found : &expected);
    if (Status s = run_all(bench, small, only, &*weights); !s.ok()) {
      return s;
    }
  }
  const Result<engine::EngineOptions> options = flags.engine.options();
  const bool exact = options.ok() && options->dense == dense::Activations::kF32;
  worst = 0.0;
  for (size_t i = 0; i < found.size(); ++i) {
    const double error = relative_rms(found[i], expected[i]);
    if (!(error <= (exact ? kF32Bound : kBf16Bound))) {
      return Status::internal(fmt::format(
          "bench: result {} of {} is off by {:.2e} of its size, at most {:.0e} was expected", i + 1,
          found.size(), error, exact ? kF32Bound : kBf16Bound));
    }
    worst = std::max(worst, error);
  }
  return {};
}

void print_header(const BenchFlags& flags, const Device& device, const MachinePeaks& peaks,
                  double worst) {
  if (flags.json) {
    return;
  }
  const bool gpu = device.cuda != nullptr;
  if (gpu) {
    fmt::print("{}: copy {:.0f} GB/s, bf16 {:.0f} TFLOP/s; nothing in its cache before a call\n",
               device.cuda->gpu().name, peaks.read_bytes_per_second / 1e9,
               peaks.fma_flops_per_second / 1e12);
    fmt::print("results at small sizes are within {:.1e} of the reference\n", worst);
  } else {
    fmt::print("{}, {} threads, {}: streaming read {:.1f} GB/s, fp32 FMA {:.1f} GFLOP/s\n",
               cpu_name(), device.threads->threads(), isa_name(device.isa),
               peaks.read_bytes_per_second / 1e9, peaks.fma_flops_per_second / 1e9);
  }
  fmt::print("{:<38} {:>11} {:>10} {:>8} {:>11} {:>8}\n", "operation", "time", "GB/s",
             gpu ? "of copy" : "of read", "GFLOP/s", gpu ? "of bf16" : "of FMA");
}

Status run_on(const BenchFlags& flags, const std::string& only,
              const checkpoint::ModelConfig& config, const Device& device) {
  double worst = 0.0;
  if (device.cuda != nullptr) {
    if (Status s = compare(flags, only, config, device, worst); !s.ok()) {
      return s;
    }
  }
  std::optional<model::ModelWeights> weights;
  if (wants(only, "moe")) {
    Result<model::ModelWeights> made = one_moe_layer(config, flags, device.cuda);
    if (!made.ok()) {
      return made.status();
    }
    weights = std::move(*made);
  }
  const MachinePeaks peaks = measure_peaks(device);
  print_header(flags, device, peaks, worst);
  OpsBench bench(flags, config, device, peaks);
  return run_all(bench, flags, only, weights ? &*weights : nullptr);
}

}  // namespace

int bench_ops(const BenchFlags& flags, const std::string& only) {
  const Result<checkpoint::ModelConfig> config =
      checkpoint::named_shape(flags.shape, {flags.layers, flags.vocab});
  const Result<engine::EngineOptions> options = flags.engine.options();
  if (!config.ok() || !options.ok()) {
    return fail(config.ok() ? options.status() : config.status());
  }
  Status status;
  if (options->backend == Backend::kCuda) {
    Result<std::unique_ptr<CudaQueue>> queue = CudaQueue::open(options->gpu);
    if (!queue.ok()) {
      return fail(queue.status());
    }
    const OwnedDevice device(**queue, (*queue)->memory(), options->isa, options->threads);
    status = run_on(flags, only, *config, device);
  } else {
    const OwnedDevice device(options->backend, options->isa, options->threads);
    status = run_on(flags, only, *config, device);
  }
  return status.ok() ? kExitOk : fail(status);
}

}  // namespace triax::app
