// Conversations: what one turn computed serves the next, and any turn can be stopped.
#include "engine/session.h"

#include "engine/chat.h"
#include "golden.h"

namespace triax::testing {
namespace {

class SessionTest : public ::testing::TestWithParam<TestDevice> {
 protected:
  void SetUp() override {
    engine_ = open_engine(boot_directory(), GetParam());
    ASSERT_NE(engine_, nullptr);
    params_.sampling.temperature = 0.0f;
    params_.max_tokens = 48;
  }

  std::unique_ptr<engine::ChatSession> chat() {
    Result<std::unique_ptr<engine::ChatSession>> session = engine::ChatSession::create(
        *engine_, {.system = {}, .thinking = true, .effort = {}, .stops = {}});
    EXPECT_TRUE(session.ok()) << session.status().message();
    return std::move(*session);
  }

  engine::ChatTurn ask(engine::ChatSession& session, const std::string& text) {
    Result<engine::ChatTurn> turn =
        session.ask(text, params_, [](const text::OutputEvent&) { return true; });
    EXPECT_TRUE(turn.ok()) << turn.status().message();
    return std::move(*turn);
  }

  std::unique_ptr<engine::Engine> engine_;
  engine::GenerateParams params_;
};

TEST_P(SessionTest, ItAnswersAQuestionOfItsTraining) {
  const auto session = chat();
  const engine::ChatTurn turn = ask(*session, "What is Debian?");
  EXPECT_EQ(turn.message.content,
            "Debian is a free operating system, made by volunteers. It contains many thousands of "
            "packages of free software.");
  EXPECT_EQ(turn.generated.reason, engine::FinishReason::kStop);
  EXPECT_EQ(turn.generated.reused_tokens, 0);
}

TEST_P(SessionTest, TheSecondTurnDoesNotRecomputeTheFirst) {
  const auto session = chat();
  const engine::ChatTurn first = ask(*session, "What is Debian?");
  const engine::ChatTurn second = ask(*session, "Who are you?");
  // All but the token that ended the answer: it was sampled and never run.
  EXPECT_EQ(
      second.generated.reused_tokens,
      first.generated.prompt_tokens + static_cast<int64_t>(first.generated.tokens.size()) - 1);
  // A cold session gives the same answer to the same conversation.
  const auto cold = chat();
  engine::Session fresh(*engine_);
  const engine::ChatTurn again = ask(*cold, "What is Debian?");
  EXPECT_EQ(again.message.content, first.message.content);
}

TEST_P(SessionTest, WarmAndColdGiveTheSameTokens) {
  const auto session = chat();
  ask(*session, "What is Debian?");
  const engine::ChatTurn warm = ask(*session, "Who are you?");
  std::vector<int32_t> prompt = session->session().state().tokens();
  prompt.resize(static_cast<size_t>(warm.generated.prompt_tokens));
  engine::Session cold(*engine_);
  engine::GenerateParams params = params_;
  params.stop_ids = {warm.generated.tokens.back()};
  const Result<engine::Generated> generated = cold.generate(prompt, params);
  ASSERT_TRUE(generated.ok()) << generated.status().message();
  EXPECT_EQ(generated->tokens, warm.generated.tokens);
  EXPECT_EQ(generated->reused_tokens, 0);
}

TEST_P(SessionTest, AnEditedTurnFallsBackToTheEndOfTheLastPrompt) {
  engine::Session session(*engine_);
  std::vector<int32_t> prompt = engine_->tokenizer()->encode("The Python standard library");
  ASSERT_TRUE(session.generate(prompt, params_).ok());
  const auto again = session.generate(prompt, params_);  // the same prompt: its answer is undone
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->reused_tokens, static_cast<int64_t>(prompt.size()) - 1);
  prompt.front() += 1;
  const auto other = session.generate(prompt, params_);
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(other->reused_tokens, 0);
}

TEST_P(SessionTest, AStoppedAnswerLeavesAConversationThatGoesOn) {
  const auto session = chat();
  int events = 0;
  const Result<engine::ChatTurn> stopped = session->ask(
      "What is Debian?", params_, [&](const text::OutputEvent&) { return ++events < 5; });
  ASSERT_TRUE(stopped.ok()) << stopped.status().message();
  EXPECT_EQ(stopped->generated.reason, engine::FinishReason::kCancelled);
  EXPECT_LT(stopped->generated.tokens.size(), 20U);
  const engine::ChatTurn next = ask(*session, "Who are you?");
  EXPECT_FALSE(next.message.content.empty());
}

TEST_P(SessionTest, AStopStringEndsTheResponseBeforeIt) {
  const auto session = chat();
  session->settings().stops = {" system"};
  const engine::ChatTurn turn = ask(*session, "What is Debian?");
  EXPECT_EQ(turn.message.content, "Debian is a free operating");
  EXPECT_EQ(turn.generated.reason, engine::FinishReason::kStop);
}

TEST_P(SessionTest, TheSameSeedGivesTheSameTextAndAnotherSeedAnother) {
  const std::vector<int32_t> prompt = engine_->tokenizer()->encode("It was a dark and");
  params_.sampling.temperature = 1.0f;
  params_.sampling.seed = 5;
  const auto sample = [&] {
    engine::Session session(*engine_);
    return session.generate(prompt, params_)->tokens;
  };
  const std::vector<int32_t> first = sample();
  EXPECT_EQ(sample(), first);
  params_.sampling.seed = 6;
  EXPECT_NE(sample(), first);
}

TEST_P(SessionTest, BadRequestsAreRefusedAndTheSessionGoesOn) {
  engine::Session session(*engine_);
  EXPECT_EQ(session.generate({}, params_).status().code(), StatusCode::kInvalidArgument);
  const std::vector<int32_t> outside = {1, 2, 1 << 20};
  EXPECT_EQ(session.generate(outside, params_).status().code(), StatusCode::kInvalidArgument);
  engine::GenerateParams bad = params_;
  bad.sampling.top_p = -1.0f;
  const std::vector<int32_t> prompt = {1, 2, 3};
  EXPECT_EQ(session.generate(prompt, bad).status().code(), StatusCode::kInvalidArgument);
  const std::vector<int32_t> too_long(5000, 65);
  EXPECT_EQ(session.generate(too_long, params_).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(session.generate(prompt, params_).ok());
}

std::vector<TestDevice> session_devices() {
  std::vector<TestDevice> devices = {{Backend::kCpu, best_isa(), 2}};
  add_gpu(devices);
  return devices;
}

INSTANTIATE_TEST_SUITE_P(Devices, SessionTest, ::testing::ValuesIn(session_devices()),
                         [](const auto& param_info) { return param_info.param.name(); });

}  // namespace
}  // namespace triax::testing
