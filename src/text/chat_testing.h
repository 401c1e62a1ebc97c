// What the chat tests and the chat fuzzer share: ids from marked-up text,
// random messages. In a header so that no test code gets into the library.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "text/chat.h"
#include "text/json_text.h"
#include "text/output_parser.h"
#include "text/test_vocabulary.h"
#include "text/tokenizer.h"

namespace triax::text {

inline constexpr std::string_view kPieces[] = {"a",
                                               "Hello",
                                               " world",
                                               "\n",
                                               "\n\n",
                                               "  ",
                                               "\t",
                                               "\"",
                                               "\\",
                                               "\\n",
                                               "&",
                                               "&quot;",
                                               "&amp;",
                                               "=\"",
                                               "<",
                                               "<|open|>",
                                               "<|sep|>",
                                               "<|close|>",
                                               "<|end_of_msg|>",
                                               "<|im_end|>",
                                               "[EOS]",
                                               "think",
                                               "response",
                                               "{",
                                               "}",
                                               "[1, 2]",
                                               "null",
                                               "3.10",
                                               "é",
                                               "你好",
                                               "👩‍👩‍👧",
                                               "\x01",
                                               "ﬁ",
                                               "°",
                                               ": ",
                                               ", ",
                                               "</think>",
                                               "🙂",
                                               "\r\n",
                                               "functions.f:0",
                                               "\xE2\x80\xA8",
                                               "<|tool_call_end|>"};

inline std::string random_text(Rng& rng, int pieces_max);

/// The JSON text of any value.
inline std::string random_value(Rng& rng, int depth) {
  switch (rng.below(depth > 0 ? 8 : 6)) {
    case 0:
      return quote_json(random_text(rng, 5));
    case 1:
      return std::to_string(static_cast<int64_t>(rng.below(1000)) - 500);
    case 2:
      return rng.below(2) == 0 ? "1.50" : "-2.5E-7";
    case 3:
      return rng.below(2) == 0 ? "true" : "false";
    case 4:
      return "null";
    case 5:
      return "123456789012345678901234567890";
    case 6: {
      std::string array = "[";
      for (uint64_t i = 0, n = rng.below(4); i < n; ++i) {
        array += i > 0 ? ", " : "";
        array += random_value(rng, depth - 1);
      }
      return array + "]";
    }
    default: {
      std::string object = "{";
      for (uint64_t i = 0, n = rng.below(4); i < n; ++i) {
        object += i > 0 ? ", " : "";
        object += quote_json(fmt::format("{}{}", random_text(rng, 2), i)) + ": ";
        object += random_value(rng, depth - 1);
      }
      return object + "}";
    }
  }
}

/// Encodes text in which names of special tokens do mean those tokens.
inline std::vector<int32_t> marked_ids(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> ids;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.compare(at, 2, "<|") == 0 ? text.find("|>", at) : std::string::npos;
    const std::optional<int32_t> id =
        end == std::string::npos ? std::nullopt : tokenizer.special(text.substr(at, end + 2 - at));
    if (!id) {
      ++at;
      continue;
    }
    tokenizer.encode(text.substr(begin, at - begin), ids);
    ids.push_back(*id);
    begin = at = end + 2;
  }
  tokenizer.encode(text.substr(begin), ids);
  return ids;
}

/// Text with all that could break a format: quotes, escapes, control names, several scripts, line
/// breaks, spaces at the ends.
inline std::string random_text(Rng& rng, int pieces_max) {
  std::string text;
  for (uint64_t i = rng.below(static_cast<uint64_t>(pieces_max) + 1); i > 0; --i) {
    text += kPieces[rng.below(std::size(kPieces))];
  }
  return text;
}

/// A call's arguments: the text of a random object.
inline std::string random_arguments(Rng& rng) {
  std::string object = "{";
  for (uint64_t i = 0, n = rng.below(4); i < n; ++i) {
    object += i > 0 ? ", " : "";
    object += quote_json(fmt::format("{}{}", random_text(rng, 3), i)) + ": ";
    object += random_value(rng, 3);
  }
  return object + "}";
}

/// An assistant message with ids as a parser of this format gives them.
inline ChatMessage random_answer(Rng& rng, ChatFormat format) {
  ChatMessage message;
  message.role = Role::kAssistant;
  message.content = random_text(rng, 12);
  if (format == ChatFormat::kKimiK3) {
    // Reasoning of spaces alone is not rendered.
    message.reasoning = rng.below(3) == 0 ? "" : "So" + random_text(rng, 12);
  }
  for (uint64_t i = 0, n = rng.below(4); i < n; ++i) {
    ToolCall call;
    call.name = fmt::format("tool_{}", rng.below(10));
    call.id = format == ChatFormat::kKimiK3 ? fmt::format("call_{}", i)
                                            : fmt::format("functions.{}:{}", call.name, i);
    call.arguments = random_arguments(rng);
    message.tool_calls.push_back(std::move(call));
  }
  return message;
}

/// What comes after the generation prefix when `message` is the answer, end of message included.
inline std::vector<int32_t> answer_ids(const Tokenizer& tokenizer, ChatFormat format,
                                       const ChatMessage& message, bool thinking) {
  ChatRequest request;
  request.thinking = thinking;
  const std::vector<int32_t> prefix = encode_chat(tokenizer, format, request).value();
  request.messages.push_back(message);
  request.add_generation_prompt = false;
  std::vector<int32_t> ids = encode_chat(tokenizer, format, request).value();
  check(common_prefix(prefix, ids) == prefix.size(), "history starts as generation does");
  ids.erase(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(prefix.size()));
  return ids;
}

/// The events of an output, token by token.
inline std::vector<OutputEvent> output_events(ChatFormat format, const Tokenizer& tokenizer,
                                              Channel start, std::span<const int32_t> ids) {
  OutputOptions options;
  options.start = start;
  const auto parser = make_output_parser(format, tokenizer, options);
  std::vector<OutputEvent> events;
  for (const int32_t id : ids) {
    (*parser)->push(id, events);
  }
  (*parser)->finish(events);
  return events;
}

}  // namespace triax::text
