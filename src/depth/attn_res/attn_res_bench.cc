// Time of Attention Residuals at the sizes of Kimi K3, next to a copy of the sources.
#include <benchmark/benchmark.h>

#include <cstring>
#include <vector>

#include "depth/attn_res/attn_res.h"
#include "testing/testing.h"

namespace triax::depth {
namespace {

constexpr int64_t kDim = 7168;
constexpr int64_t kSources = 9;
constexpr int64_t kQueries = 24;  // of a block of 12 layers

struct Problem {
  explicit Problem(int64_t t) : tokens(t) {
    for (int64_t i = 0; i < kSources; ++i) {
      storage.push_back(testing::random_tensor({t, kDim}, static_cast<uint64_t>(i)));
      sources.push_back(std::as_const(storage.back()).view());
    }
    queries = testing::random_tensor({kQueries, kDim}, 99, 0.01);
  }
  ConstTensorView query() const { return ConstTensorView(queries.data<float>(), {kDim}); }
  int64_t tokens;
  std::vector<Tensor> storage;
  std::vector<ConstTensorView> sources;
  Tensor queries;
};

void set_bytes(benchmark::State& state, int64_t bytes) {
  state.SetBytesProcessed(state.iterations() * bytes);
}

/// The yardstick: copying the sources.
void copy(benchmark::State& state) {
  const Problem p(state.range(0));
  Tensor to = Tensor::f32({kSources, p.tokens, kDim});
  const int64_t floats = p.tokens * kDim;
  for (auto _ : state) {
    for (size_t i = 0; i < p.storage.size(); ++i) {
      std::memcpy(to.data<float>() + static_cast<int64_t>(i) * floats, p.storage[i].data<float>(),
                  static_cast<size_t>(floats) * sizeof(float));
    }
    benchmark::ClobberMemory();
  }
  set_bytes(state, 2 * kSources * floats * 4);
}

void whole(benchmark::State& state) {
  const Problem p(state.range(0));
  const OwnedDevice device(Backend::kCpu, static_cast<Isa>(state.range(1)), 1);
  Tensor out = Tensor::f32({p.tokens, kDim});
  for (auto _ : state) {
    benchmark::DoNotOptimize(attn_res(device, {p.sources, p.query(), 1e-5f, out}).ok());
  }
  set_bytes(state, (kSources + 1) * p.tokens * kDim * 4);
}

void bank(benchmark::State& state) {
  const Problem p(state.range(0));
  const OwnedDevice device(Backend::kCpu, static_cast<Isa>(state.range(1)), 1);
  Tensor acc = testing::random_tensor({kQueries, p.tokens, kDim}, 7);  // touched
  Tensor max = Tensor::f32({kQueries, p.tokens});
  Tensor sum = Tensor::f32({kQueries, p.tokens});
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        attn_res_bank(device, {p.sources, p.queries, 1e-5f, acc, max, sum}).ok());
  }
  set_bytes(state, (kSources + kQueries) * p.tokens * kDim * 4);
}

void merge(benchmark::State& state) {
  const Problem p(state.range(0));
  const OwnedDevice device(Backend::kCpu, static_cast<Isa>(state.range(1)), 1);
  const Tensor max = testing::random_tensor({p.tokens}, 3);
  Tensor out = Tensor::f32({p.tokens, kDim});
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        attn_res_merge(device, {p.sources[0], max, max, p.sources[1], p.query(), 1e-5f, out}).ok());
  }
  set_bytes(state, 3 * p.tokens * kDim * 4);
}

void sizes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"T", "isa"});
  for (int64_t tokens : {1, 512}) {
    for (Isa isa : supported_isas()) {
      b->Args({tokens, static_cast<int64_t>(isa)});
    }
  }
}

BENCHMARK(copy)->ArgName("T")->Arg(1)->Arg(512);
BENCHMARK(whole)->Apply(sizes);
BENCHMARK(bank)->Apply(sizes);
BENCHMARK(merge)->Apply(sizes);

}  // namespace
}  // namespace triax::depth
