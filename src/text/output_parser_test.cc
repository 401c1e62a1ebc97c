// Outputs back to messages: well-formed, malformed, cut.
#include "text/output_parser.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "text/chat_testing.h"
#include "text/json_text.h"

namespace triax::text {
namespace {

// A short notation of a message: reasoning | response | name(arguments) ...; `~` marks a cut call.
std::string summary(std::span<const OutputEvent> events) {
  std::string reasoning, response, calls, ends;
  for (const OutputEvent& event : events) {
    switch (event.kind) {
      case OutputEventKind::kReasoning:
        reasoning += event.text;
        break;
      case OutputEventKind::kResponse:
        response += event.text;
        break;
      case OutputEventKind::kCallBegin:
        calls += " | " + event.call_name + "(";
        break;
      case OutputEventKind::kCallArguments:
        calls += event.text;
        break;
      case OutputEventKind::kCallEnd:
        calls += event.complete ? ")" : ")~";
        break;
      case OutputEventKind::kMessageEnd:
        ends += event.complete ? "." : "~";
        break;
    }
  }
  return reasoning + " | " + response + calls + " " + ends;
}

class K3Output : public ::testing::Test {
 protected:
  std::string parse(std::string_view text, Channel start = Channel::kThink) {
    const std::vector<int32_t> ids = marked_ids(tokenizer_, text);
    return summary(output_events(ChatFormat::kKimiK3, tokenizer_, start, ids));
  }
  const Tokenizer tokenizer_ = test_tokenizer(SpecialSet::kKimiK3);
};

// Tags in short: {x} opens, {/x} closes, {.} ends the message.
std::string xtml(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.compare(i, 3, "{.}") == 0) {
      out += "<|end_of_msg|>";
      i += 2;
    } else if (text.compare(i, 2, "{/") == 0) {
      out += "<|close|>";
      ++i;
    } else {
      out += text[i] == '{' ? "<|open|>" : text[i] == '}' ? "<|sep|>" : std::string(1, text[i]);
    }
  }
  return out;
}

TEST_F(K3Output, a_whole_message) {
  EXPECT_EQ(parse(xtml("I see.{/think}{response} Hi!\n{/response}{/message}{.}")),
            "I see. |  Hi!\n .");
  EXPECT_EQ(parse(xtml("Hi{/response}{/message}{.}"), Channel::kResponse), " | Hi .");
  EXPECT_EQ(parse(xtml("{/think}{response}{/response}{tools}"
                       "{call tool=\"f\" index=\"1\"}"
                       "{argument key=\"s\" type=\"string\"} a\"\\\n {/argument}"
                       "{argument key=\"n\" type=\"number\"}3.10{/argument}"
                       "{argument key=\"l\" type=\"array\"}[1, null]{/argument}{/call}"
                       "{call tool=\"g\" index=\"2\"}{/call}{/tools}{/message}{.}")),
            R"( |  | f({"s": " a\"\\\n ", "n": 3.10, "l": [1, null]}) | g({}) .)");
  EXPECT_EQ(parse(xtml("{/think}{tools}{call tool=\"f\" index=\"1\"}"
                       "{json type=\"object\"}not json{/json}{/call}{/tools}{/message}{.}")),
            " |  | f(not json) .");
}

TEST_F(K3Output, think_may_be_left_without_closing_it) {
  EXPECT_EQ(parse(xtml("I see.{response}Hi{/response}{/message}{.}")), "I see. | Hi .");
  EXPECT_EQ(parse(xtml("I see.{tools}{call tool=\"f\"}{/call}{/tools}{/message}{.}")),
            "I see. |  | f({}) .");
}

TEST_F(K3Output, response_may_be_left_without_closing_it) {
  EXPECT_EQ(parse(xtml("{/think}{response}Hi{/message}{.}")), " | Hi .");
  EXPECT_EQ(parse(xtml("{/think}{response}Hi{.}")), " | Hi .");
  EXPECT_EQ(parse(xtml("{/think}{response}Hi{tools}{call tool=\"f\"}{/call}{/tools}{.}")),
            " | Hi | f({}) .");
}

TEST_F(K3Output, response_may_not_be_opened_at_all) {
  EXPECT_EQ(parse(xtml("I see.{/think}\n\n Hi there {/message}{.}")), "I see. | Hi there  .");
}

TEST_F(K3Output, calls_may_be_left_unclosed) {
  EXPECT_EQ(parse(xtml("{tools}{call tool=\"f\"}{argument key=\"a\"}x"
                       "{argument key=\"b\" type=\"number\"} 1 {call tool=\"g\"}"
                       "{argument key=\"c\"}y{/message}{.}")),
            R"( |  | f({"a": "x", "b": 1}) | g({"c": "y"}) .)");
  EXPECT_EQ(parse(xtml("{call tool=\"f\"}{argument key=\"a\"}x{.}")), R"( |  | f({"a": "x"}) .)");
  EXPECT_EQ(parse(xtml("{call tool=\"f\"}{argument key=\"a\"}x{/call}{response}Hi{.}")),
            R"( | Hi | f({"a": "x"}) .)");
}

TEST_F(K3Output, a_value_that_is_not_of_its_type_becomes_a_string) {
  const auto value = [&](const std::string& type, const std::string& text) {
    return parse(xtml("{call tool=\"f\"}{argument key=\"a\" type=\"" + type + "\"}") + text +
                 xtml("{/argument}{/call}{.}"));
  };
  EXPECT_EQ(value("number", "three"), R"( |  | f({"a": "three"}) .)");
  EXPECT_EQ(value("number", "1e999"), R"( |  | f({"a": "1e999"}) .)");
  EXPECT_EQ(value("object", "{\"b\": "), R"( |  | f({"a": "{\"b\": "}) .)");
  EXPECT_EQ(value("array", ""), R"( |  | f({"a": ""}) .)");
  EXPECT_EQ(value("boolean", " true\n"), R"( |  | f({"a": true}) .)");
  EXPECT_EQ(value("string", "true"), R"( |  | f({"a": "true"}) .)");
  EXPECT_EQ(value("object", std::string(1000, '[')),
            " |  | f({\"a\": \"" + std::string(1000, '[') + "\"}) .");
}

TEST_F(K3Output, attributes_are_unescaped) {
  EXPECT_EQ(parse(xtml("{call tool=\"a &amp; &quot;b&amp;quot;\" index=\"1\"}"
                       "{argument key=\"&quot;\\\" type=\"string\"}v{/argument}{/call}{.}")),
            R"( |  | a & "b&quot;({"\"\\": "v"}) .)");
}

TEST_F(K3Output, unknown_and_misplaced_tags_are_dropped) {
  EXPECT_EQ(parse(xtml("a{b x=\"1\"}c{/b}d{/think}{response}e{argument key=\"k\"}f{/argument}"
                       "{/tools}{/call}{/think}g{/response}{/message}{.}")),
            "acd | efg .");
  EXPECT_EQ(parse("a<|sep|>b<|open|><|open|>x<|close|>think<|sep|>c<|end_of_msg|>"), "ab | c .");
  EXPECT_EQ(parse("a[BOS]<|media_pad|>b<|end_of_msg|>"), "a[BOS]b |  .");
}

TEST_F(K3Output, a_tag_that_does_not_end_is_text) {
  const std::string text(5000, 'x');
  EXPECT_EQ(parse("a<|open|>" + text + "<|end_of_msg|>"), "a" + text + " |  .");
}

TEST_F(K3Output, nothing_comes_after_the_end) {
  EXPECT_EQ(parse(xtml("{/think}{response}Hi{/message}{.}more{response}x{.}")), " | Hi .");
  EXPECT_EQ(parse(xtml("{response}Hi{message role=\"user\"}me{/message}{.}")), " | Hi .");
}

TEST_F(K3Output, a_cut_output_gives_what_is_there) {
  EXPECT_EQ(parse(""), " |  ~");
  EXPECT_EQ(parse("I se"), "I se |  ~");
  EXPECT_EQ(parse(xtml("I see.{/think}{respo")), "I see. |  ~");
  EXPECT_EQ(parse(xtml("{tools}{call tool=\"f\"}")), " |  | f({)~ ~");
  EXPECT_EQ(parse(xtml("{call tool=\"f\"}{argument key=\"a\"}rm -rf /")),
            " |  | f({\"a\": \"rm -rf /)~ ~");
  EXPECT_EQ(parse(xtml("{call tool=\"f\"}{argument key=\"a\" type=\"number\"}12")),
            " |  | f({\"a\": 12)~ ~");
  EXPECT_EQ(parse(xtml("{call tool=\"f\"}{argument key=\"a\"}x{/argument}")),
            " |  | f({\"a\": \"x\")~ ~");
}

TEST_F(K3Output, ids_of_no_token_are_passed_over) {
  std::vector<int32_t> ids = marked_ids(tokenizer_, "ab<|end_of_msg|>");
  ids.insert(ids.begin() + 1, {-1, tokenizer_.size(), 2147483647, -2147483647});
  EXPECT_EQ(summary(output_events(ChatFormat::kKimiK3, tokenizer_, Channel::kThink, ids)),
            "ab |  .");
}

TEST_F(K3Output, calls_have_an_index_and_an_id) {
  const std::vector<int32_t> ids =
      marked_ids(tokenizer_, xtml("{call tool=\"f\"}{/call}{call tool=\"g\"}{/call}{.}"));
  const auto message = parse_output(ChatFormat::kKimiK3, tokenizer_,
                                    {.start = Channel::kThink, .call_id_prefix = "x"}, ids);
  ASSERT_TRUE(message.ok());
  ASSERT_EQ(message->tool_calls.size(), 2U);
  EXPECT_EQ(message->tool_calls[0].id, "x0");
  EXPECT_EQ(message->tool_calls[1].id, "x1");
}

class K2Output : public ::testing::Test {
 protected:
  std::string parse(std::string_view text) {
    const std::vector<int32_t> ids = marked_ids(tokenizer_, text);
    return summary(output_events(ChatFormat::kKimiK2, tokenizer_, Channel::kResponse, ids));
  }
  const Tokenizer tokenizer_ = test_tokenizer(SpecialSet::kKimiK2);
};

constexpr std::string_view kSection = "<|tool_calls_section_begin|>";

TEST_F(K2Output, a_whole_message) {
  EXPECT_EQ(parse("Hi <|im_end|>"), " | Hi  .");
  EXPECT_EQ(parse("Hi" + std::string(kSection) +
                  "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\": 1}"
                  "<|tool_call_end|>\n<|tool_call_begin|> functions.g:1 "
                  "<|tool_call_argument_begin|><|tool_call_end|><|tool_calls_section_end|>"
                  "<|im_end|>"),
            " | Hi | f({\"a\": 1}) | g({}) .");
}

TEST_F(K2Output, what_is_left_out_is_made_up_for) {
  EXPECT_EQ(parse("<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}"
                  "<|tool_call_begin|>g<|tool_call_end|><|im_end|>"),
            " |  | f({}) | g({}) .");
  EXPECT_EQ(parse("a<|tool_call_argument_begin|>b<|tool_call_end|>c<|tool_calls_section_end|>d"
                  "<|im_user|>e"),
            " | abd .");
}

TEST_F(K2Output, a_cut_output_gives_what_is_there) {
  EXPECT_EQ(parse("Hi"), " | Hi ~");
  EXPECT_EQ(parse("<|tool_call_begin|>functions.f"), " |  ~");
  EXPECT_EQ(parse("<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"), " |  | f({)~ ~");
  EXPECT_EQ(parse("<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a"),
            " |  | f({\"a)~ ~");
}

TEST_F(K2Output, ids_come_from_the_model) {
  const std::vector<int32_t> ids = marked_ids(
      tokenizer_, "<|tool_call_begin|>functions.f:7<|tool_call_argument_begin|>{}<|im_end|>");
  const auto message = parse_output(ChatFormat::kKimiK2, tokenizer_, {}, ids);
  ASSERT_TRUE(message.ok());
  ASSERT_EQ(message->tool_calls.size(), 1U);
  EXPECT_EQ(message->tool_calls[0].id, "functions.f:7");
}

TEST(OutputParser, a_tokenizer_without_the_control_tokens_is_refused) {
  const Tokenizer tokenizer = test_tokenizer(SpecialSet::kKimiK2);
  EXPECT_FALSE(make_output_parser(ChatFormat::kKimiK3, tokenizer, {}).ok());
}

}  // namespace
}  // namespace triax::text
