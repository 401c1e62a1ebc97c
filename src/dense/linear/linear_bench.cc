// Products at the shapes of Kimi Linear, as shares of the streaming read and of the float peak that
// the same process measures between the samples.
#include <benchmark/benchmark.h>
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "dense/linear/linear.h"
#include "device/machine_peak.h"
#include "testing/testing.h"

namespace triax::dense {
namespace {

constexpr int64_t kPoolBytes = int64_t{1} << 30;
constexpr MatrixFormat kFormats[] = {MatrixFormat::kF32, MatrixFormat::kF16, MatrixFormat::kBf16,
                                     MatrixFormat::kMxfp4, MatrixFormat::kInt8};

struct Case {
  MatrixFormat format;
  Activations activations;
  Isa isa;
  int threads;
  int64_t count;  // products in the list
  int64_t rows, cols, tokens;
};

// 1 GiB that all weights are cut from: every call reads others, none is in a cache. The bytes are
// ordinary numbers in every format.
const Tensor& weight_bytes() {
  static const Tensor* bytes = [] {
    auto* tensor = new Tensor(DType::kU8, {kPoolBytes});
    Rng rng(1);
    uint8_t* data = tensor->data<uint8_t>();
    for (int64_t i = 0; i < kPoolBytes; i += 8) {
      const uint64_t word = (rng.next() & 0x0d0d0d0d0d0d0d0dULL) | 0x3131313131313131ULL;
      std::memcpy(data + i, &word, 8);
    }
    return tensor;
  }();
  return *bytes;
}

// Hands out matrices one after the other, from the start again when the pool is used up.
class WeightPool {
 public:
  MatrixView take(const Case& c) {
    MatrixView view = {c.format, c.rows, c.cols, nullptr, nullptr};
    const int64_t bytes = (view.bytes() + 63) / 64 * 64;
    if (used_ + bytes > kPoolBytes) {
      used_ = 0;
    }
    const uint8_t* data = weight_bytes().data<uint8_t>() + used_;
    used_ += bytes;
    view.data = data;
    view.scales = data + view.rows * view.row_bytes();
    return view;
  }

 private:
  int64_t used_ = 0;
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

// What a case is measured against, sampled as often as the case itself.
struct Samples {
  std::vector<double> seconds, read, flops;
};

void report(benchmark::State& state, const Case& c, const Samples& samples, int64_t calls) {
  const MatrixView view = {c.format, c.rows, c.cols, nullptr, nullptr};
  const double bytes = static_cast<double>(calls * c.count * view.bytes());
  const double flops = 2.0 * static_cast<double>(calls * c.count * c.rows * c.cols * c.tokens);
  const double best = *std::min_element(samples.seconds.begin(), samples.seconds.end());
  const double typical = median(samples.seconds);
  const double read = *std::max_element(samples.read.begin(), samples.read.end());
  const double peak = *std::max_element(samples.flops.begin(), samples.flops.end());
  state.counters["GB/s"] = bytes / best * 1e-9;
  state.counters["GFLOP/s"] = flops / best * 1e-9;
  state.counters["read_peak"] = read * 1e-9;
  state.counters["fma_peak"] = peak * 1e-9;
  state.counters["read_best"] = bytes / best / read;
  state.counters["read_median"] = bytes / typical / median(samples.read);
  state.counters["fma_best"] = flops / best / peak;
  state.counters["fma_median"] = flops / typical / median(samples.flops);
}

void run_case(benchmark::State& state, const Case& c) {
  const OwnedDevice device(Backend::kCpu, c.isa, c.threads);
  const MatrixView one = {c.format, c.rows, c.cols, nullptr, nullptr};
  // A sample reads about 32 MiB or takes some 10^9 operations, whichever is less.
  const int64_t work = std::max(one.bytes() * 16, c.rows * c.cols * c.tokens) * c.count;
  const int64_t calls = std::max<int64_t>(1, (int64_t{1} << 29) / std::max<int64_t>(1, work));
  const Tensor in = testing::random_tensor({c.count, c.tokens, c.cols}, 2);
  Tensor out = Tensor::f32({c.count, c.tokens, c.rows});
  WeightPool weights;
  Samples samples;
  std::vector<Product> products(static_cast<size_t>(c.count));
  const std::span<const std::byte> pool_bytes = {
      reinterpret_cast<const std::byte*>(weight_bytes().data<uint8_t>()),
      static_cast<size_t>(kPoolBytes)};
  size_t offset = 0;
  constexpr size_t kReadBytes = size_t{64} << 20;
  for (auto _ : state) {
    double seconds = 0.0;
    for (int64_t call = 0; call < calls; ++call) {
      for (int64_t i = 0; i < c.count; ++i) {
        products[static_cast<size_t>(i)] = {
            ConstTensorView(in.data<float>() + i * c.tokens * c.cols, {c.tokens, c.cols}),
            weights.take(c),
            TensorView(out.data<float>() + i * c.tokens * c.rows, {c.tokens, c.rows})};
      }
      const auto start = std::chrono::steady_clock::now();
      check(linear(device, products, c.activations).ok(), "linear");
      seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
    state.SetIterationTime(seconds);
    samples.seconds.push_back(seconds);
    ThreadPool& threads = *device.get().threads;
    samples.read.push_back(
        read_bytes_per_second(threads, c.isa, pool_bytes.subspan(offset, kReadBytes)));
    offset = (offset + kReadBytes) % pool_bytes.size();
    samples.flops.push_back(fp32_flops_per_second(threads, c.isa, 20'000'000));
  }
  report(state, c, samples, calls);
}

void add_case(const Case& c) {
  const std::string name =
      fmt::format("linear/{}/{}/{}/threads:{}/{}x[{},{}]/T:{}", matrix_format_name(c.format),
                  c.activations == Activations::kInt8 ? "a8" : "a32", isa_name(c.isa), c.threads,
                  c.count, c.rows, c.cols, c.tokens);
  benchmark::RegisterBenchmark(name.c_str(), [c](benchmark::State& state) { run_case(state, c); })
      ->UseManualTime()
      ->Iterations(15)
      ->Unit(benchmark::kMillisecond);
}

void add_cases(MatrixFormat format, Activations activations, Isa isa, int threads) {
  for (int64_t tokens : {1, 2, 4, 8, 16, 64, 512}) {
    for (int64_t rows : {1024, 4096, 9216}) {
      add_case({format, activations, isa, threads, 1, rows, 2304, tokens});
    }
    if (tokens <= 64) {
      const int64_t count = format == MatrixFormat::kF32 ? 64 : 256;
      add_case({format, activations, isa, threads, count, 1024, 2304, tokens});
    }
  }
}

const bool registered = [] {
  std::vector<int> thread_counts = {1};
  if (hardware_threads() > 1) {
    thread_counts.push_back(std::min(2, hardware_threads()));
  }
  for (int threads : thread_counts) {
    for (Isa isa : supported_isas()) {
      for (MatrixFormat format : kFormats) {
        add_cases(format, Activations::kF32, isa, threads);
        if (format == MatrixFormat::kMxfp4 || format == MatrixFormat::kInt8) {
          add_cases(format, Activations::kInt8, isa, threads);
        }
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace triax::dense
