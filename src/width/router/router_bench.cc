// Time of the router at the shape of Kimi Linear, for a decode step and a prefill chunk.
#include <benchmark/benchmark.h>

#include "testing/testing.h"
#include "width/router/router.h"

namespace triax::width {
namespace {

void run(benchmark::State& state, Isa isa) {
  const int64_t tokens = state.range(0);
  const int64_t experts = 256;
  const int64_t size = 2304;
  OwnedDevice device(Backend::kCpu, isa, 1);
  const Tensor in = testing::random_tensor({tokens, size}, 1);
  const OwnedMatrix gate = testing::random_matrix(MatrixFormat::kBf16, experts, size, 2, 0.02);
  const Tensor bias = testing::random_tensor({experts}, 3, 0.1);
  Tensor ids(DType::kI32, {tokens, 8});
  Tensor weights = Tensor::f32({tokens, 8});
  for (auto _ : state) {
    const Status status =
        route(device, {.in = in, .gate = gate.view, .bias = bias, .ids = ids, .weights = weights});
    check(status.ok(), status.message());
  }
  state.SetBytesProcessed(state.iterations() * gate.view.bytes());
  state.counters["FLOPs"] = benchmark::Counter(static_cast<double>(2 * tokens * experts * size),
                                               benchmark::Counter::kIsIterationInvariantRate);
}

void register_all() {
  for (const Isa isa : supported_isas()) {
    benchmark::RegisterBenchmark(("route/" + std::string(isa_name(isa))).c_str(),
                                 [isa](benchmark::State& state) { run(state, isa); })
        ->Arg(1)
        ->Arg(512)
        ->Unit(benchmark::kMicrosecond);
  }
}

const bool registered = (register_all(), true);

}  // namespace
}  // namespace triax::width
