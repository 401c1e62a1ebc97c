// Time of MLA at the sizes of Kimi Linear and K3.
#include <benchmark/benchmark.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "sequence/mla/mla.h"
#include "testing/testing.h"

namespace triax::sequence {
namespace {

constexpr int64_t kHeads = 32;
constexpr int64_t kNope = 128;
constexpr int64_t kShared = 64;
constexpr int64_t kLatent = 512;
constexpr int64_t kValue = 128;

/// One sequence with `start` tokens before `length` new ones.
struct Problem {
  Problem(int64_t start, int64_t length, MatrixFormat format)
      : cu_seqlens{0, length}, starts{start} {
    const int64_t pages = (start + length + kLatentPage - 1) / kLatentPage;
    pool = testing::random_tensor({pages, kLatentPage, kLatent + kShared}, 1);
    kv_b = testing::random_matrix(format, kHeads * (kNope + kValue), kLatent, 2, 0.05);
    q = testing::random_tensor({length, kHeads, kNope + kShared}, 3);
    gate = testing::random_tensor({length, kHeads, kValue}, 4);
    out = Tensor::f32({length, kHeads, kValue});
    table.resize(static_cast<size_t>(pages));
    std::iota(table.begin(), table.end(), 0);
    tables.emplace_back(table);
  }
  MlaArgs args() {
    MlaArgs a;
    a.q = q;
    a.kv_b = kv_b.view;
    a.value_dim = kValue;
    a.scale = 1.0f / std::sqrt(static_cast<float>(kNope + kShared));
    a.cu_seqlens = cu_seqlens;
    a.starts = starts;
    a.pages = {pool, tables};
    a.gate_logit = gate;
    a.out = out;
    return a;
  }
  std::vector<int64_t> cu_seqlens, starts;
  std::vector<int32_t> table;
  std::vector<std::span<const int32_t>> tables;
  Tensor pool, q, gate, out;
  OwnedMatrix kv_b;
};

void set_rates(benchmark::State& state, int64_t bytes, double flops) {
  state.SetBytesProcessed(state.iterations() * bytes);
  state.counters["FLOP/s"] = benchmark::Counter(flops * static_cast<double>(state.iterations()),
                                                benchmark::Counter::kIsRate);
}

void decode(benchmark::State& state) {
  const int64_t context = state.range(0);
  Problem p(context - 1, 1, MatrixFormat::kBf16);
  const OwnedDevice device(Backend::kCpu, static_cast<Isa>(state.range(1)), 1);
  for (auto _ : state) {
    benchmark::DoNotOptimize(mla(device, p.args()).ok());
  }
  const double per_token = 2.0 * static_cast<double>(kHeads * (2 * kLatent + kShared));
  const double absorb = 2.0 * static_cast<double>(kHeads * (kNope + kValue) * kLatent);
  set_rates(state, context * (kLatent + kShared) * 4 + p.kv_b.view.bytes(),
            per_token * static_cast<double>(context) + absorb);
}

/// A short context: what kv_b costs.
void decode_short(benchmark::State& state) {
  const auto format = static_cast<MatrixFormat>(state.range(0));
  Problem p(128, 1, format);
  const OwnedDevice device(Backend::kCpu, static_cast<Isa>(state.range(1)), 1);
  for (auto _ : state) {
    benchmark::DoNotOptimize(mla(device, p.args()).ok());
  }
  set_rates(state, p.kv_b.view.bytes(),
            2.0 * static_cast<double>(kHeads * (kNope + kValue) * kLatent));
}

void prefill(benchmark::State& state) {
  const int64_t tokens = state.range(0);
  Problem p(0, tokens, MatrixFormat::kBf16);
  const OwnedDevice device(Backend::kCpu, static_cast<Isa>(state.range(1)), 1);
  for (auto _ : state) {
    benchmark::DoNotOptimize(mla(device, p.args()).ok());
  }
  const double pairs = 0.5 * static_cast<double>(tokens) * static_cast<double>(tokens + 1);
  const double attend = 2.0 * pairs * static_cast<double>(kHeads * (kNope + kShared + kValue));
  const double expand = 2.0 * static_cast<double>(tokens * kHeads * (kNope + kValue) * kLatent);
  set_rates(state, tokens * (kLatent + kShared) * 4, attend + expand);
}

void sizes(benchmark::internal::Benchmark* b, std::initializer_list<int64_t> tokens) {
  b->ArgNames({"tokens", "isa"})->Unit(benchmark::kMillisecond);
  for (int64_t t : tokens) {
    for (Isa isa : supported_isas()) {
      b->Args({t, static_cast<int64_t>(isa)});
    }
  }
}

BENCHMARK(decode)->Apply([](auto* b) { sizes(b, {1024, 16384}); });
BENCHMARK(decode_short)->Unit(benchmark::kMicrosecond)->Apply([](auto* b) {
  b->ArgNames({"format", "isa"});
  for (MatrixFormat format : {MatrixFormat::kBf16, MatrixFormat::kMxfp4, MatrixFormat::kInt8}) {
    for (Isa isa : supported_isas()) {
      b->Args({static_cast<int64_t>(format), static_cast<int64_t>(isa)});
    }
  }
});
BENCHMARK(prefill)->Apply([](auto* b) { sizes(b, {512, 2048}); });

}  // namespace
}  // namespace triax::sequence
