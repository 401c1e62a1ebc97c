// What the tests, the bench and the fuzzer of constraints share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/rng.h"
#include "text/chat.h"
#include "text/grammar/constraint.h"
#include "text/test_vocabulary.h"

namespace triax::text {

using Kind = ConstraintSpec::Kind;
using SharedConstraint = std::shared_ptr<const Constraint>;

/// A compiler for a tokenizer of one of the chat formats.
struct ConstraintRig {
  explicit ConstraintRig(Tokenizer t, const ConstraintLimits& limits = {})
      : tokenizer(std::move(t)),
        format(*detect_chat_format(tokenizer)),
        stops(stop_token_ids(format, tokenizer)) {
    auto made = ConstraintCompiler::create(tokenizer, stops, limits);
    check(made.ok(), made.status().message());
    compiler = *std::move(made);
  }

  SharedConstraint compile(Kind kind, std::string text) {
    auto constraint = compiler->compile({.kind = kind, .text = std::move(text)});
    check(constraint.ok(), constraint.status().message());
    return *constraint;
  }
  std::string error(Kind kind, std::string text) {
    auto constraint = compiler->compile({.kind = kind, .text = std::move(text)});
    return constraint.ok() ? "" : constraint.status().message();
  }

  Tokenizer tokenizer;
  ChatFormat format;
  std::vector<int32_t> stops;
  std::unique_ptr<ConstraintCompiler> compiler;
};

/// Whether `text`, byte by byte, is taken.
inline bool takes(const Tokenizer& tokenizer, ConstraintState& state, std::string_view text) {
  for (const char c : text) {
    if (!state.accept(tokenizer.encode(std::string_view(&c, 1)).front())) {
      return false;
    }
  }
  return true;
}

/// Whether `text` as a whole has the form.
inline bool matches(const Tokenizer& tokenizer, const SharedConstraint& constraint,
                    std::string_view text) {
  ConstraintState state(constraint);
  return takes(tokenizer, state, text) && state.is_complete();
}

inline bool has_bit(const std::vector<uint64_t>& mask, int32_t id) {
  return (mask[static_cast<size_t>(id) / 64] >> (id % 64) & 1) != 0;
}

/// Draws allowed tokens until a stop token; after `calm` tokens those first that close things, so
/// that recursion ends. Nothing when `tokens_max` were not enough.
inline bool random_walk(ConstraintState& state, const ConstraintRig& rig, Rng& rng, int calm,
                        int tokens_max, std::vector<int32_t>& ids) {
  std::vector<uint64_t> mask(static_cast<size_t>((rig.tokenizer.size() + 63) / 64));
  ids.clear();
  for (int i = 0; i < tokens_max; ++i) {
    state.fill_mask(mask);
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < rig.tokenizer.size(); ++id) {
      if (has_bit(mask, id)) {
        allowed.push_back(id);
      }
    }
    if (allowed.empty()) {
      return false;
    }
    int32_t drawn = allowed[rng.next() % allowed.size()];
    if (i >= calm) {
      for (const char* closing : {"\"", "}", "]"}) {
        const int32_t id = rig.tokenizer.encode(closing).front();
        drawn = has_bit(mask, id) ? id : drawn;
      }
      for (int32_t id = rig.tokenizer.ranks(); id < rig.tokenizer.size(); ++id) {
        drawn = has_bit(mask, id) ? id : drawn;
      }
      for (const char* closing :
           {"<|close|>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"}) {
        const auto id = rig.tokenizer.special(closing);
        drawn = id && has_bit(mask, *id) ? *id : drawn;
      }
      for (const int32_t stop : rig.stops) {
        drawn = has_bit(mask, stop) ? stop : drawn;
      }
    }
    check(state.accept(drawn), "a token of the mask is accepted");
    if (std::find(rig.stops.begin(), rig.stops.end(), drawn) != rig.stops.end()) {
      return true;
    }
    ids.push_back(drawn);
  }
  return false;
}

}  // namespace triax::text
