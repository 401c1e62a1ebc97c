// The short convolution's bytes a second, prefill and decode.
#include <benchmark/benchmark.h>

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

bool register_all() {
  for (Isa isa : supported_isas()) {
    benchmark::RegisterBenchmark(("short_conv/" + std::string(isa_name(isa))).c_str(),
                                 short_conv_case, isa)
        ->Args({1, 512, 4096})
        ->Args({1, 1, 4096})
        ->Args({16, 1, 12288});
  }
  return true;
}

const bool registered = register_all();

}  // namespace
}  // namespace triax::sequence
