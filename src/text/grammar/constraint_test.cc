// Masks against every token by its bytes; states that go back; what is remembered; several threads.
#include "text/grammar/constraint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "text/grammar/grammar_testing.h"

namespace triax::text {
namespace {

const std::vector<std::pair<Kind, std::string>>& forms() {
  static const std::vector<std::pair<Kind, std::string>> list = {
      {Kind::kJsonObject, ""},
      {Kind::kJsonSchema, R"({"type":"object","properties":{"the":{"type":"string"},
          "in":{"type":"array","items":{"type":"integer","minimum":-12,"maximum":1234}},
          "abc":{"anyOf":[{"type":"null"},{"$ref":"#"}]}},"required":["the"]})"},
      {Kind::kJsonSchema, R"({"type":"string","minLength":2,"maxLength":40})"},
      {Kind::kJsonSchema, R"({"type":"object","additionalProperties":{"type":"number"}})"},
      {Kind::kRegex, "(ab|abc|c)*[0-9]{2,4}the?"},
      {Kind::kRegex, "[^a]{3,}|\xe4\xba\xba*"},
      {Kind::kGrammar,
       "root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"12\" | ing\n"
       "ing ::= [a-c] ing | \"\""},
  };
  return list;
}

TEST(Constraint, MaskIsWhatEveryTokensBytesSay) {
  ConstraintRig rig(test_tokenizer());
  Rng rng(7);
  std::vector<uint64_t> mask(static_cast<size_t>((rig.tokenizer.size() + 63) / 64));
  int64_t compared = 0;
  for (const auto& [kind, text] : forms()) {
    const SharedConstraint constraint = rig.compile(kind, text);
    for (int walk = 0; walk < 12; ++walk) {
      ConstraintState state(constraint);
      for (int step = 0; step < 40; ++step) {
        state.fill_mask(mask);
        std::vector<int32_t> allowed;
        for (int32_t id = 0; id < rig.tokenizer.size(); ++id) {
          // Its own copy of the position goes byte by byte; a special token is no bytes.
          ConstraintState probe = state;
          const bool is_stop = std::ranges::find(rig.stops, id) != rig.stops.end();
          const bool expected = is_stop ? state.is_complete()
                                : rig.tokenizer.is_special(id)
                                    ? false
                                    : takes(rig.tokenizer, probe, rig.tokenizer.bytes(id));
          ASSERT_EQ(has_bit(mask, id), expected) << text << " token " << id;
          ASSERT_EQ(state.allows(id), expected);
          ++compared;
          if (expected && !is_stop) {
            allowed.push_back(id);
          }
        }
        if (allowed.empty()) {
          break;
        }
        ASSERT_TRUE(state.accept(allowed[rng.next() % allowed.size()]));
      }
    }
  }
  EXPECT_GT(compared, 100'000);
}

TEST(Constraint, AfterAStopTokenOnlyStopTokensFollow) {
  ConstraintRig rig(test_tokenizer());
  ConstraintState state(rig.compile(Kind::kRegex, "a"));
  EXPECT_FALSE(state.is_complete());
  EXPECT_FALSE(state.accept(rig.stops[0]));
  EXPECT_TRUE(takes(rig.tokenizer, state, "a"));
  EXPECT_TRUE(state.is_complete());
  EXPECT_FALSE(takes(rig.tokenizer, state, "a"));
  EXPECT_TRUE(state.accept(rig.stops[0]));
  std::vector<uint64_t> mask(static_cast<size_t>((rig.tokenizer.size() + 63) / 64) + 2, ~0ULL);
  state.fill_mask(mask);
  for (int32_t id = 0; id < static_cast<int32_t>(64 * mask.size()); ++id) {
    EXPECT_EQ(has_bit(mask, id), std::ranges::find(rig.stops, id) != rig.stops.end()) << id;
  }
}

TEST(Constraint, RollbackLeadsWhereTheStateWas) {
  ConstraintRig rig(test_tokenizer());
  Rng rng(11);
  for (const auto& [kind, text] : forms()) {
    const SharedConstraint constraint = rig.compile(kind, text);
    ConstraintState state(constraint);
    std::vector<int32_t> ids;
    random_walk(state, rig, rng, 20, 60, ids);
    for (int round = 0; round < 20; ++round) {
      const auto keep = static_cast<int64_t>(rng.next() % (ids.size() + 1));
      state.rollback(state.accepted() - keep);
      ConstraintState fresh(constraint);
      std::vector<uint64_t> a(16), b(16);
      for (int64_t i = 0; i < keep; ++i) {
        ASSERT_TRUE(fresh.accept(ids[static_cast<size_t>(i)]));
      }
      state.fill_mask(a);
      fresh.fill_mask(b);
      EXPECT_EQ(a, b);
      for (auto i = static_cast<size_t>(keep); i < ids.size(); ++i) {
        ASSERT_TRUE(state.accept(ids[i]));
      }
    }
  }
}

TEST(Constraint, IsRememberedByTextWithinALimit) {
  ConstraintRig rig(test_tokenizer(), {.cache_bytes = 100'000});
  const SharedConstraint first = rig.compile(Kind::kRegex, "a");
  EXPECT_EQ(first, rig.compile(Kind::kRegex, "a"));
  EXPECT_NE(first, rig.compile(Kind::kGrammar, "root ::= \"a\""));
  for (int i = 0; i < 200; ++i) {
    rig.compile(Kind::kRegex, "b{" + std::to_string(i + 1) + "}");
  }
  EXPECT_NE(first, rig.compile(Kind::kRegex, "a"));
  EXPECT_TRUE(matches(rig.tokenizer, first, "a"));  // its holders keep it
}

TEST(Constraint, OneConstraintServesSeveralThreads) {
  ConstraintRig rig(test_tokenizer());
  const SharedConstraint constraint = rig.compile(Kind::kJsonObject, "");
  std::vector<std::thread> threads;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&, seed] {
      Rng rng(seed);
      for (int i = 0; i < 20; ++i) {
        ConstraintState state(constraint);
        std::vector<int32_t> ids;
        random_walk(state, rig, rng, 30, 400, ids);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST(Constraint, AmbiguityDoesNotMultiplyWithDepth) {
  // Every "a" may return in two ways: 2^200 stacks, one frame a position here.
  ConstraintRig rig(test_tokenizer());
  const SharedConstraint constraint =
      rig.compile(Kind::kGrammar, "root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"\"");
  std::string text(200, 'a');
  for (int i = 0; i < 200; ++i) {
    text += i % 3 == 0 ? 'b' : 'c';
  }
  EXPECT_TRUE(matches(rig.tokenizer, constraint, text));
  EXPECT_FALSE(matches(rig.tokenizer, constraint, text + "b"));
  EXPECT_LT(constraint->bytes(), 2 << 20);
}

TEST(Constraint, MemoryStaysWithinItsLimitOverLongTexts) {
  // Each position of this grammar is new: what has been worked out must be forgotten.
  ConstraintRig rig(test_tokenizer());
  const SharedConstraint constraint =
      rig.compile(Kind::kGrammar, "root ::= \"a\" root \"b\" | \"c\"");
  ConstraintState state(constraint);
  const int32_t a = rig.tokenizer.encode("a").front();
  int64_t most = 0;
  for (int i = 0; i < 250'000; ++i) {
    ASSERT_TRUE(state.accept(a));
    most = std::max(most, i % 1000 == 0 ? constraint->bytes() : 0);
  }
  EXPECT_GT(most, 60 << 20);  // the limit was reached ...
  EXPECT_LT(constraint->bytes(), most * 2);
  ConstraintState other(constraint);
  EXPECT_TRUE(takes(rig.tokenizer, other, "aaacbbb"));
  EXPECT_TRUE(takes(rig.tokenizer, state, "cbbb"));
  EXPECT_FALSE(state.is_complete());
  state.rollback(state.accepted());
  EXPECT_TRUE(takes(rig.tokenizer, state, "acb"));
  EXPECT_TRUE(state.is_complete());
}

}  // namespace
}  // namespace triax::text
