#include "server/api_messages.h"

#include <gtest/gtest.h>

#include <tuple>

#include "server/api_testing.h"

namespace triax::server {
namespace {

using Json = nlohmann::ordered_json;
using text::OutputEvent;
using text::OutputEventKind;
using text::Role;

text::ChatRequest chat_of(std::string_view body) {
  const ApiResult<text::ChatRequest> chat = read_messages_chat(parsed(body), {});
  EXPECT_TRUE(chat.ok()) << chat.error().message;
  return chat.ok() ? *chat : text::ChatRequest();
}

TEST(Messages, AConversationWithToolsBecomesAChat) {
  const text::ChatRequest chat = chat_of(R"({
    "system": [{"type": "text", "text": "Be brief."},
               {"type": "text", "text": "Use tools.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
      {"role": "user", "content": "Weather in Rome and Oslo?"},
      {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "Two calls.", "signature": "unsigned"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Rome"}},
        {"type": "tool_use", "id": "t2", "name": "weather", "input": {"city": "Oslo"}}]},
      {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t2", "content": "cold"},
        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "warm"}]},
        {"type": "text", "text": "In one word?"}]}],
    "tools": [{"name": "weather", "description": "d", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "tool", "name": "weather"},
    "thinking": {"type": "enabled", "budget_tokens": 2000},
    "output_config": {"effort": "xhigh",
                      "format": {"type": "json_schema", "schema": {"type": "object"}}}})");
  ASSERT_EQ(chat.messages.size(), 6u);
  EXPECT_EQ(chat.messages[0].role, Role::kSystem);
  EXPECT_EQ(chat.messages[0].content, "Be brief.Use tools.");
  EXPECT_EQ(chat.messages[0].content_parts, (std::vector<size_t>{9, 10}));
  EXPECT_EQ(chat.messages[1].content, "Weather in Rome and Oslo?");
  EXPECT_EQ(chat.messages[2].reasoning, "Two calls.");
  EXPECT_EQ(chat.messages[2].content, "I look.");
  EXPECT_TRUE(chat.messages[2].content_parts.empty());
  ASSERT_EQ(chat.messages[2].tool_calls.size(), 2u);
  EXPECT_EQ(chat.messages[2].tool_calls[1].id, "t2");
  EXPECT_EQ(chat.messages[2].tool_calls[1].arguments, R"({"city":"Oslo"})");
  EXPECT_EQ(chat.messages[3].role, Role::kTool);
  EXPECT_EQ(chat.messages[3].tool_call_id, "t2");
  EXPECT_EQ(chat.messages[3].name, "weather");
  EXPECT_EQ(chat.messages[4].content, "warm");
  EXPECT_EQ(chat.messages[5].role, Role::kUser);
  EXPECT_EQ(chat.messages[5].content, "In one word?");
  ASSERT_EQ(chat.tools.size(), 1u);
  EXPECT_EQ(
      chat.tools[0].json,
      R"({"type":"function","function":{"name":"weather","description":"d","parameters":{"type":"object"}}})");
  EXPECT_EQ(chat.tool_choice, text::ToolChoice::kRequired);
  EXPECT_EQ(chat.tool_choice_name, "weather");
  EXPECT_TRUE(chat.thinking);
  EXPECT_EQ(chat.thinking_effort, text::ThinkingEffort::kMax);
  EXPECT_EQ(chat.response_schema, R"({"type":"object"})");
}

TEST(Messages, ThinkingIsOffUnlessAskedFor) {
  const char* kMessages = R"("messages": [{"role": "user", "content": "x"}])";
  EXPECT_FALSE(chat_of(fmt::format("{{{}}}", kMessages)).thinking);
  EXPECT_TRUE(
      chat_of(fmt::format(R"({{{}, "thinking": {{"type": "adaptive"}}}})", kMessages)).thinking);
  EXPECT_FALSE(
      chat_of(fmt::format(R"({{{}, "thinking": {{"type": "disabled"}}}})", kMessages)).thinking);
}

TEST(Messages, WhatIsWrongIsNamed) {
  const text::Tokenizer tokenizer = text::test_tokenizer();
  const ModelInfo model = test_model(tokenizer);
  const std::string kUser = R"("max_tokens": 9, "messages": [{"role": "user", "content": "x"}])";
  const auto with = [&](const char* rest) { return "{" + kUser + ", " + rest + "}"; };
  const auto messages = [](const char* list) {
    return fmt::format(R"({{"max_tokens": 9, "messages": {}}})", list);
  };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({})", "max_tokens"},
      {R"({"max_tokens": 9})", "messages"},
      {R"({"max_tokens": 0, "messages": []})", "max_tokens"},
      {R"({"max_tokens": "9", "messages": []})", "max_tokens"},
      {R"({"max_tokens": 1e99, "messages": []})", "max_tokens"},
      {messages("[]"), "messages"},
      {messages("{}"), "messages"},
      {messages("[3]"), "messages[0]"},
      {messages(R"([{"content": "x"}])"), "messages[0].role"},
      {messages(R"([{"role": "tool", "content": "x"}])"), "messages[0].role"},
      {messages(R"([{"role": "user"}])"), "messages[0].content"},
      {messages(R"([{"role": "user", "content": {}}])"), "messages[0].content"},
      {messages(R"([{"role": "user", "content": [1]}])"), "messages[0].content[0]"},
      {messages(R"([{"role": "user", "content": [{}]}])"), "messages[0].content[0].type"},
      {messages(R"([{"role": "user", "content": [{"type": "image"}]}])"),
       "messages[0].content[0].type"},
      {messages(R"([{"role": "user", "content": [{"type": "text"}]}])"),
       "messages[0].content[0].text"},
      {messages(R"([{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]}])"),
       "messages[0].content[0].tool_use_id"},
      {messages(R"([{"role": "user", "content": [{"type": "tool_result"}]}])"),
       "messages[0].content[0].tool_use_id"},
      {messages(R"([{"role": "assistant", "content": [{"type": "tool_use", "id": "t"}]}])"),
       "messages[0].content[0].name"},
      {messages(
           R"([{"role": "assistant", "content": [{"type": "tool_use", "name": "t", "input": 3}]}])"),
       "messages[0].content[0].input"},
      {messages(R"([{"role": "assistant", "content": [{"type": "thinking", "thinking": 3}]}])"),
       "messages[0].content[0].thinking"},
      {messages(R"([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}])"),
       "messages[1]"},
      {with(R"("system": 3)"), "system"},
      {with(R"("system": [{"type": "image"}])"), "system[0].type"},
      {with(R"("tools": {})"), "tools"},
      {with(R"("tools": [3])"), "tools[0]"},
      {with(R"("tools": [{"input_schema": {}}])"), "tools[0].name"},
      {with(R"("tools": [{"name": "a", "input_schema": []}])"), "tools[0].input_schema"},
      {with(R"("tools": [{"name": "a", "type": "web_search_20250305"}])"), "tools[0].type"},
      {with(R"("tool_choice": "any")"), "tool_choice"},
      {with(R"("tool_choice": {"type": "any"})"), "tool_choice"},
      {with(R"("tool_choice": {"type": "some"})"), "tool_choice.type"},
      {with(R"("tool_choice": {"type": "tool"})"), "tool_choice.name"},
      {with(R"("tool_choice": {"type": "tool", "name": "a"})"), "tool_choice.name"},
      {with(R"("thinking": true)"), "thinking"},
      {with(R"("thinking": {"type": "on"})"), "thinking.type"},
      {with(R"("output_config": {"effort": "huge"})"), "output_config.effort"},
      {with(R"("output_config": {"format": {"type": "json_schema"}})"),
       "output_config.format.schema"},
      {with(R"("temperature": -1)"), "temperature"},
      {with(R"("top_p": 0)"), "top_p"},
      {with(R"("top_k": 1.5)"), "top_k"},
      {with(R"("stop_sequences": "x")"), "stop_sequences"},
      {with(R"("stop_sequences": ["a", ""])"), "stop_sequences[1]"},
      {with(R"("stream": 1)"), "stream"},
  };
  for (const auto& [body, field] : cases) {
    const ApiResult<Call> call = read_messages_call(parsed(body), model, "1");
    ASSERT_FALSE(call.ok()) << body;
    EXPECT_EQ(call.error().http_status, 400) << body;
    EXPECT_EQ(call.error().param, field) << body << "\n" << call.error().message;
  }
}

TEST(Messages, SettingsAndLimitsReachTheEngine) {
  const text::Tokenizer tokenizer = text::test_tokenizer();
  const ModelInfo model = test_model(tokenizer);
  const Json body = parsed(R"({"max_tokens": 1000000, "temperature": 0, "top_p": 0.5, "top_k": 7,
      "stop_sequences": ["END"], "stream": true, "messages": [{"role": "user", "content": "hi"}]})");
  const ApiResult<Call> call = read_messages_call(body, model, "7");
  ASSERT_TRUE(call.ok()) << call.error().message;
  EXPECT_TRUE(call->stream);
  ASSERT_EQ(call->requests.size(), 1u);
  const GenerationRequest& request = call->requests[0];
  EXPECT_EQ(request.sampling.temperature, 0.0f);
  EXPECT_EQ(request.sampling.top_p, 0.5f);
  EXPECT_EQ(request.sampling.top_k, 7);
  EXPECT_EQ(request.stops, std::vector<std::string>{"END"});
  EXPECT_EQ(static_cast<int64_t>(request.prompt.size()) + request.max_tokens, model.context_tokens);
  const ApiResult<int64_t> counted = count_messages_tokens(body, model);
  ASSERT_TRUE(counted.ok());
  EXPECT_EQ(*counted, static_cast<int64_t>(request.prompt.size()));

  std::string words(3000, 'x');
  const ApiResult<Call> too_long = read_messages_call(
      {{"max_tokens", 1}, {"messages", {{{"role", "user"}, {"content", words}}}}}, model, "7");
  ASSERT_FALSE(too_long.ok());
  EXPECT_EQ(too_long.error().code, "context_length_exceeded");
}

// What a client makes of a stream: the rules of the API, applied frame by frame.
class Client {
 public:
  void read(const Frame& frame) {
    const Json& data = frame.data;
    ASSERT_EQ(frame.event, data["type"]);
    ASSERT_FALSE(stopped_);
    if (frame.event == "message_start") {
      message = data["message"];
      ASSERT_EQ(message["content"], Json::array());
      ASSERT_TRUE(message["stop_reason"].is_null());
    } else if (frame.event == "content_block_start") {
      ASSERT_FALSE(open_);
      open_ = true;
      ASSERT_EQ(data["index"], message["content"].size());
      message["content"].push_back(data["content_block"]);
      arguments_.clear();
    } else if (frame.event == "content_block_delta") {
      ASSERT_TRUE(open_);
      ASSERT_EQ(data["index"], message["content"].size() - 1);
      delta(data["delta"], message["content"].back());
    } else if (frame.event == "content_block_stop") {
      ASSERT_TRUE(std::exchange(open_, false));
      Json& block = message["content"].back();
      if (block["type"] == "tool_use") {
        const Result<Json> input = text::parse_json(arguments_);
        block["input"] = input.ok() ? *input : Json{{"invalid_json", arguments_}};
      }
    } else if (frame.event == "message_delta") {
      ASSERT_FALSE(open_);
      message["stop_reason"] = data["delta"]["stop_reason"];
      message["stop_sequence"] = data["delta"]["stop_sequence"];
      message["usage"].update(data["usage"]);
    } else if (frame.event == "message_stop") {
      stopped_ = true;
    } else {
      ASSERT_EQ(frame.event, "ping");
    }
  }

  Json message;
  bool stopped() const { return stopped_; }

 private:
  void delta(const Json& delta, Json& block) {
    const auto append = [&](const char* key) {
      block[key] = block[key].get<std::string>() + delta[key].get<std::string>();
    };
    const std::string type = delta["type"];
    if (type == "text_delta") {
      ASSERT_EQ(block["type"], "text");
      append("text");
    } else if (type == "thinking_delta") {
      ASSERT_EQ(block["type"], "thinking");
      append("thinking");
    } else if (type == "signature_delta") {
      block["signature"] = delta["signature"];
    } else {
      ASSERT_EQ(type, "input_json_delta");
      ASSERT_EQ(block["type"], "tool_use");
      arguments_ += delta["partial_json"].get<std::string>();
    }
  }

  bool open_ = false, stopped_ = false;
  std::string arguments_;
};

Json streamed(const std::vector<GenerationEvent>& events) {
  const auto writer = make_messages_writer({"msg_1", "twin", true, 30});
  Client client;
  for (const Frame& frame : frames_of(push_all(*writer, events))) {
    client.read(frame);
  }
  EXPECT_TRUE(client.stopped());
  return client.message;
}

Json unstreamed(const std::vector<GenerationEvent>& events) {
  const auto writer = make_messages_writer({"msg_1", "twin", false, 30});
  EXPECT_EQ(push_all(*writer, events), "");
  return parsed(writer->body());
}

TEST(Messages, StreamsReassembleToTheUnstreamedMessageUnderEverySplit) {
  const text::Tokenizer tokenizer = text::test_tokenizer();
  Rng rng(1);
  for (int i = 0; i < 100; ++i) {
    const text::ChatMessage answer = text::random_answer(rng, text::ChatFormat::kKimiK3);
    std::vector<int32_t> ids = text::answer_ids(tokenizer, text::ChatFormat::kKimiK3, answer, true);
    if (i % 3 == 0) {
      ids.resize(rng.below(ids.size() + 1));  // cut anywhere
    }
    const std::vector<OutputEvent> events =
        text::output_events(text::ChatFormat::kKimiK3, tokenizer, text::Channel::kThink, ids);
    const Json whole = unstreamed(whole_answer(events, FinishReason::kStop));
    EXPECT_EQ(streamed(whole_answer(events, FinishReason::kStop)), whole);
    for (const uint64_t longest : {1, 2, 7, 1000}) {
      const auto pieces = whole_answer(split_anew(events, rng, longest), FinishReason::kStop);
      ASSERT_EQ(streamed(pieces), whole);
      ASSERT_EQ(unstreamed(pieces), whole);
    }
  }
}

TEST(Messages, TheAnswerTellsWhatTheModelSaid) {
  const std::vector<OutputEvent> events = {output_text(OutputEventKind::kReasoning, "Hm."),
                                           output_text(OutputEventKind::kResponse, "Yes."),
                                           call_begin("t0", "f"),
                                           output_text(OutputEventKind::kCallArguments, R"({"a":)"),
                                           output_text(OutputEventKind::kCallArguments, "1}"),
                                           call_end(R"({"a":1})", true),
                                           message_end()};
  const Json message = unstreamed(whole_answer(events, FinishReason::kToolCalls));
  EXPECT_EQ(message["content"], parsed(R"([
      {"type": "thinking", "thinking": "Hm.", "signature": "unsigned"},
      {"type": "text", "text": "Yes.", "citations": null},
      {"type": "tool_use", "id": "t0", "name": "f", "input": {"a": 1}}])"));
  EXPECT_EQ(message["stop_reason"], "tool_use");
  EXPECT_EQ(message["usage"]["input_tokens"], 36);
  EXPECT_EQ(message["usage"]["cache_read_input_tokens"], 64);
  EXPECT_EQ(message["usage"]["output_tokens"], 30);
}

TEST(Messages, EachEndHasItsReason) {
  const std::vector<OutputEvent> none = {message_end()};
  EXPECT_EQ(unstreamed(whole_answer(none, FinishReason::kStop))["stop_reason"], "end_turn");
  EXPECT_EQ(unstreamed(whole_answer(none, FinishReason::kLength))["stop_reason"], "max_tokens");
  const Json stopped = unstreamed(whole_answer(none, FinishReason::kStopString, "END"));
  EXPECT_EQ(stopped["stop_reason"], "stop_sequence");
  EXPECT_EQ(stopped["stop_sequence"], "END");
  // 31 tokens were asked for and 30 came: the context was full.
  const auto writer = make_messages_writer({"msg_1", "twin", false, 31});
  push_all(*writer, whole_answer(none, FinishReason::kLength));
  EXPECT_EQ(parsed(writer->body())["stop_reason"], "model_context_window_exceeded");
}

TEST(Messages, ACallThatWasCutCannotBeRunByMistake) {
  const std::vector<OutputEvent> events = {
      call_begin("t0", "rm"), output_text(OutputEventKind::kCallArguments, R"({"path":"/tm)"),
      call_end(R"({"path":"/tm)", false), message_end(false)};
  const Json message = unstreamed(whole_answer(events, FinishReason::kLength));
  EXPECT_EQ(message["content"][0]["input"], parsed(R"({"invalid_json": "{\"path\":\"/tm"})"));
  EXPECT_EQ(streamed(whole_answer(events, FinishReason::kLength)), message);
}

TEST(Messages, AFailureEndsAStreamInTheApisShape) {
  const auto writer = make_messages_writer({"msg_1", "twin", true, 30});
  std::vector<GenerationEvent> events = whole_answer({}, FinishReason::kStop);
  events.back().kind = GenerationEvent::Kind::kFailed;
  events.back().error = {.http_status = 503, .message = "no memory"};
  const std::vector<Frame> frames = frames_of(push_all(*writer, events));
  EXPECT_EQ(frames.back().event, "error");
  EXPECT_EQ(frames.back().data["type"], "error");
  EXPECT_EQ(frames.back().data["error"]["type"], "overloaded_error");
  EXPECT_EQ(frames.back().data["error"]["message"], "no memory");
}

}  // namespace
}  // namespace triax::server
