#include "server/api_responses.h"

#include <gtest/gtest.h>

#include "server/api_testing.h"

namespace triax::server {
namespace {

using Json = nlohmann::ordered_json;
using text::OutputEvent;
using text::OutputEventKind;
using text::Role;

text::ChatRequest chat_of(std::string_view body) {
  const ApiResult<text::ChatRequest> chat = read_responses_chat(parsed(body), {});
  EXPECT_TRUE(chat.ok()) << chat.error().message;
  return chat.ok() ? *chat : text::ChatRequest();
}

TEST(Responses, ItemsBecomeAChat) {
  const text::ChatRequest chat = chat_of(R"({
    "instructions": "Be brief.",
    "input": [
      {"role": "user", "content": "Weather in Rome and Oslo?"},
      {"type": "reasoning", "id": "rs_1", "summary": [],
       "content": [{"type": "reasoning_text", "text": "Two calls."}]},
      {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
      {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{\"city\":\"Rome\"}"},
      {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": "{}"},
      {"type": "function_call_output", "call_id": "c2", "output": "cold"},
      {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "warm"}]},
      {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Done."}]},
      {"type": "message", "role": "assistant", "content": "Warm, cold."},
      {"type": "message", "role": "assistant", "content": "Anything else?"},
      {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "One word."}]}],
    "tools": [{"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": true}],
    "tool_choice": {"type": "function", "name": "weather"},
    "reasoning": {"effort": "minimal"},
    "text": {"format": {"type": "json_schema", "name": "s", "schema": {"type": "object"}}}})");
  ASSERT_EQ(chat.messages.size(), 8u);
  EXPECT_EQ(chat.messages[0].role, Role::kSystem);
  EXPECT_EQ(chat.messages[0].content, "Be brief.");
  EXPECT_EQ(chat.messages[1].role, Role::kUser);
  const text::ChatMessage& calls = chat.messages[2];
  EXPECT_EQ(calls.role, Role::kAssistant);
  EXPECT_EQ(calls.reasoning, "Two calls.");
  EXPECT_EQ(calls.content, "I look.");
  ASSERT_EQ(calls.tool_calls.size(), 2u);
  EXPECT_EQ(calls.tool_calls[0].arguments, R"({"city":"Rome"})");
  EXPECT_EQ(chat.messages[3].tool_call_id, "c2");
  EXPECT_EQ(chat.messages[3].name, "weather");
  EXPECT_EQ(chat.messages[4].content, "warm");
  EXPECT_EQ(chat.messages[5].reasoning, "Done.");
  EXPECT_EQ(chat.messages[5].content, "Warm, cold.");
  EXPECT_EQ(chat.messages[6].content, "Anything else?");
  EXPECT_EQ(chat.messages[7].role, Role::kSystem);
  EXPECT_EQ(
      chat.tools.at(0).json,
      R"({"type":"function","function":{"name":"weather","parameters":{"type":"object"},"strict":true}})");
  EXPECT_EQ(chat.tool_choice_name, "weather");
  EXPECT_EQ(chat.thinking_effort, text::ThinkingEffort::kLow);
  EXPECT_EQ(chat.response_schema, R"({"type":"object"})");
}

TEST(Responses, EffortNoneTurnsThinkingOff) {
  EXPECT_TRUE(chat_of(R"({"input": "x"})").thinking);
  EXPECT_FALSE(chat_of(R"({"input": "x", "reasoning": {"effort": "none"}})").thinking);
}

TEST(Responses, WhatIsWrongIsNamed) {
  const text::Tokenizer tokenizer = text::test_tokenizer();
  const ModelInfo model = test_model(tokenizer);
  const auto item = [](const char* json) { return fmt::format(R"({{"input": [{}]}})", json); };
  const auto with = [](const char* rest) { return fmt::format(R"({{"input": "x", {}}})", rest); };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{}", "input"},
      {R"({"input": []})", "input"},
      {R"({"input": 3})", "input"},
      {item("3"), "input[0]"},
      {item(R"({"type": 3})"), "input[0].type"},
      {item(R"({"type": "web_search_call"})"), "input[0].type"},
      {item(R"({"type": "item_reference", "id": "x"})"), "input[0].type"},
      {item(R"({"content": "x"})"), "input[0].role"},
      {item(R"({"role": "tool", "content": "x"})"), "input[0].role"},
      {item(R"({"role": "user"})"), "input[0].content"},
      {item(R"({"role": "user", "content": [{"type": "input_image"}]})"),
       "input[0].content[0].type"},
      {item(R"({"role": "user", "content": [{"type": "input_text"}]})"),
       "input[0].content[0].text"},
      {item(R"({"type": "function_call", "name": "f"})"), "input[0].call_id"},
      {item(R"({"type": "function_call", "call_id": "c"})"), "input[0].name"},
      {item(R"({"type": "function_call", "call_id": "c", "name": "f", "arguments": {}})"),
       "input[0].arguments"},
      {item(R"({"type": "function_call_output", "call_id": "c", "output": "x"})"),
       "input[0].call_id"},
      {item(R"({"type": "function_call", "call_id": "c", "name": "f"},
               {"type": "function_call_output", "call_id": "c"})"),
       "input[1].output"},
      {item(R"({"type": "reasoning", "summary": "x"})"), "input[0].summary"},
      {item(R"({"type": "reasoning", "content": [{}]})"), "input[0].content[0].text"},
      {with(R"("instructions": 3)"), "instructions"},
      {with(R"("tools": [{"name": "f"}])"), "tools[0].type"},
      {with(R"("tools": [{"type": "web_search"}])"), "tools[0].type"},
      {with(R"("tools": [{"type": "function"}])"), "tools[0].name"},
      {with(R"("tool_choice": "required")"), "tool_choice"},
      {with(R"("tool_choice": "some")"), "tool_choice"},
      {with(R"("tool_choice": {"type": "mcp"})"), "tool_choice.type"},
      {with(R"("tool_choice": {"type": "function", "name": "g"})"), "tool_choice.name"},
      {with(R"("reasoning": "high")"), "reasoning"},
      {with(R"("reasoning": {"effort": 3})"), "reasoning.effort"},
      {with(R"("text": {"format": {"type": "xml"}})"), "text.format.type"},
      {with(R"("text": {"format": {"type": "json_schema"}})"), "text.format.schema"},
      {with(R"("previous_response_id": "resp_1")"), "previous_response_id"},
      {with(R"("conversation": "c")"), "conversation"},
      {with(R"("prompt": {"id": "p"})"), "prompt"},
      {with(R"("background": true)"), "background"},
      {with(R"("truncation": "auto")"), "truncation"},
      {with(R"("store": "yes")"), "store"},
      {with(R"("metadata": [])"), "metadata"},
      {with(R"("max_output_tokens": 0)"), "max_output_tokens"},
      {with(R"("top_logprobs": 21)"), "top_logprobs"},
      {with(R"("include": "x")"), "include"},
  };
  for (const auto& [body, field] : cases) {
    const ApiResult<Call> call = read_responses_call(parsed(body), model, "1", 5);
    ASSERT_FALSE(call.ok()) << body;
    EXPECT_EQ(call.error().http_status, 400) << body;
    EXPECT_EQ(call.error().param, field) << body << "\n" << call.error().message;
  }
}

ResponsesAnswer answer(bool stream) {
  return {.id = "1", .stream = stream, .created = 5, .echo = {{"model", "twin"}}};
}

// What a client makes of a stream: every event checked against the item and part it speaks of.
class Client {
 public:
  void read(const Frame& frame) {
    const Json& data = frame.data;
    ASSERT_EQ(frame.event, data["type"]);
    ASSERT_EQ(data["sequence_number"], sequence_++);
    ASSERT_FALSE(ended());
    if (data.contains("response")) {
      response = data["response"];
      status_ = response["status"];
      return;
    }
    const size_t index = data["output_index"];
    if (frame.event == "response.output_item.added") {
      ASSERT_EQ(index, output.size());
      output.push_back(data["item"]);
      return;
    }
    ASSERT_EQ(index, output.size() - 1);
    Json& item = output.back();
    if (frame.event == "response.output_item.done") {
      item["status"] = data["item"]["status"];
      ASSERT_EQ(item, data["item"]);
      return;
    }
    ASSERT_EQ(data["item_id"], item["id"]);
    const std::string_view event = frame.event;
    if (event == "response.content_part.added") {
      item["content"].push_back(data["part"]);
    } else if (event == "response.content_part.done") {
      ASSERT_EQ(item["content"][0], data["part"]);
    } else if (event == "response.function_call_arguments.delta") {
      append(item["arguments"], data["delta"]);
    } else if (event == "response.function_call_arguments.done") {
      ASSERT_EQ(item["arguments"], data["arguments"]);
    } else if (event.ends_with("_text.delta")) {
      append(item["content"][0]["text"], data["delta"]);
      if (data.contains("logprobs")) {
        Json& all = item["content"][0]["logprobs"];
        all.insert(all.end(), data["logprobs"].begin(), data["logprobs"].end());
      }
    } else {
      ASSERT_TRUE(event.ends_with("_text.done")) << event;
      ASSERT_EQ(item["content"][0]["text"], data["text"]);
    }
  }

  bool ended() const { return !status_.empty() && status_ != "in_progress"; }

  Json response;
  Json output = Json::array();

 private:
  static void append(Json& text, const Json& more) {
    text = text.get<std::string>() + more.get<std::string>();
  }

  int64_t sequence_ = 0;
  std::string status_;
};

Json streamed(const std::vector<GenerationEvent>& events) {
  const auto writer = make_responses_writer(answer(true));
  Client client;
  for (const Frame& frame : frames_of(push_all(*writer, events))) {
    client.read(frame);
  }
  EXPECT_TRUE(client.ended());
  EXPECT_EQ(client.output, client.response["output"]);
  return client.response;
}

Json unstreamed(const std::vector<GenerationEvent>& events) {
  const auto writer = make_responses_writer(answer(false));
  EXPECT_EQ(push_all(*writer, events), "");
  return parsed(writer->body());
}

TEST(Responses, StreamsReassembleToTheUnstreamedResponseUnderEverySplit) {
  const text::Tokenizer tokenizer = text::test_tokenizer();
  Rng rng(2);
  for (int i = 0; i < 100; ++i) {
    const text::ChatMessage message = text::random_answer(rng, text::ChatFormat::kKimiK3);
    std::vector<int32_t> ids =
        text::answer_ids(tokenizer, text::ChatFormat::kKimiK3, message, true);
    const bool cut = i % 3 == 0;
    if (cut) {
      ids.resize(rng.below(ids.size() + 1));
    }
    const FinishReason reason = cut ? FinishReason::kLength : FinishReason::kStop;
    const std::vector<OutputEvent> events =
        text::output_events(text::ChatFormat::kKimiK3, tokenizer, text::Channel::kThink, ids);
    const Json whole = unstreamed(whole_answer(events, reason));
    EXPECT_EQ(streamed(whole_answer(events, reason)), whole);
    for (const uint64_t longest : {1, 3, 1000}) {
      const auto pieces = whole_answer(split_anew(events, rng, longest), reason);
      ASSERT_EQ(streamed(pieces), whole);
      ASSERT_EQ(unstreamed(pieces), whole);
    }
  }
}

TEST(Responses, TheAnswerTellsWhatTheModelSaid) {
  const std::vector<OutputEvent> events = {
      output_text(OutputEventKind::kReasoning, "Hm."),
      output_text(OutputEventKind::kResponse, "Yes."),
      call_begin("c0", "f"),
      output_text(OutputEventKind::kCallArguments, R"({"a":1})"),
      call_end(R"({"a":1})", true),
      message_end()};
  const Json response = unstreamed(whole_answer(events, FinishReason::kToolCalls));
  EXPECT_EQ(response["output"], parsed(R"([
      {"id": "rs_1_0", "type": "reasoning", "summary": [],
       "content": [{"type": "reasoning_text", "text": "Hm."}], "status": "completed"},
      {"id": "msg_1_1", "type": "message", "status": "completed", "role": "assistant", "content":
       [{"type": "output_text", "text": "Yes.", "annotations": [], "logprobs": []}]},
      {"id": "fc_1_2", "type": "function_call", "status": "completed", "call_id": "c0",
       "name": "f", "arguments": "{\"a\":1}"}])"));
  EXPECT_EQ(response["status"], "completed");
  EXPECT_EQ(response["usage"], parsed(R"({"input_tokens": 100,
      "input_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 0}, "output_tokens": 30,
      "output_tokens_details": {"reasoning_tokens": 10}, "total_tokens": 130})"));
}

TEST(Responses, WhatWasCutIsIncomplete) {
  const std::vector<OutputEvent> events = {call_begin("c0", "f"),
                                           output_text(OutputEventKind::kCallArguments, R"({"a":)"),
                                           call_end(R"({"a":)", false), message_end(false)};
  const Json response = streamed(whole_answer(events, FinishReason::kLength));
  EXPECT_EQ(response["status"], "incomplete");
  EXPECT_EQ(response["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(response["output"][0]["status"], "incomplete");
}

TEST(Responses, LogprobsComeWithTheirText) {
  std::vector<GenerationEvent> events =
      whole_answer({output_text(OutputEventKind::kResponse, "ab"),
                    output_text(OutputEventKind::kResponse, "c"), message_end()},
                   FinishReason::kStop);
  GenerationEvent token;
  token.kind = GenerationEvent::Kind::kToken;
  for (const auto& [at, bytes] : {std::pair<size_t, const char*>{1, "a"}, {2, "b"}, {4, "c"}}) {
    token.token = {.id = 1, .bytes = bytes, .logprob = -0.5f, .top = {{2, "x", -1.0f}}};
    events.insert(events.begin() + static_cast<std::ptrdiff_t>(at), token);
  }
  const Json response = unstreamed(events);
  EXPECT_EQ(streamed(events), response);
  const Json& logprobs = response["output"][0]["content"][0]["logprobs"];
  ASSERT_EQ(logprobs.size(), 3u);
  EXPECT_EQ(logprobs[1], parsed(R"({"token": "b", "bytes": [98], "logprob": -0.5, "top_logprobs":
      [{"token": "x", "bytes": [120], "logprob": -1.0}]})"));
}

TEST(Responses, AFailureEndsAStreamInTheApisShape) {
  std::vector<GenerationEvent> events =
      whole_answer({output_text(OutputEventKind::kResponse, "so")}, FinishReason::kStop);
  events.back().kind = GenerationEvent::Kind::kFailed;
  events.back().error = {.http_status = 503, .message = "no memory"};
  const auto writer = make_responses_writer(answer(true));
  const std::vector<Frame> frames = frames_of(push_all(*writer, events));
  EXPECT_EQ(frames.back().event, "response.failed");
  EXPECT_EQ(frames.back().data["response"]["status"], "failed");
  EXPECT_EQ(frames.back().data["response"]["error"]["code"], "server_error");
}

}  // namespace
}  // namespace triax::server
