// Time to load a vocabulary and to encode text.
#include <benchmark/benchmark.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "testing/testing.h"
#include "text/tokenizer.h"

namespace triax::text {
namespace {

const std::string kBoot = testing::source_directory() + "/models/boot-k3";

std::string kimi_vocabulary() {
  return testing::shared_directory() + "/data/kimi-tokenizer/tiktoken.model";
}

void load_boot_k3(benchmark::State& state) {
  for (auto _ : state) {
    benchmark::DoNotOptimize(Tokenizer::load(kBoot).ok());
  }
}
BENCHMARK(load_boot_k3)->Unit(benchmark::kMillisecond);

void load_kimi(benchmark::State& state) {
  if (!std::filesystem::exists(kimi_vocabulary())) {
    state.SkipWithError("needs the shared test data: Kimi's vocabulary");
    return;
  }
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        Tokenizer::from_vocabulary(kimi_vocabulary(), SpecialSet::kKimiK3).ok());
  }
}
BENCHMARK(load_kimi)->Unit(benchmark::kMillisecond);

void encode(benchmark::State& state, const std::string& text) {
  const auto tokenizer = Tokenizer::load(kBoot);
  if (!tokenizer.ok()) {
    state.SkipWithError(tokenizer.status().message().c_str());
    return;
  }
  size_t tokens = 0;
  for (auto _ : state) {
    tokens += tokenizer->encode(text).size();
  }
  state.SetBytesProcessed(static_cast<int64_t>(text.size()) * state.iterations());
  state.counters["tokens"] =
      benchmark::Counter(static_cast<double>(tokens), benchmark::Counter::kIsRate);
}

void encode_prose(benchmark::State& state) {
  std::ifstream file(kBoot + "/heldout.txt");
  std::stringstream text;
  text << file.rdbuf();
  encode(state, text.str());
}
BENCHMARK(encode_prose)->Unit(benchmark::kMillisecond);

void encode_a_short_message(benchmark::State& state) {
  encode(state, "What is the capital of France?");
}
BENCHMARK(encode_a_short_message);

/// One letter a million times: the longest pieces, hence the most merging.
void encode_one_letter(benchmark::State& state) { encode(state, std::string(1000000, 'a')); }
BENCHMARK(encode_one_letter)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace triax::text
