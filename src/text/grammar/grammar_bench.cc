// What a constraint costs at Kimi's vocabulary: to compile, and for each token its mask and step.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "base/rng.h"
#include "testing/testing.h"
#include "text/chat.h"
#include "text/grammar/constraint.h"

namespace triax::text {
namespace {

using Clock = std::chrono::steady_clock;
using Kind = ConstraintSpec::Kind;

constexpr const char* kPerson = R"({"type":"object","properties":{
  "name":{"type":"string"},"age":{"type":"integer","minimum":0,"maximum":150},
  "email":{"type":"string","format":"email"},"born":{"type":"string","format":"date"},
  "role":{"enum":["admin","editor","reader"]},"score":{"type":"number","minimum":0,"maximum":1},
  "tags":{"type":"array","items":{"type":"string","maxLength":40},"maxItems":10},
  "address":{"type":"object","properties":{"street":{"type":"string"},"city":{"type":"string"},
  "zip":{"type":"string","pattern":"^[0-9]{5}$"}},"required":["street","city","zip"]}},
  "required":["name","age","email","born","role","score","tags","address"]})";
constexpr const char* kTree = R"({"$defs":{"node":{"type":"object","properties":{
  "label":{"type":"string"},"value":{"type":["number","null"]},
  "children":{"type":"array","items":{"$ref":"#/$defs/node"}}},
  "required":["label","value","children"],"additionalProperties":false}},"$ref":"#/$defs/node"})";
constexpr const char* kLengths = R"({"type":"array","minItems":3,"maxItems":50,
  "items":{"type":"string","minLength":5,"maxLength":60}})";

struct Vocabulary160k {
  Tokenizer tokenizer;
  std::vector<int32_t> stops;
  std::unique_ptr<ConstraintCompiler> compiler;
};

/// Null where the shared data is not there.
Vocabulary160k* kimi() {
  static const std::unique_ptr<Vocabulary160k> loaded = []() -> std::unique_ptr<Vocabulary160k> {
    auto tokenizer = Tokenizer::from_vocabulary(
        testing::shared_directory() + "/data/kimi-tokenizer/tiktoken.model", SpecialSet::kKimiK3);
    if (!tokenizer.ok()) {
      return nullptr;
    }
    auto result = std::make_unique<Vocabulary160k>(Vocabulary160k{*std::move(tokenizer), {}, {}});
    result->stops = stop_token_ids(ChatFormat::kKimiK3, result->tokenizer);
    // No cache: each compile is a first one.
    result->compiler =
        *ConstraintCompiler::create(result->tokenizer, result->stops, {.cache_bytes = 0});
    return result;
  }();
  return loaded.get();
}

void compile(benchmark::State& state, Kind kind, const char* text) {
  Vocabulary160k* const vocabulary = kimi();
  if (vocabulary == nullptr) {
    state.SkipWithError("needs the shared test data: Kimi's vocabulary");
    return;
  }
  int i = 0;
  for (auto _ : state) {
    // Trailing space keeps the newest constraint of the cache from answering.
    const std::string unique = std::string(text) + std::string(static_cast<size_t>(++i % 2), ' ');
    benchmark::DoNotOptimize(vocabulary->compiler->compile({.kind = kind, .text = unique}).ok());
  }
}

double at_share(std::vector<double>& sorted, double share) {
  return sorted.empty()
             ? 0.0
             : sorted[static_cast<size_t>(share * static_cast<double>(sorted.size() - 1))];
}

/// Answers drawn at random among the allowed tokens, which is wilder than any model: the first
/// answer alone, then the percentiles over the others.
void tokens(benchmark::State& state, Kind kind, const char* text) {
  Vocabulary160k* const vocabulary = kimi();
  if (vocabulary == nullptr) {
    state.SkipWithError("needs the shared test data: Kimi's vocabulary");
    return;
  }
  const auto constraint = vocabulary->compiler->compile({.kind = kind, .text = text});
  if (!constraint.ok()) {
    state.SkipWithError(constraint.status().message().c_str());
    return;
  }
  Rng rng(1);
  std::vector<uint64_t> mask(static_cast<size_t>((*constraint)->mask_words()));
  std::vector<double> times;
  double first_max = 0.0;
  bool first = true;
  for (auto _ : state) {
    ConstraintState sequence(*constraint);
    for (int i = 0; i < 300; ++i) {
      const auto begin = Clock::now();
      sequence.fill_mask(mask);
      const auto filled = Clock::now();
      int32_t id = -1;
      for (int tries = 0; id < 0 && tries < 100'000; ++tries) {
        // Mostly short tokens, as in text; few of 163,584 random ones would be.
        const uint64_t range = rng.next() % 3 == 0 ? 163'584 : 5'000;
        const auto candidate = static_cast<int32_t>(rng.next() % range);
        id = (mask[static_cast<size_t>(candidate) / 64] >> (candidate % 64) & 1) != 0 ? candidate
                                                                                      : -1;
      }
      if (id < 0) {
        break;  // complete, or too few tokens to find one
      }
      const auto step = Clock::now();
      sequence.accept(id);
      const double us = std::chrono::duration<double, std::micro>(Clock::now() - step).count() +
                        std::chrono::duration<double, std::micro>(filled - begin).count();
      (first ? first_max : times.emplace_back(us)) = std::max(first ? first_max : 0.0, us);
    }
    first = false;
  }
  std::sort(times.begin(), times.end());
  state.counters["tokens"] = static_cast<double>(times.size());
  state.counters["first_max_us"] = first_max;
  state.counters["median_us"] = at_share(times, 0.5);
  state.counters["p99_us"] = at_share(times, 0.99);
  state.counters["p999_us"] = at_share(times, 0.999);
  state.counters["MB"] = static_cast<double>((*constraint)->bytes()) / 1e6;
}

BENCHMARK_CAPTURE(compile, person, Kind::kJsonSchema, kPerson)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(compile, tree, Kind::kJsonSchema, kTree)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(compile, lengths, Kind::kJsonSchema, kLengths)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(tokens, json_object, Kind::kJsonObject, "")->Iterations(60);
BENCHMARK_CAPTURE(tokens, person, Kind::kJsonSchema, kPerson)->Iterations(60);
BENCHMARK_CAPTURE(tokens, tree, Kind::kJsonSchema, kTree)->Iterations(60);
BENCHMARK_CAPTURE(tokens, lengths, Kind::kJsonSchema, kLengths)->Iterations(60);
BENCHMARK_CAPTURE(tokens, words, Kind::kRegex, "[a-z]+( [a-z]+)*")->Iterations(60);
BENCHMARK_CAPTURE(tokens, anything, Kind::kRegex, "(.|\n)*")->Iterations(60);

}  // namespace
}  // namespace triax::text
