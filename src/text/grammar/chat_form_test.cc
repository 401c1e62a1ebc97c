// Messages of both chat formats: rendered ones are taken, others are not, and what is drawn at
// random reads as a message whose calls fit their tools.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "text/chat_json.h"
#include "text/grammar/grammar_testing.h"
#include "text/output_parser.h"

namespace triax::text {
namespace {

using Json = nlohmann::ordered_json;

ChatRequest request_of(const char* extra, const char* tools = nullptr) {
  const std::string two = R"([{"type":"function","function":{"name":"the","parameters":{
      "type":"object","properties":{"in":{"type":"string"},"ab":{"type":"integer","minimum":1},
      "ca":{"type":["array","null"],"items":{"type":"boolean"}}},"required":["in","ab"]}}},
      {"type":"function","function":{"name":"he","parameters":{"type":"object","properties":{}}}}])";
  const auto request = parse_chat_request(
      std::string("{\"messages\":[{\"role\":\"user\",") +
      "\"content\":\"a\"}],\"tools\":" + (tools != nullptr ? tools : two) + extra + "}");
  check(request.ok(), request.status().message());
  return *request;
}

/// A message as text in which <|...|> and [...] names of special tokens stand for them.
std::vector<int32_t> ids_of(const Tokenizer& tokenizer, std::string_view marked) {
  std::vector<int32_t> ids;
  while (!marked.empty()) {
    const size_t end = marked.starts_with("<|") ? marked.find("|>") : std::string_view::npos;
    const auto special =
        end == std::string_view::npos ? std::nullopt : tokenizer.special(marked.substr(0, end + 2));
    const size_t bytes = special ? end + 2 : std::min(marked.find("<|", 1), marked.size());
    if (special) {
      ids.push_back(*special);
    } else {
      tokenizer.encode(marked.substr(0, bytes), ids);
    }
    marked.remove_prefix(bytes);
  }
  return ids;
}

bool takes_message(ConstraintRig& rig, const ChatRequest& request, std::string_view marked) {
  const auto constraint = rig.compiler->compile_chat(rig.format, request);
  check(constraint.ok(), constraint.status().message());
  ConstraintState state(*constraint);
  for (const int32_t id : ids_of(rig.tokenizer, marked)) {
    if (!state.accept(id)) {
      return false;
    }
  }
  return state.is_complete();
}

constexpr const char* kBegin = "hm \" } a<|close|>think<|sep|><|open|>response<|sep|>";

std::string k3(const std::string& response, const std::string& calls) {
  return kBegin + response + "<|close|>response<|sep|>" +
         (calls.empty() ? "" : "<|open|>tools<|sep|>" + calls + "<|close|>tools<|sep|>") +
         "<|close|>message<|sep|>";
}
std::string call(const std::string& name, const std::string& index, const std::string& arguments) {
  return "<|open|>call tool=\"" + name + "\" index=\"" + index + "\"<|sep|>" + arguments +
         "<|close|>call<|sep|>";
}
std::string argument(const std::string& key, const std::string& type, const std::string& value) {
  return "<|open|>argument key=\"" + key + "\" type=\"" + type + "\"<|sep|>" + value +
         "<|close|>argument<|sep|>";
}

TEST(ChatForm, K3TakesCallsOfDeclaredToolsWithTypedArguments) {
  ConstraintRig rig(test_tokenizer(SpecialSet::kKimiK3));
  const ChatRequest request = request_of("");
  const std::string in = argument("in", "string", "any \"text\"\n");
  const std::string ab = argument("ab", "number", "12");
  const auto takes = [&](const std::string& message) {
    return takes_message(rig, request, message);
  };
  EXPECT_TRUE(takes(k3("free text", "")));
  EXPECT_TRUE(takes(k3("", call("the", "1", in + ab))));
  EXPECT_TRUE(takes(k3("x", call("the", "1", ab + in) + call("he", "2", ""))));
  EXPECT_TRUE(takes(k3("", call("the", "1", in + ab + argument("ca", "array", "[true, false]")))));
  EXPECT_TRUE(takes(k3("", call("the", "1", in + argument("ca", "null", "null") + ab))));
  EXPECT_FALSE(takes(k3("", call("the", "1", in))));            // ab is required
  EXPECT_FALSE(takes(k3("", call("the", "1", in + ab + ab))));  // twice
  EXPECT_FALSE(takes(k3("", call("the", "1", in + argument("ab", "number", "0")))));
  EXPECT_FALSE(takes(k3("", call("the", "1", in + argument("ab", "string", "1")))));
  EXPECT_FALSE(takes(k3("", call("abc", "1", ""))));  // no such tool
  EXPECT_FALSE(takes(k3("", call("he", "2", ""))));   // the first is 1
  EXPECT_FALSE(takes(k3("", call("he", "1", in))));   // takes nothing
}

TEST(ChatForm, K3HoldsToolChoiceAndResponseFormat) {
  ConstraintRig rig(test_tokenizer(SpecialSet::kKimiK3));
  const std::string he = call("he", "1", "");
  const ChatRequest required = request_of(R"(,"tool_choice":"required")");
  EXPECT_FALSE(takes_message(rig, required, k3("text", "")));
  EXPECT_TRUE(takes_message(rig, required, k3("text", he)));
  const ChatRequest named =
      request_of(R"(,"tool_choice":{"type":"function","function":{"name":"he"}})");
  EXPECT_TRUE(takes_message(rig, named, k3("", he)));
  EXPECT_FALSE(takes_message(rig, named, k3("", he + call("he", "2", ""))));
  EXPECT_FALSE(takes_message(rig, named, k3("", call("the", "1", ""))));
  const ChatRequest none = request_of(R"(,"tool_choice":"none")");
  EXPECT_TRUE(takes_message(rig, none, k3("text", "")));
  EXPECT_FALSE(takes_message(rig, none, k3("text", he)));
  const ChatRequest json = request_of(R"(,"response_format":{"type":"json_schema","json_schema":
      {"name":"x","schema":{"type":"object","properties":{"a":{"type":"null"}},"required":["a"]}}})");
  EXPECT_TRUE(takes_message(rig, json, k3("{\"a\": null}", "")));
  EXPECT_TRUE(takes_message(rig, json, k3("", he)));
  EXPECT_FALSE(takes_message(rig, json, k3("", "")));
  EXPECT_FALSE(takes_message(rig, json, k3("text", "")));
  EXPECT_FALSE(takes_message(rig, json, k3("{}", "")));
}

TEST(ChatForm, K2TakesASectionOfCalls) {
  ConstraintRig rig(test_tokenizer(SpecialSet::kKimiK2));
  const auto k2 = [](const std::string& calls) {
    return "text<|tool_calls_section_begin|>" + calls + "<|tool_calls_section_end|>";
  };
  const auto one = [](const std::string& id, const std::string& json) {
    return "<|tool_call_begin|>functions." + id + "<|tool_call_argument_begin|>" + json +
           "<|tool_call_end|>";
  };
  const ChatRequest request = request_of("");
  const std::string good = one("the:0", R"({"in": "x", "ab": 3})");
  EXPECT_TRUE(takes_message(rig, request, "text"));
  EXPECT_TRUE(takes_message(rig, request, k2(good)));
  EXPECT_TRUE(takes_message(rig, request, k2(good + one("he:1", "{}"))));
  EXPECT_FALSE(takes_message(rig, request, k2(one("the:0", "{}"))));
  EXPECT_FALSE(takes_message(rig, request, k2(one("abc:0", "{}"))));
  EXPECT_FALSE(takes_message(rig, request, k2("")));
  EXPECT_FALSE(takes_message(rig, request_of(R"(,"tool_choice":"required")"), "text"));
}

TEST(ChatForm, ASchemaThatCannotBeHeldIsAnErrorWhenStrict) {
  for (const SpecialSet set : {SpecialSet::kKimiK3, SpecialSet::kKimiK2}) {
    ConstraintRig rig(test_tokenizer(set));
    const auto compile = [&](const char* strict) {
      const std::string tools = std::string(R"([{"type":"function","function":{"name":"f")") +
                                strict + R"(,"parameters":{"type":"object","properties":
          {"x":{"not":{}}}}}}])";
      return rig.compiler->compile_chat(rig.format, request_of("", tools.c_str()));
    };
    EXPECT_TRUE(compile("").ok());
    const auto strict = compile(R"(,"strict":true)");
    ASSERT_FALSE(strict.ok());
    EXPECT_EQ(strict.status().message().find("tools[0].function.parameters.properties.x.not: "), 0U)
        << strict.status().message();
  }
}

TEST(ChatForm, NothingToHoldGivesNoConstraint) {
  ConstraintRig rig(test_tokenizer());
  ChatRequest request;
  request.messages.push_back({.content = "a"});
  const auto constraint = rig.compiler->compile_chat(rig.format, request);
  ASSERT_TRUE(constraint.ok());
  EXPECT_EQ(*constraint, nullptr);
}

TEST(ChatForm, RandomMessagesParseIntoCallsOfTheRightTypes) {
  for (const SpecialSet set : {SpecialSet::kKimiK3, SpecialSet::kKimiK2}) {
    ConstraintRig rig(test_tokenizer(set));
    const ChatRequest request = request_of(R"(,"tool_choice":"required")");
    const auto constraint = rig.compiler->compile_chat(rig.format, request);
    ASSERT_TRUE(constraint.ok()) << constraint.status().message();
    Rng rng(17);
    int calls = 0;
    for (int i = 0; i < 60; ++i) {
      ConstraintState state(*constraint);
      std::vector<int32_t> ids;
      if (!random_walk(state, rig, rng, 100, 3000, ids)) {
        continue;
      }
      const auto parser = make_output_parser(rig.format, rig.tokenizer,
                                             {.start = generation_channel(rig.format, request)});
      ASSERT_TRUE(parser.ok());
      std::vector<OutputEvent> events;
      for (const int32_t id : ids) {
        (*parser)->push(id, events);
      }
      (*parser)->push(rig.stops[0], events);
      ASSERT_EQ(events.back().kind, OutputEventKind::kMessageEnd);
      EXPECT_TRUE(events.back().complete);
      std::string name;
      for (const OutputEvent& event : events) {
        name = event.kind == OutputEventKind::kCallBegin ? event.call_name : name;
        if (event.kind == OutputEventKind::kCallEnd) {
          ++calls;
          ASSERT_TRUE(event.complete);
          const Json arguments = Json::parse(event.text);
          ASSERT_TRUE(arguments.is_object());
          if (name == "he") {
            EXPECT_TRUE(arguments.empty());
          } else {
            EXPECT_EQ(name, "the");
            EXPECT_TRUE(arguments.at("in").is_string());
            EXPECT_GE(arguments.at("ab").get<double>(), 1);
          }
        }
      }
    }
    EXPECT_GT(calls, 10);
  }
}

}  // namespace
}  // namespace triax::text
