// Time of the gated activations on one long row, in elements a second.
#include <benchmark/benchmark.h>

#include "testing/testing.h"
#include "width/situ/situ.h"

namespace triax::width {
namespace {

void run(benchmark::State& state, Isa isa, Activation::Kind kind) {
  const int64_t size = 33792;  // the dense layer of K3
  OwnedDevice device(Backend::kCpu, isa, 1);
  const Tensor gate = testing::random_tensor({1, size}, 1, 3.0);
  const Tensor up = testing::random_tensor({1, size}, 2, 3.0);
  Tensor out = Tensor::f32({1, size});
  for (auto _ : state) {
    const Status status = gated_activation(device, {kind}, gate, up, out);
    check(status.ok(), status.message());
  }
  state.SetItemsProcessed(state.iterations() * size);
  state.SetBytesProcessed(state.iterations() * size * 12);
}

void register_all() {
  for (const Isa isa : supported_isas()) {
    for (const auto& [name, kind] :
         {std::pair<const char*, Activation::Kind>{"silu", Activation::Kind::kSilu},
          {"situ", Activation::Kind::kSitu}}) {
      const std::string title = "gated_activation/" + std::string(name) + "/";
      benchmark::RegisterBenchmark(
          (title + std::string(isa_name(isa))).c_str(),
          [isa, chosen = kind](benchmark::State& state) { run(state, isa, chosen); })
          ->Unit(benchmark::kMicrosecond);
    }
  }
}

const bool registered = (register_all(), true);

}  // namespace
}  // namespace triax::width
