// Time of one MoE layer at the shape of Kimi Linear (experts in MXFP4), beside a plain read of as
// many bytes of weights.
#include <benchmark/benchmark.h>

#include <vector>

#include "testing/testing.h"
#include "width/latent_moe/latent_moe.h"

namespace triax::width {
namespace {

constexpr int64_t kWidth = 2304;
constexpr int64_t kHidden = 1024;
constexpr int64_t kExperts = 64;  // of 256, to fit a small machine; routes and shapes are the real
constexpr int64_t kRoutes = 8;

// Random bits are random MXFP4 numbers; scales near 2^-8 keep them small.
OwnedMatrix random_mxfp4(int64_t rows, int64_t cols, uint64_t seed) {
  OwnedMatrix matrix = make_matrix(MatrixFormat::kMxfp4, rows, cols);
  Rng rng(seed);
  for (int64_t i = 0; i < matrix.data.bytes(); ++i) {
    matrix.data.data<uint8_t>()[i] = static_cast<uint8_t>(rng.next());
  }
  std::fill_n(matrix.scales.data<uint8_t>(), matrix.scales.bytes(), uint8_t{119});
  return matrix;
}

struct Weights {
  Weights() : bias(testing::random_tensor({kExperts}, 1, 0.05)) {
    router = testing::random_matrix(MatrixFormat::kBf16, kExperts, kWidth, 2, 0.02);
    for (int64_t e = 0; e < kExperts; ++e) {
      const auto seed = static_cast<uint64_t>(10 + 3 * e);
      owned.push_back(random_mxfp4(kHidden, kWidth, seed));
      owned.push_back(random_mxfp4(kHidden, kWidth, seed + 1));
      owned.push_back(random_mxfp4(kWidth, kHidden, seed + 2));
      const size_t n = owned.size();
      experts.push_back({owned[n - 3].view, owned[n - 2].view, owned[n - 1].view});
    }
    for (const auto& [rows, cols] :
         {std::pair<int64_t, int64_t>{kHidden, kWidth}, {kHidden, kWidth}, {kWidth, kHidden}}) {
      shared.push_back(testing::random_matrix(MatrixFormat::kBf16, rows, cols, 3, 0.02));
    }
  }

  LatentMoeWeights view() const {
    LatentMoeWeights view;
    view.router = router.view;
    view.router_bias = bias;
    view.experts = experts;
    view.shared = {shared[0].view, shared[1].view, shared[2].view};
    return view;
  }

  Tensor bias;
  OwnedMatrix router;
  std::vector<OwnedMatrix> owned, shared;
  std::vector<MlpWeights> experts;
};

const Weights& weights() {
  static const Weights all;
  return all;
}

int64_t bytes_read(const Tensor& ids) {
  std::vector<bool> hit(static_cast<size_t>(kExperts));
  for (int64_t i = 0; i < ids.view().elements(); ++i) {
    hit[static_cast<size_t>(ids.data<int32_t>()[i])] = true;
  }
  int64_t bytes = weights().router.view.bytes();
  for (size_t e = 0; e < hit.size(); ++e) {
    const MlpWeights& mlp = weights().experts[e];
    bytes += hit[e] ? mlp.gate.bytes() + mlp.up.bytes() + mlp.down.bytes() : 0;
  }
  for (const OwnedMatrix& matrix : weights().shared) {
    bytes += matrix.view.bytes();
  }
  return bytes;
}

void run(benchmark::State& state, Isa isa, dense::Activations precision) {
  const int64_t tokens = state.range(0);
  OwnedDevice device(Backend::kCpu, isa, 1);
  const Tensor in = testing::random_tensor({tokens, kWidth}, 4);
  Tensor out = Tensor::f32({tokens, kWidth});
  Tensor ids(DType::kI32, {tokens, kRoutes});
  Tensor route_weights = Tensor::f32({tokens, kRoutes});
  LatentMoeArgs args;
  args.weights = weights().view();
  args.expert_precision = precision;
  args.in = in;
  args.out = out;
  args.ids = ids;
  args.route_weights = route_weights;
  for (auto _ : state) {
    const Status status = latent_moe(device, args);
    check(status.ok(), status.message());
  }
  state.SetBytesProcessed(state.iterations() * bytes_read(ids));
  const int64_t multiplied = 3 * kWidth * kHidden * (kRoutes + 1) + kExperts * kWidth;
  state.counters["FLOPs"] = benchmark::Counter(static_cast<double>(2 * tokens * multiplied),
                                               benchmark::Counter::kIsIterationInvariantRate);
}

// What a decode step could reach: a read of the bytes of 8 experts.
void read_experts(benchmark::State& state) {
  int64_t bytes = 0;
  benchmark::DoNotOptimize(&weights());
  for (auto _ : state) {
    uint64_t sum = 0;
    for (size_t m = 0; m < static_cast<size_t>(3 * kRoutes); ++m) {
      const OwnedMatrix& matrix = weights().owned[m];
      const auto* words = reinterpret_cast<const uint64_t*>(matrix.data.data<uint8_t>());
      for (int64_t i = 0; i < matrix.data.bytes() / 8; ++i) {
        sum += words[i];
      }
      bytes += matrix.data.bytes();
    }
    benchmark::DoNotOptimize(sum);
  }
  state.SetBytesProcessed(bytes);
}

void register_all() {
  benchmark::RegisterBenchmark("read_experts", read_experts)->Unit(benchmark::kMillisecond);
  for (const Isa isa : supported_isas()) {
    for (const auto precision : {dense::Activations::kF32, dense::Activations::kInt8}) {
      const std::string suffix = precision == dense::Activations::kF32 ? "/f32" : "/int8";
      benchmark::RegisterBenchmark(
          ("latent_moe/" + std::string(isa_name(isa)) + suffix).c_str(),
          [isa, precision](benchmark::State& state) { run(state, isa, precision); })
          ->Arg(1)
          ->Arg(128)
          ->Unit(benchmark::kMillisecond);
    }
  }
}

const bool registered = (register_all(), true);

}  // namespace
}  // namespace triax::width
