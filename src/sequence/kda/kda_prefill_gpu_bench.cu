// Time of the KDA prefill kernel on random data, each case behind a check of its results.
//   kda_prefill_gpu_bench [--quick]
#include <cstring>

#include "sequence/kda/kda_gpu_case.cuh"

namespace triax::sequence {
namespace {

using gpu_case::Case;

constexpr double kCopyBytesPerSecond = 4.231e12;  // measured, docs/kernels/kda.md
constexpr double kBytesPerTokenHead = 5 * 256 + 2;

struct Gates {
  const char* name;
  float mean, deviation;
};
constexpr Gates kNormal = {"normal", 0.0f, 1.0f};  // mean log decay -2.5 a token
constexpr Gates kSlow = {"slow", -7.0f, 1.0f};     // about -0.007

bool run(const std::vector<int64_t>& lengths, int64_t heads, const Gates& gates,
         int64_t segment = 0) {
  Case c(lengths, {.heads = heads, .gate_mean = gates.mean, .gate_deviation = gates.deviation});
  const std::vector<float> initial = c.states.get();
  c.args.segment_tokens = segment;
  c.args.tokens_max = c.tokens;
  testing::GpuArray<float> scratch(
      static_cast<size_t>(triax_cuda_kda_prefill_scratch_bytes(&c.args)) / sizeof(float));
  c.args.segment_scratch = scratch.data();
  testing::gpu_check(static_cast<cudaError_t>(triax_cuda_kda_prefill(&c.args, 0, nullptr)),
                     "prefill");
  testing::gpu_check(cudaDeviceSynchronize(), "prefill");
  Case::Errors worst{0.0, 0.0};
  for (const int64_t head : {int64_t{0}, heads / 2, heads - 1}) {
    const Case::Errors e = c.errors(initial, lengths.size() / 2, head);
    worst = {std::max(worst.out, e.out), std::max(worst.state, e.state)};
  }
  const bool good = worst.out <= 4e-3 && worst.state <= 3e-3;
  const testing::GpuTime time = testing::time_gpu(
      [&](cudaStream_t stream) { triax_cuda_kda_prefill(&c.args, 0, stream); }, 5, 11);
  const double bytes =
      kBytesPerTokenHead * static_cast<double>(c.tokens * heads) +
      8.0 * static_cast<double>(lengths.size()) * static_cast<double>(c.state_size());
  std::printf(
      "{\"bench\":\"kda_prefill\",\"tokens\":%lld,\"sequences\":%zu,\"heads\":%lld,"
      "\"gates\":\"%s\",\"segment\":%lld,\"us\":%.1f,\"p10\":%.1f,\"p90\":%.1f,\"bytes\":%.0f,"
      "\"share\":%.3f,\"error_out\":%.2e,\"error_state\":%.2e,\"good\":%s}\n",
      static_cast<long long>(c.tokens), lengths.size(), static_cast<long long>(heads), gates.name,
      static_cast<long long>(segment), time.median_us, time.p10_us, time.p90_us, bytes,
      bytes / (time.median_us * 1e-6) / kCopyBytesPerSecond, worst.out, worst.state,
      good ? "true" : "false");
  std::fflush(stdout);
  return good;
}

}  // namespace
}  // namespace triax::sequence

int main(int argc, char** argv) {
  using namespace triax::sequence;
  const bool quick = argc > 1 && std::strcmp(argv[1], "--quick") == 0;
  bool good = true;
  const std::vector<int64_t> mixed = {1300, 547, 2048, 963, 271, 3063};
  for (const Gates& gates : {kNormal, kSlow}) {
    good &= run({8192}, 96, gates);
    good &= run({8192}, 32, gates);
    good &= run({65536}, 4, gates, 2048);
    if (quick) {
      continue;
    }
    good &= run({8192}, 64, gates);
    good &= run(std::vector<int64_t>(8, 1024), 96, gates);
    good &= run(mixed, 96, gates);
    good &= run({8192}, 12, gates);
    good &= run({8192}, 12, gates, 1024);
    good &= run({65536}, 12, gates, 2048);
    good &= run({65536}, 12, gates, 4096);
    good &= run({65536}, 4, gates, 1024);
  }
  return good ? 0 : 1;
}
