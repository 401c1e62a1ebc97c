// Time of one draw from K3's vocabulary.
#include <benchmark/benchmark.h>

#include "dense/sampling/sampling.h"

namespace triax::dense {
namespace {

std::vector<float> random_logits(double scale) {
  Rng rng(1);
  std::vector<float> logits(163840);
  for (float& x : logits) {
    x = static_cast<float>(scale * rng.normal());
  }
  return logits;
}

// `spread` is the standard deviation of the logits: 3 leaves about 14,000 tokens in a nucleus of
// 0.95 (much flatter than a language model), 8 a few.
void run(benchmark::State& state, const SamplingParams& params, double spread) {
  const std::vector<float> logits = random_logits(spread);
  Sampler sampler(params);
  for (auto _ : state) {
    benchmark::DoNotOptimize(sampler.sample(logits));
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(logits.size() * 4));
}

void register_all() {
  const SamplingParams greedy = {.temperature = 0.0f};
  const SamplingParams greedy_logprobs = {.temperature = 0.0f, .top_logprobs = 20};
  const SamplingParams plain = {};
  const SamplingParams top_p = {.top_p = 0.95f};
  const SamplingParams top_k = {.top_k = 50, .top_p = 0.95f};
  const SamplingParams min_p = {.min_p = 0.05f};
  const SamplingParams cold = {.temperature = 0.6f, .top_p = 0.95f};
  for (const double spread : {3.0, 8.0}) {
    const std::string suffix = spread == 3.0 ? "/flat" : "/peaked";
    for (const auto& [name, params] : {std::pair<const char*, SamplingParams>{"greedy", greedy},
                                       {"greedy_top_logprobs_20", greedy_logprobs},
                                       {"plain", plain},
                                       {"top_p", top_p},
                                       {"top_k_50_top_p", top_k},
                                       {"min_p", min_p},
                                       {"temperature_top_p", cold}}) {
      benchmark::RegisterBenchmark(
          ("sample/" + std::string(name) + suffix).c_str(),
          [chosen = params, spread](benchmark::State& state) { run(state, chosen, spread); })
          ->Unit(benchmark::kMicrosecond);
    }
  }
}

const bool registered = (register_all(), true);

}  // namespace
}  // namespace triax::dense
