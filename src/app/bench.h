// What the benchmarks share.
#pragma once

#include <string>
#include <vector>

#include "app/app.h"
#include "model/weights.h"

namespace triax::app {

/// A model with random weights.
struct ShapeFlags {
  std::string shape = "tiny";
  int64_t layers = 0;
  int64_t vocab = 0;
  std::string experts = "mxfp4";
  std::string dense = "int8";

  void add_to(CLI::App& command);
};

struct BenchFlags : ShapeFlags {
  EngineFlags engine;
  std::string weights = "random";
  std::vector<int64_t> prefill = {512, 2048};
  std::vector<int64_t> decode_after = {128, 2048};
  int64_t decode_tokens = 32;
  std::vector<int64_t> batch = {1};  // sequences that decode together
  int64_t repeat = 5;
  bool json = false;
};

/// Limits of the device, measured in the same run: streaming read and fp32 FMA of a CPU; of a GPU a
/// large copy (reads and writes), and the bf16 products of a known model (measured before, not
/// here).
struct MachinePeaks {
  double read_bytes_per_second = 0.0;
  double fma_flops_per_second = 0.0;  // 0: not known
};
MachinePeaks measure_peaks(const Device& device);

/// Median, 10th and 90th percentile.
struct Samples {
  explicit Samples(std::vector<double> values);
  double median, p10, p90;
};

Result<MatrixFormat> parse_matrix_format(const std::string& name);

/// The date, the commit this was built from, machine and threads: the head of every JSON line.
nlohmann::json bench_context(const BenchFlags& flags, const MachinePeaks& peaks,
                             const Device& device);

/// A random prompt of that length.
std::vector<int32_t> random_tokens(int64_t count, int64_t vocab, uint64_t seed);

/// An engine for a model with random weights.
Result<std::unique_ptr<engine::Engine>> random_engine(const ShapeFlags& shape,
                                                      engine::EngineOptions options);

int bench_model(const BenchFlags& flags);
/// `only`: kda, mla, moe or attn-res; empty: all operations.
int bench_ops(const BenchFlags& flags, const std::string& only);
/// Adds "serve" to the benchmarks.
void add_bench_serve(CLI::App& bench, int* exit_code);

}  // namespace triax::app
