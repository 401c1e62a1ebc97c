// Prompts of K2 and Kimi Linear.
#include "text/chat_k2.h"

#include <gtest/gtest.h>

#include "text/chat_json.h"
#include "text/chat_testing.h"

namespace triax::text {
namespace {

std::string render(std::string_view json, bool default_system = false) {
  Result<ChatRequest> request = parse_chat_request(json);
  if (!request.ok()) {
    return "error: " + request.status().message();
  }
  request->add_default_system = default_system;
  const auto segments = render_chat(ChatFormat::kKimiK2, *request);
  return segments.ok() ? segments_text(*segments) : "error: " + segments.status().message();
}

constexpr std::string_view kPrefix = "<|im_assistant|>assistant<|im_middle|>";

TEST(ChatK2, turns_have_a_name_and_no_line_breaks) {
  EXPECT_EQ(render(R"({"messages":[{"role":"system","content":"S"},
                       {"role":"user","name":"Ann","content":"U"},
                       {"role":"assistant","content":"A","reasoning_content":"dropped"},
                       {"role":"user","content":[{"type":"text","text":"x"},
                                                 {"type":"text","text":"y"}]}]})"),
            "<|im_system|>system<|im_middle|>S<|im_end|><|im_user|>Ann<|im_middle|>U<|im_end|>"
            "<|im_assistant|>assistant<|im_middle|>A<|im_end|>"
            "<|im_user|>user<|im_middle|>xy<|im_end|>" +
                std::string(kPrefix));
}

TEST(ChatK2, the_default_system_message_comes_only_when_asked_for) {
  const std::string_view user = R"({"messages":[{"role":"user","content":"U"}]})";
  EXPECT_EQ(render(user).find("You are Kimi"), std::string::npos);
  EXPECT_TRUE(render(user, true)
                  .starts_with("<|im_system|>system<|im_middle|>You are Kimi, an AI assistant "
                               "created by Moonshot AI."
                               "<|im_end|><|im_user|>"));
  EXPECT_EQ(render(R"({"messages":[{"role":"system","content":"S"}]})", true).find("You are Kimi"),
            std::string::npos);
}

TEST(ChatK2, tools_keep_the_order_of_their_keys) {
  EXPECT_TRUE(render(R"({"messages":[{"role":"user","content":"U"}],
                         "tools":[{"type": "function", "function": {"name": "f", "a": "é"}}]})")
                  .starts_with("<|im_system|>tool_declare<|im_middle|>"
                               R"([{"type":"function","function":{"name":"f","a":"é"}}])"
                               "<|im_end|><|im_user|>"));
}

TEST(ChatK2, call_ids_are_made_or_kept_and_results_name_them) {
  EXPECT_EQ(render(R"({"add_generation_prompt":false,"messages":[
        {"role":"assistant","content":"C","tool_calls":[
          {"id":"x","function":{"name":"f","arguments":"{\"a\":1}"}},
          {"id":"functions.g:7","function":{"name":"g","arguments":"{}"}},
          {"id":"functions.other:1","function":{"name":"h","arguments":"{}"}}]},
        {"role":"tool","tool_call_id":"x","content":"1"},
        {"role":"tool","tool_call_id":"functions.g:7","name":"g","content":"2"},
        {"role":"tool","tool_call_id":"lost","content":"3"}]})"),
            "<|im_assistant|>assistant<|im_middle|>C<|tool_calls_section_begin|>"
            "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\":1}<|tool_call_end|>"
            "<|tool_call_begin|>functions.g:7<|tool_call_argument_begin|>{}<|tool_call_end|>"
            "<|tool_call_begin|>functions.h:2<|tool_call_argument_begin|>{}<|tool_call_end|>"
            "<|tool_calls_section_end|><|im_end|>"
            "<|im_system|>tool<|im_middle|>## Return of functions.f:0\n1<|im_end|>"
            "<|im_system|>g<|im_middle|>## Return of functions.g:7\n2<|im_end|>"
            "<|im_system|>tool<|im_middle|>## Return of lost\n3<|im_end|>");
}

TEST(ChatK2, the_tools_name_is_read_from_a_call_id) {
  EXPECT_EQ(k2_tool_name("functions.get_weather:0"), "get_weather");
  EXPECT_EQ(k2_tool_name("functions.a.b:12"), "a.b");
  EXPECT_EQ(k2_tool_name("mcp.server.list:3"), "list");
  EXPECT_EQ(k2_tool_name("plain"), "plain");
  EXPECT_EQ(k2_tool_name(":0"), "");
  EXPECT_EQ(k2_tool_name(""), "");
}

TEST(Chat, the_format_follows_from_the_special_tokens) {
  const Tokenizer k3 = test_tokenizer(SpecialSet::kKimiK3);
  const Tokenizer k2 = test_tokenizer(SpecialSet::kKimiK2);
  EXPECT_EQ(detect_chat_format(k3).value(), ChatFormat::kKimiK3);
  EXPECT_EQ(detect_chat_format(k2).value(), ChatFormat::kKimiK2);
}

TEST(Chat, generation_stops_at_the_end_of_a_message) {
  const Tokenizer k3 = test_tokenizer(SpecialSet::kKimiK3);
  const Tokenizer k2 = test_tokenizer(SpecialSet::kKimiK2);
  EXPECT_EQ(stop_token_ids(ChatFormat::kKimiK3, k3),
            (std::vector<int32_t>{*k3.special("<|end_of_msg|>"), *k3.special("[EOS]")}));
  EXPECT_EQ(stop_token_ids(ChatFormat::kKimiK2, k2).front(), *k2.special("<|im_end|>"));
}

TEST(Chat, common_prefix_counts_equal_tokens) {
  const std::vector<int32_t> a = {1, 2, 3}, b = {1, 2, 4, 5};
  EXPECT_EQ(common_prefix(a, b), 2U);
  EXPECT_EQ(common_prefix(a, a), 3U);
  EXPECT_EQ(common_prefix({}, a), 0U);
}

// What a session relies on: the state after prompt and answer is a prefix of the next prompt.
TEST(Chat, the_next_prompt_continues_prompt_and_answer) {
  Rng rng(1);
  for (int i = 0; i < 200; ++i) {
    const ChatFormat format = i % 2 == 0 ? ChatFormat::kKimiK3 : ChatFormat::kKimiK2;
    const Tokenizer tokenizer =
        test_tokenizer(i % 2 == 0 ? SpecialSet::kKimiK3 : SpecialSet::kKimiK2);
    ChatRequest request;
    request.thinking_effort = ThinkingEffort::kMax;
    request.messages.push_back({.role = Role::kUser, .content = random_text(rng, 5)});
    std::vector<int32_t> held = encode_chat(tokenizer, format, request).value();
    const ChatMessage answer = random_answer(rng, format);
    const std::vector<int32_t> generated = answer_ids(tokenizer, format, answer, true);
    held.insert(held.end(), generated.begin(), generated.end());

    OutputOptions options;
    options.start = generation_channel(format, request);
    request.messages.push_back(parse_output(format, tokenizer, options, generated).value());
    request.messages.push_back({.role = Role::kUser, .content = "next"});
    const std::vector<int32_t> next = encode_chat(tokenizer, format, request).value();
    EXPECT_EQ(common_prefix(held, next), held.size());
  }
}

}  // namespace
}  // namespace triax::text
