// The short convolution's bytes a second, prefill and decode.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "sequence/short_conv/short_conv.h"
#include "testing/testing.h"

namespace triax::sequence {
namespace {

using testing::random_tensor;

void short_conv_case(benchmark::State& state, Isa isa) {
  const int64_t sequences = state.range(0), length = state.range(1), channels = state.range(2);
  OwnedDevice device(Backend::kCpu, isa, 1);
  const Tensor in = random_tensor({sequences * length, channels}, 1);
  const Tensor weight = random_tensor({4, channels}, 2);
  Tensor windows = random_tensor({sequences, 3, channels}, 3);
  Tensor out = Tensor::f32({sequences * length, channels});
  std::vector<int64_t> cu = {0};
  std::vector<int32_t> slots;
  for (int64_t n = 0; n < sequences; ++n) {
    slots.push_back(static_cast<int32_t>(n));
    cu.push_back(cu.back() + length);
  }
  for (auto _ : state) {
    const Status status = short_conv(device, {.in = in,
                                              .weight = weight,
                                              .cu_seqlens = cu,
                                              .slots = slots,
                                              .windows = windows,
                                              .out = out});
    check(status.ok(), status.message());
  }
  const int64_t bytes = 4 * channels * sequences * (2 * length + 6);
  state.SetBytesProcessed(state.iterations() * bytes);
}

/// Decode as a layer of a model sees it: every call has weights and windows that left the caches,
/// and an input that has just been written. Wall time.
void short_conv_decode(benchmark::State& state, Isa isa) {
  constexpr int64_t kLayers = 256;
  const int64_t channels = state.range(0);
  OwnedDevice device(Backend::kCpu, isa, static_cast<int>(state.range(1)));
  const Tensor in = random_tensor({1, channels}, 1);
  const Tensor weight = random_tensor({4 * kLayers, channels}, 2);
  Tensor windows = random_tensor({kLayers, 3, channels}, 3);
  Tensor out = Tensor::f32({1, channels});
  const std::vector<int64_t> cu = {0, 1};
  std::vector<double> micros;
  int32_t layer = 0;
  for (auto _ : state) {
    layer = static_cast<int32_t>((layer + 1) % kLayers);
    const auto begin = std::chrono::steady_clock::now();
    const Status status =
        short_conv(device, {.in = in,
                            .weight = weight.view().rows(4 * layer, 4 * layer + 4),
                            .cu_seqlens = cu,
                            .slots = {&layer, 1},
                            .windows = windows,
                            .out = out});
    check(status.ok(), status.message());
    micros.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
            .count());
  }
  std::sort(micros.begin(), micros.end());
  state.counters["us_median"] = micros[micros.size() / 2];
  state.counters["us_best"] = micros.front();
}

bool register_all() {
  for (Isa isa : supported_isas()) {
    benchmark::RegisterBenchmark(("short_conv/" + std::string(isa_name(isa))).c_str(),
                                 short_conv_case, isa)
        ->Args({1, 512, 4096})
        ->Args({1, 1, 4096})
        ->Args({16, 1, 12288});
    benchmark::RegisterBenchmark(("short_conv_decode/" + std::string(isa_name(isa))).c_str(),
                                 short_conv_decode, isa)
        ->Args({12288, 1})
        ->Args({12288, 2})
        ->UseRealTime()
        ->Iterations(2048);
  }
  return true;
}

const bool registered = register_all();

}  // namespace
}  // namespace triax::sequence
