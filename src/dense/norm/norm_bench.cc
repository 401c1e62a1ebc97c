// Time of rms_norm on rows of K3's width.
#include <benchmark/benchmark.h>

#include "dense/norm/norm.h"
#include "testing/testing.h"

namespace triax::dense {
namespace {

void run(benchmark::State& state, Isa isa) {
  const int64_t size = 7168;
  const int64_t tokens = state.range(0);
  OwnedDevice device(Backend::kCpu, isa, 1);
  const Tensor in = testing::random_tensor({tokens, size}, 1);
  const Tensor weight = testing::random_tensor({size}, 2);
  Tensor out = Tensor::f32({tokens, size});
  for (auto _ : state) {
    const Status status = rms_norm(device, {in, weight, 1e-5f, out});
    check(status.ok(), status.message());
  }
  state.SetBytesProcessed(state.iterations() * tokens * size * 8);
}

void register_all() {
  for (const Isa isa : supported_isas()) {
    benchmark::RegisterBenchmark(("rms_norm/" + std::string(isa_name(isa))).c_str(),
                                 [isa](benchmark::State& state) { run(state, isa); })
        ->Arg(1)
        ->Arg(64)
        ->Unit(benchmark::kMicrosecond);
  }
}

const bool registered = (register_all(), true);

}  // namespace
}  // namespace triax::dense
