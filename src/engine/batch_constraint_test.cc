// Requests with a form: what is drawn has it, greedily and sampled, in choices, with drafts, beside
// requests that are free.
#include <gtest/gtest.h>

#include <regex>
#include <string>

#include "engine/batch_testing.h"
#include "text/test_vocabulary.h"

namespace triax::testing {
namespace {

constexpr const char* kPattern = "(ab|[c-f]{2,3})+-[0-9]{2,5};";
constexpr int32_t kStop = 255;  // a byte that the pattern does not have

class BatchConstraint : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    engine::EngineOptions options;
    options.context_tokens = 2048;
    Result<std::unique_ptr<engine::Engine>> made = engine::Engine::create(small_weights(), options);
    ASSERT_TRUE(made.ok()) << made.status().message();
    engine_ = made->release();
    // The test vocabulary's first 256 tokens are the bytes: the small model's whole output.
    tokenizer_ = new text::Tokenizer(text::test_tokenizer());
    auto compiler = text::ConstraintCompiler::create(*tokenizer_, {kStop});
    ASSERT_TRUE(compiler.ok()) << compiler.status().message();
    auto compiled =
        (*compiler)->compile({.kind = text::ConstraintSpec::Kind::kRegex, .text = kPattern});
    ASSERT_TRUE(compiled.ok()) << compiled.status().message();
    constraint_ = *compiled;
  }
  static void TearDownTestSuite() {
    constraint_.reset();
    delete tokenizer_;
    delete engine_;
  }

  static BatchRequest request(uint64_t seed, float temperature) {
    BatchRequest r;
    r.prompt = random_tokens(20 + static_cast<int64_t>(seed), seed);
    r.sampling.temperature = temperature;
    r.sampling.seed = seed;
    r.max_tokens = 100;
    r.stop_ids = {kStop};
    r.constraint = constraint_;
    return r;
  }

  static void expect_form(const Answer& answer) {
    ASSERT_TRUE(answer.ended);
    ASSERT_FALSE(answer.failed) << answer.error.message();
    std::string text;
    for (const int32_t id : answer.tokens) {
      text += static_cast<char>(id);
    }
    if (answer.reason == engine::FinishReason::kStop) {
      EXPECT_EQ(answer.tokens.back(), kStop);
      text.pop_back();
      EXPECT_TRUE(std::regex_match(text, std::regex(kPattern))) << text;
    } else {
      EXPECT_TRUE(std::regex_match(text, std::regex("[a-f]+"))) << text;  // greedy, for ever
    }
  }

  static engine::Engine* engine_;
  static text::Tokenizer* tokenizer_;
  static std::shared_ptr<const text::Constraint> constraint_;
};

engine::Engine* BatchConstraint::engine_ = nullptr;
text::Tokenizer* BatchConstraint::tokenizer_ = nullptr;
std::shared_ptr<const text::Constraint> BatchConstraint::constraint_;

TEST_F(BatchConstraint, EveryAnswerHasTheFormAndIsThatOfAColdRun) {
  BatchRunner runner(*engine_, {});
  std::vector<BatchRequest> requests;
  std::vector<RequestId> ids;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    requests.push_back(request(seed, seed % 3 == 0 ? 0.0f : 1.0f));
    requests.back().choices = seed % 4 == 1 ? 3 : 1;
    ids.push_back(runner.submit(requests.back()));
  }
  BatchRequest free = request(50, 1.0f);
  free.constraint = nullptr;
  free.max_tokens = 30;
  const RequestId free_id = runner.submit(free);
  runner.run();
  int stopped = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    for (int32_t choice = 0; choice < requests[i].choices; ++choice) {
      const Answer& answer = runner.answer(ids[i], choice);
      expect_form(answer);
      expect_same(answer, cold_answer(*engine_, requests[i], choice));
      stopped += answer.reason == engine::FinishReason::kStop ? 1 : 0;
    }
  }
  EXPECT_GT(stopped, 8);
  expect_same(runner.answer(free_id), cold_answer(*engine_, free));
}

TEST_F(BatchConstraint, DraftsChangeNothing) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    BatchRunner plain(*engine_, {});
    const Answer expected = plain.ask(request(seed, 1.0f));
    expect_form(expected);
    // Guesses that are right now and then, outside the form now and then.
    BatchRequest drafted = request(seed, 1.0f);
    const size_t prompt = drafted.prompt.size();
    drafted.draft_tokens = 5;
    drafted.drafter = [&](std::span<const int32_t> tokens, int64_t count) {
      std::vector<int32_t> draft;
      for (size_t at = tokens.size() - prompt;
           at < expected.tokens.size() && static_cast<int64_t>(draft.size()) < count; ++at) {
        draft.push_back(at % 7 == 3 ? 'c' : at % 11 == 5 ? 'z' : expected.tokens[at]);
      }
      return draft;
    };
    BatchRunner runner(*engine_, {});
    const Answer answer = runner.ask(drafted);
    EXPECT_EQ(answer.tokens, expected.tokens);
    EXPECT_GT(answer.usage.accepted_tokens, 0);
  }
}

TEST_F(BatchConstraint, ABiasThatLeavesNothingFailsThatRequestAlone) {
  BatchRunner runner(*engine_, {});
  BatchRequest r = request(1, 1.0f);
  for (const int32_t id : {'a', 'c', 'd', 'e', 'f'}) {
    r.sampling.logit_bias[id] = -std::numeric_limits<float>::infinity();
  }
  const RequestId bad = runner.submit(r);
  const RequestId good = runner.submit(request(2, 1.0f));
  runner.run();
  EXPECT_TRUE(runner.answer(bad).failed);
  EXPECT_NE(runner.answer(bad).error.message().find("may be drawn"), std::string::npos)
      << runner.answer(bad).error.message();
  expect_form(runner.answer(good));
}

}  // namespace
}  // namespace triax::testing
