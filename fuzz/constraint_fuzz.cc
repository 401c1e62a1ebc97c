// Bytes as a schema, an expression and a grammar: compiled or refused within the limits; what is
// drawn under a compiled one is accepted again, also after going back.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "text/grammar/constraint.h"
#include "text/test_vocabulary.h"

namespace {

using namespace triax;  // NOLINT: this file is one function

/// Always the first allowed token from a start that moves with `salt`: a walk without chance.
void walk(const text::Tokenizer& tokenizer, std::shared_ptr<const text::Constraint> constraint,
          size_t salt) {
  text::ConstraintState state(constraint);
  std::vector<uint64_t> mask(static_cast<size_t>(constraint->mask_words()));
  std::vector<int32_t> drawn;
  const auto size = static_cast<size_t>(tokenizer.size());
  for (size_t step = 0; step < 30; ++step) {
    state.fill_mask(mask);
    int32_t id = -1;
    for (size_t i = 0; i < size && id < 0; ++i) {
      const size_t candidate = (i + salt * (step + 1)) % size;
      id = (mask[candidate / 64] >> (candidate % 64) & 1) != 0 ? static_cast<int32_t>(candidate)
                                                               : -1;
    }
    if (id < 0) {
      break;
    }
    check(state.allows(id), "a token of the mask is not allowed");
    check(state.accept(id), "a token of the mask is not accepted");
    drawn.push_back(id);
  }
  state.rollback(state.accepted());
  for (const int32_t id : drawn) {
    check(state.accept(id), "a token is not accepted a second time");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const text::Tokenizer tokenizer = text::test_tokenizer();
  const auto compiler = text::ConstraintCompiler::create(
      tokenizer, {0}, {.source_bytes = 4096, .automaton_states = 20'000, .cache_bytes = 0});
  check(compiler.ok(), compiler.status().message());
  using Kind = text::ConstraintSpec::Kind;
  for (const Kind kind : {Kind::kJsonSchema, Kind::kRegex, Kind::kGrammar}) {
    const auto constraint = (*compiler)->compile(
        {.kind = kind, .text = std::string(reinterpret_cast<const char*>(data), size)});
    if (!constraint.ok()) {
      check(!constraint.status().message().empty(), "an error without a message");
      continue;
    }
    walk(tokenizer, *constraint, size);
  }
  return 0;
}
