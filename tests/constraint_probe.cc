// Answers tests/constraint_test.py: one request a line {"schema": ..., "texts": [...], "draws": n,
// "seed": n}, one answer a line {"error": "..."} or {"accepted": [...], "drawn": [...]}.
// Usage: constraint_probe MODEL_DIRECTORY
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/rng.h"
#include "text/chat.h"
#include "text/grammar/constraint.h"

namespace {

using namespace triax;        // NOLINT: a program of one file
using namespace triax::text;  // NOLINT
using Json = nlohmann::json;

/// Cut into random tokens: any spelling of the same bytes counts.
bool accepts(const Tokenizer& tokenizer, std::shared_ptr<const Constraint> constraint,
             const std::string& text, Rng& rng) {
  ConstraintState state(std::move(constraint));
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = std::min<size_t>(1 + rng.below(12), text.size() - at);
    for (const int32_t id : tokenizer.encode(std::string_view(text).substr(at, bytes))) {
      if (!state.accept(id)) {
        return false;
      }
    }
    at += bytes;
  }
  return state.is_complete();
}

/// Tokens by chance, those that close something first after `calm` of them; empty when it does not
/// come to an end.
std::string draw(const Tokenizer& tokenizer, const std::vector<int32_t>& stops,
                 std::shared_ptr<const Constraint> constraint, Rng& rng) {
  constexpr int kCalm = 60;
  constexpr int kTokensMax = 3000;
  std::vector<uint64_t> mask(static_cast<size_t>(constraint->mask_words()));
  ConstraintState state(std::move(constraint));
  const auto allowed = [&](int32_t id) {
    return (mask[static_cast<size_t>(id) / 64] >> (id % 64) & 1) != 0;
  };
  std::vector<int32_t> ids;
  for (int i = 0; i < kTokensMax; ++i) {
    state.fill_mask(mask);
    std::vector<int32_t> choices;
    for (int32_t id = 0; id < tokenizer.size(); ++id) {
      if (allowed(id)) {
        choices.push_back(id);
      }
    }
    int32_t id = choices[rng.below(choices.size())];
    if (i >= kCalm) {
      for (const char* closing : {"\"", "}", "]"}) {
        const int32_t close = tokenizer.encode(closing).front();
        id = allowed(close) ? close : id;
      }
      id = allowed(stops[0]) ? stops[0] : id;
    }
    state.accept(id);
    if (std::ranges::find(stops, id) != stops.end()) {
      return tokenizer.decode(ids);
    }
    ids.push_back(id);
  }
  return "";
}

Json answer(const Json& request, const Tokenizer& tokenizer, const std::vector<int32_t>& stops,
            ConstraintCompiler& compiler) {
  const auto constraint = compiler.compile(
      {.kind = ConstraintSpec::Kind::kJsonSchema, .text = request["schema"].get<std::string>()});
  if (!constraint.ok()) {
    return {{"error", constraint.status().message()}};
  }
  Rng rng(request["seed"].get<uint64_t>());
  Json accepted = Json::array();
  for (const Json& text : request["texts"]) {
    accepted.push_back(accepts(tokenizer, *constraint, text.get<std::string>(), rng));
  }
  Json drawn = Json::array();
  for (int i = 0; i < request["draws"].get<int>(); ++i) {
    drawn.push_back(draw(tokenizer, stops, *constraint, rng));
  }
  return {{"accepted", accepted}, {"drawn", drawn}};
}

}  // namespace

int main(int argc, char** argv) {
  const auto tokenizer = Tokenizer::load(argc > 1 ? argv[1] : "");
  if (!tokenizer.ok()) {
    std::cerr << tokenizer.status().message() << "\n";
    return 1;
  }
  const std::vector<int32_t> stops = stop_token_ids(ChatFormat::kKimiK3, *tokenizer);
  const auto compiler = ConstraintCompiler::create(*tokenizer, stops);
  if (!compiler.ok()) {
    std::cerr << compiler.status().message() << "\n";
    return 1;
  }
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << answer(Json::parse(line), *tokenizer, stops, **compiler).dump() << std::endl;
  }
  return 0;
}
