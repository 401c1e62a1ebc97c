// Requests in JSON: what is read, and which field an error names.
#include "text/chat_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/rng.h"

namespace triax::text {
namespace {

ChatRequest read(std::string_view json) {
  Result<ChatRequest> request = parse_chat_request(json);
  EXPECT_TRUE(request.ok()) << request.status().message();
  return request.ok() ? std::move(request).value() : ChatRequest();
}

TEST(ChatJson, reads_messages) {
  const ChatRequest request = read(R"({"model":"m","temperature":"ignored","messages":[
    {"role":"developer","content":"D","name":null},
    {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"bc"}],"name":"N"},
    {"role":"assistant","content":null,"reasoning_content":"R","tool_calls":[
      {"id":"i","type":"function","function":{"name":"f","arguments":"{ }"}},
      {"function":{"name":"g","arguments":{"z":1,"a":"x"}}}]},
    {"role":"tool","tool_call_id":"i","content":"T"}]})");
  ASSERT_EQ(request.messages.size(), 4U);
  EXPECT_EQ(request.messages[0].role, Role::kSystem);
  EXPECT_EQ(request.messages[1].content, "abc");
  EXPECT_EQ(request.messages[1].content_parts, (std::vector<size_t>{1, 2}));
  EXPECT_EQ(request.messages[1].name, "N");
  EXPECT_EQ(request.messages[2].reasoning, "R");
  ASSERT_EQ(request.messages[2].tool_calls.size(), 2U);
  EXPECT_EQ(request.messages[2].tool_calls[0].arguments, "{ }");
  EXPECT_EQ(request.messages[2].tool_calls[1].arguments, R"({"z":1,"a":"x"})");
  EXPECT_EQ(request.messages[3].tool_call_id, "i");
  EXPECT_TRUE(request.thinking);
  EXPECT_FALSE(request.thinking_effort.has_value());
  EXPECT_TRUE(request.add_generation_prompt);
}

ChatRequest with(const std::string& fields) {
  return read(R"({"messages":[{"role":"user","content":"x"}],
                  "tools":[{"type":"function","function":{"name":"f"}}],)" +
              fields + "}");
}

TEST(ChatJson, reads_options) {
  EXPECT_FALSE(with(R"("thinking":false)").thinking);
  EXPECT_FALSE(with(R"("thinking":{"type":"disabled"})").thinking);
  EXPECT_TRUE(with(R"("thinking":{"type":"enabled"})").thinking);
  EXPECT_FALSE(with(R"("reasoning_effort":"none")").thinking);
  EXPECT_EQ(with(R"("reasoning_effort":"low")").thinking_effort, ThinkingEffort::kLow);
  EXPECT_EQ(with(R"("thinking_effort":"max")").thinking_effort, ThinkingEffort::kMax);
  EXPECT_EQ(with(R"("thinking_effort":null)").thinking_effort, std::nullopt);
  EXPECT_EQ(with(R"("tool_choice":"required")").tool_choice, ToolChoice::kRequired);
  EXPECT_EQ(with(R"("tool_choice":"none")").tool_choice, ToolChoice::kNone);
  const ChatRequest named = with(R"("tool_choice":{"type":"function","function":{"name":"f"}})");
  EXPECT_EQ(named.tool_choice, ToolChoice::kRequired);
  EXPECT_EQ(named.tool_choice_name, "f");
  EXPECT_EQ(with(R"("response_format":{"type":"text"})").response_format, ResponseFormat::kText);
  const ChatRequest schema =
      with(R"("response_format":{"type":"json_schema","json_schema":{"schema":{"b":1,"a":2}}})");
  EXPECT_EQ(schema.response_format, ResponseFormat::kJsonSchema);
  EXPECT_EQ(schema.response_schema, R"({"b":1,"a":2})");
  EXPECT_FALSE(with(R"("add_generation_prompt":false)").add_generation_prompt);
}

struct Bad {
  const char* json;
  const char* message;  // how it starts
};

TEST(ChatJson, errors_name_the_field) {
  const Bad cases[] = {
      {"{", "body: not valid JSON"},
      {"[]", "body: expected an object, found an array"},
      {"{}", "messages: expected an array, found null"},
      {R"({"messages":{}})", "messages: expected an array, found an object"},
      {R"({"messages":[]})", "messages: expected at least one message"},
      {R"({"messages":[1]})", "messages[0]: expected an object, found 1"},
      {R"({"messages":[{}]})", "messages[0].role: expected \"system\" or \"developer\""},
      {R"({"messages":[{"role":"root"}]})", "messages[0].role: expected \"system\""},
      {R"({"messages":[{"role":"user"}]})", "messages[0].content: expected a string or an array"},
      {R"({"messages":[{"role":"user","content":1e5}]})", "messages[0].content: expected a string"},
      {R"({"messages":[{"role":"user","content":"a"},{"role":"user","content":["a"]}]})",
       "messages[1].content[0]: expected an object, found \"a\""},
      {R"({"messages":[{"role":"user","content":[{"text":"a"}]}]})",
       "messages[0].content[0].type: expected a string, found null"},
      {R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})",
       "messages[0].content[0].text: expected a string, found nothing"},
      {R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]})",
       "messages[0].content[0].type: expected \"text\", found \"image_url\"; this engine reads "
       "text"},
      {R"({"messages":[{"role":"user","content":"a","name":[]}]})",
       "messages[0].name: expected a string, found an array"},
      {R"({"messages":[{"role":"assistant","tool_calls":{}}]})",
       "messages[0].tool_calls: expected an array, found an object"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{"id":1}]}]})",
       "messages[0].tool_calls[0].id: expected a string, found 1"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{}]}]})",
       "messages[0].tool_calls[0].function: expected an object, found null"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{"function":{}}]}]})",
       "messages[0].tool_calls[0].function.name: expected a string, found nothing"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":7}}]}]})",
       "messages[0].tool_calls[0].function.arguments: expected a string that holds"},
      {R"({"messages":[{"role":"system","tools":[3]}]})",
       "messages[0].tools[0]: expected an object"},
      {R"({"messages":[{"role":"user","content":"a"}],"tools":1})", "tools: expected an array"},
      {R"({"messages":[{"role":"user","content":"a"}],"tools":[{"type":"web"}]})",
       "tools[0].type: expected \"function\", found \"web\""},
      {R"({"messages":[{"role":"user","content":"a"}],"tools":[{"function":{"name":""}}]})",
       "tools[0].function.name: a tool needs a name"},
      {R"({"messages":[{"role":"user","content":"a"}],"tools":[{"function":{"name":"f","parameters":[]}}]})",
       "tools[0].function.parameters: expected an object"},
      {R"({"messages":[{"role":"user","content":"a"}],"thinking":"yes"})",
       "thinking: expected true, false or"},
      {R"({"messages":[{"role":"user","content":"a"}],"thinking":{}})",
       "thinking.type: expected \"enabled\""},
      {R"({"messages":[{"role":"user","content":"a"}],"thinking_effort":"huge"})",
       "thinking_effort: expected \"low\" or"},
      {R"({"messages":[{"role":"user","content":"a"}],"tool_choice":"f"})",
       "tool_choice: expected \"auto\""},
      {R"({"messages":[{"role":"user","content":"a"}],"tool_choice":{}})",
       "tool_choice.function: expected an object"},
      {R"({"messages":[{"role":"user","content":"a"}],"tool_choice":{"function":{"name":"f"}}})",
       "tool_choice.function.name: no tool is named \"f\""},
      {R"({"messages":[{"role":"user","content":"a"}],"response_format":"json"})",
       "response_format: expected an object"},
      {R"({"messages":[{"role":"user","content":"a"}],"response_format":{"type":"json_schema"}})",
       "response_format.json_schema: expected an object"},
      {R"({"messages":[{"role":"user","content":"a"}],"response_format":{"type":"json_schema","json_schema":{}}})",
       "response_format.json_schema.schema: expected an object"},
      {R"({"messages":[{"role":"user","content":"a"}],"add_generation_prompt":1})",
       "add_generation_prompt: expected true or false, found 1"},
      {R"({"messages":[{"role":"user","content":1e999}]})", "body: not valid JSON"},
  };
  for (const Bad& bad : cases) {
    const Result<ChatRequest> request = parse_chat_request(bad.json);
    ASSERT_FALSE(request.ok()) << bad.json;
    EXPECT_EQ(request.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(request.status().message().substr(0, std::string_view(bad.message).size()),
              bad.message);
  }
}

TEST(ChatJson, hostile_nesting_and_width_are_refused) {
  const std::string deep = R"({"messages":[{"role":"user","content":)" + std::string(1 << 20, '[');
  EXPECT_FALSE(parse_chat_request(deep).ok());
  std::string wide = R"({"messages":[{"role":"user","content":"x"}],"tools":[{)";
  for (int i = 0; i < 100000; ++i) {
    wide.append("\"").append(std::to_string(i)).append("\":0,");
  }
  EXPECT_FALSE(parse_chat_request(wide + "\"a\":0}]}").ok());
}

// Any value in any place is either read or refused with the place's name.
TEST(ChatJson, a_wrong_value_anywhere_is_never_a_crash) {
  const auto good = nlohmann::ordered_json::parse(R"({"messages":[
    {"role":"system","content":"a","tools":[{"type":"function","function":{"name":"f"}}]},
    {"role":"user","content":[{"type":"text","text":"a"}],"name":"n"},
    {"role":"assistant","content":"a","reasoning_content":"r","tool_calls":[
      {"id":"i","function":{"name":"f","arguments":"{}"}}]},
    {"role":"tool","tool_call_id":"i","content":"c"}],
    "tools":[{"type":"function","function":{"name":"f","parameters":{}}}],
    "tool_choice":{"function":{"name":"f"}},"thinking":{"type":"enabled"},
    "response_format":{"type":"json_schema","json_schema":{"schema":{}}}})");
  const auto values = nlohmann::ordered_json::parse(
      R"([null, true, 0, -1.5, 18446744073709551615, "", "text", [], [[]], {}, {"type":{}}])");
  const auto flat = good.flatten();
  int refused = 0;
  for (const auto& [pointer, unused] : flat.items()) {
    for (std::string path = pointer; !path.empty(); path.erase(path.rfind('/'))) {
      for (const auto& value : values) {
        auto changed = good;
        changed[nlohmann::ordered_json::json_pointer(path)] = value;
        const Result<ChatRequest> request = read_chat_request(changed);
        if (!request.ok()) {
          ++refused;
          EXPECT_NE(request.status().message().find(": "), std::string::npos);
        }
      }
    }
  }
  EXPECT_GT(refused, 500);
}

}  // namespace
}  // namespace triax::text
