// Properties of rendering and parsing together, over random messages and random ids.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "text/chat_testing.h"
#include "text/output_parser.h"
#include "text/utf8.h"

namespace triax::text {
namespace {

class RoundTrip : public ::testing::TestWithParam<ChatFormat> {
 protected:
  const Tokenizer tokenizer_ =
      test_tokenizer(GetParam() == ChatFormat::kKimiK3 ? SpecialSet::kKimiK3 : SpecialSet::kKimiK2);

  Channel start(bool thinking) const {
    ChatRequest request;
    request.thinking = thinking;
    return generation_channel(GetParam(), request);
  }
};

ChatMessage assemble(std::span<const OutputEvent> events) {
  ChatMessage message;
  for (const OutputEvent& event : events) {
    apply_event(event, message);
  }
  return message;
}

// Events that a client can follow: text in whole characters, calls begun before they end, deltas
// that add up, one end.
void expect_consistent(std::span<const OutputEvent> events) {
  int open = -1, calls = 0;
  std::string arguments;
  for (size_t i = 0; i < events.size(); ++i) {
    const OutputEvent& event = events[i];
    EXPECT_EQ(replace_invalid_utf8(event.text), event.text);
    EXPECT_EQ(event.kind == OutputEventKind::kMessageEnd, i + 1 == events.size());
    if (event.kind == OutputEventKind::kCallBegin) {
      EXPECT_EQ(open, -1);
      EXPECT_EQ(event.call_index, calls);
      EXPECT_FALSE(event.call_id.empty());
      open = calls++;
      arguments.clear();
    } else if (event.kind == OutputEventKind::kCallArguments) {
      EXPECT_EQ(event.call_index, open);
      EXPECT_FALSE(event.text.empty());
      arguments += event.text;
    } else if (event.kind == OutputEventKind::kCallEnd) {
      EXPECT_EQ(event.call_index, open);
      EXPECT_EQ(event.text, arguments);
      open = -1;
    } else {
      EXPECT_EQ(open, -1);
    }
  }
  EXPECT_EQ(open, -1);
  ASSERT_FALSE(events.empty());
}

TEST_P(RoundTrip, parsing_a_rendered_answer_gives_the_answer) {
  Rng rng(10);
  for (int i = 0; i < 1000; ++i) {
    const bool thinking = GetParam() == ChatFormat::kKimiK3 && rng.below(4) != 0;
    ChatMessage message = random_answer(rng, GetParam());
    if (!thinking) {
      message.reasoning.clear();
    }
    const auto ids = answer_ids(tokenizer_, GetParam(), message, thinking);
    const auto events = output_events(GetParam(), tokenizer_, start(thinking), ids);
    expect_consistent(events);
    const ChatMessage parsed = assemble(events);
    EXPECT_EQ(parsed.reasoning, message.reasoning);
    EXPECT_EQ(parsed.content, message.content);
    ASSERT_EQ(parsed.tool_calls.size(), message.tool_calls.size());
    for (size_t c = 0; c < parsed.tool_calls.size(); ++c) {
      EXPECT_EQ(parsed.tool_calls[c].id, message.tool_calls[c].id);
      EXPECT_EQ(parsed.tool_calls[c].name, message.tool_calls[c].name);
      EXPECT_EQ(nlohmann::ordered_json::parse(parsed.tool_calls[c].arguments),
                nlohmann::ordered_json::parse(message.tool_calls[c].arguments));
    }
    EXPECT_TRUE(events.back().complete);
    // And once more: the history is what the model wrote, token for token.
    EXPECT_EQ(answer_ids(tokenizer_, GetParam(), parsed, thinking), ids);
  }
}

// A stream so far is the beginning of the whole stream, however far it has come.
TEST_P(RoundTrip, every_cut_gives_a_beginning_of_the_message) {
  Rng rng(11);
  for (int i = 0; i < 40; ++i) {
    const ChatMessage message = random_answer(rng, GetParam());
    const auto ids = answer_ids(tokenizer_, GetParam(), message, true);
    const auto whole = output_events(GetParam(), tokenizer_, start(true), ids);
    const ChatMessage all = assemble(whole);
    for (size_t cut = 0; cut < ids.size(); ++cut) {
      OutputOptions options;
      options.start = start(true);
      const auto parser = make_output_parser(GetParam(), tokenizer_, options);
      std::vector<OutputEvent> events;
      for (const int32_t id : std::span(ids).first(cut)) {
        (*parser)->push(id, events);
      }
      const ChatMessage before = assemble(events);
      EXPECT_TRUE(all.reasoning.starts_with(before.reasoning));
      EXPECT_TRUE(all.content.starts_with(before.content));
      for (size_t c = 0; c < before.tool_calls.size(); ++c) {
        EXPECT_TRUE(all.tool_calls[c].arguments.starts_with(before.tool_calls[c].arguments));
      }
      (*parser)->finish(events);
      expect_consistent(events);
    }
  }
}

// A call that did not end must not look like one that did.
TEST_P(RoundTrip, a_cut_call_has_no_valid_arguments) {
  Rng rng(12);
  for (int i = 0; i < 60; ++i) {
    const ChatMessage message = random_answer(rng, GetParam());
    const auto ids = answer_ids(tokenizer_, GetParam(), message, true);
    for (size_t cut = 0; cut < ids.size(); ++cut) {
      for (const OutputEvent& event :
           output_events(GetParam(), tokenizer_, start(true), std::span(ids).first(cut))) {
        if (event.kind == OutputEventKind::kCallEnd && GetParam() == ChatFormat::kKimiK3) {
          EXPECT_EQ(nlohmann::json::accept(event.text), event.complete) << event.text;
        }
      }
    }
  }
}

TEST_P(RoundTrip, random_ids_never_break_the_events) {
  Rng rng(13);
  std::vector<int32_t> controls;
  for (const char* name :
       {"<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>", "<|im_end|>", "<|im_middle|>",
        "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>", "<|tool_call_end|>", "[EOS]"}) {
    if (const auto id = tokenizer_.special(name)) {
      controls.push_back(*id);
    }
  }
  const char* words[] = {"think",
                         "response",
                         "tools",
                         "call tool=\"f\"",
                         "argument key=\"k\"",
                         "argument key=\"n\" type=\"number\"",
                         "json",
                         "message",
                         "12",
                         "x\xF0"};
  for (int i = 0; i < 3000; ++i) {
    std::vector<int32_t> ids;
    for (uint64_t n = rng.below(60); n > 0; --n) {
      switch (rng.below(4)) {
        case 0:
          ids.push_back(controls[rng.below(controls.size())]);
          break;
        case 1:
          tokenizer_.encode(words[rng.below(std::size(words))], ids);
          break;
        case 2:
          ids.push_back(static_cast<int32_t>(rng.below(700)) - 20);
          break;
        default: {
          const auto tag =
              marked_ids(tokenizer_, std::string(rng.below(2) == 0 ? "<|open|>" : "<|close|>") +
                                         words[rng.below(std::size(words))] + "<|sep|>");
          ids.insert(ids.end(), tag.begin(), tag.end());
        }
      }
    }
    const auto events = output_events(GetParam(), tokenizer_, start(true), ids);
    expect_consistent(events);
    // Whatever the model wrote can be sent back as history.
    ChatRequest request;
    request.messages.push_back(assemble(events));
    EXPECT_TRUE(encode_chat(tokenizer_, GetParam(), request).ok());
    // Arguments that came as tags are JSON; those of a json block are what the model wrote.
    for (const OutputEvent& event : events) {
      if (event.kind == OutputEventKind::kCallEnd && event.complete &&
          event.text.starts_with("{\"k\": ") && GetParam() == ChatFormat::kKimiK3) {
        EXPECT_TRUE(nlohmann::json::accept(event.text)) << event.text;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, RoundTrip,
                         ::testing::Values(ChatFormat::kKimiK3, ChatFormat::kKimiK2),
                         [](const auto& test) {
                           return test.param == ChatFormat::kKimiK3 ? "k3" : "k2";
                         });

}  // namespace
}  // namespace triax::text
