// Chats from both ends. The first byte chooses:
//   even  the rest is the JSON of a request: it is refused with a message or rendered, and no text
//         of it becomes a control token
//   odd   the rest is a model's output, one byte a token or a tag: every cut of it gives events
//   that
//         a client can follow, and the message can be sent back
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "text/chat.h"
#include "text/chat_json.h"
#include "text/json_text.h"
#include "text/output_parser.h"
#include "text/test_vocabulary.h"
#include "text/utf8.h"

namespace {

using namespace triax;
using namespace triax::text;

const Tokenizer& tokenizer(ChatFormat format) {
  static const Tokenizer k3 = test_tokenizer(SpecialSet::kKimiK3);
  static const Tokenizer k2 = test_tokenizer(SpecialSet::kKimiK2);
  return format == ChatFormat::kKimiK3 ? k3 : k2;
}

size_t count_controls(std::span<const Segment> segments) {
  size_t count = 0;
  for (const Segment& segment : segments) {
    count += segment.control ? 1 : 0;
  }
  return count;
}

void check_render(ChatFormat format, const ChatRequest& request) {
  const auto segments = render_chat(format, request);
  if (!segments.ok()) {
    check(segments.status().message().find(": ") != std::string::npos, "an error without a field");
    return;
  }
  const auto ids = encode_segments(tokenizer(format), *segments);
  check(ids.ok(), "a rendered control token is unknown");
  size_t specials = 0;
  for (const int32_t id : *ids) {
    specials += tokenizer(format).is_special(id) ? 1 : 0;
  }
  check(specials == count_controls(*segments), "text became a control token");
  check(tokenizer(format).decode(*ids) == segments_text(*segments), "ids are not the text");
}

void check_request(std::string_view json) {
  const auto request = parse_chat_request(json);
  if (!request.ok()) {
    check(request.status().message().find(": ") != std::string::npos, "an error without a field");
    return;
  }
  check_render(ChatFormat::kKimiK3, *request);
  check_render(ChatFormat::kKimiK2, *request);
}

// Bytes from 0x80 on are parts of tags, so that random bytes reach all of the parser.
std::vector<int32_t> output_ids(ChatFormat format, std::string_view bytes) {
  static constexpr std::string_view kParts[] = {"<|open|>",
                                                "<|close|>",
                                                "<|sep|>",
                                                "<|end_of_msg|>",
                                                "<|im_end|>",
                                                "<|im_user|>",
                                                "<|im_middle|>",
                                                "<|tool_calls_section_begin|>",
                                                "<|tool_call_begin|>",
                                                "<|tool_call_argument_begin|>",
                                                "<|tool_call_end|>",
                                                "<|tool_calls_section_end|>",
                                                "[EOS]"};
  static constexpr std::string_view kWords[] = {"think",
                                                "response",
                                                "tools",
                                                "call tool=\"f\"",
                                                "argument key=\"k\" type=\"string\"",
                                                "argument key=\"n\" type=\"number\"",
                                                "json type=\"object\"",
                                                "message",
                                                "functions.f:0"};
  const Tokenizer& with = tokenizer(format);
  std::vector<int32_t> ids;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80) {
      ids.push_back(byte);
    } else if (byte < 0xa0) {
      const auto id = with.special(kParts[(byte - 0x80U) % std::size(kParts)]);
      ids.push_back(id.value_or(byte));
    } else if (byte < 0xc0) {
      with.encode(kWords[(byte - 0xa0U) % std::size(kWords)], ids);
    } else {
      ids.push_back(byte + (byte % 4 == 0 ? 100 : 0));
    }
  }
  return ids;
}

void check_events(std::span<const OutputEvent> events) {
  int open = -1, begun = 0;
  std::string arguments;
  for (size_t i = 0; i < events.size(); ++i) {
    const OutputEvent& event = events[i];
    check(replace_invalid_utf8(event.text) == event.text, "an event has invalid UTF-8");
    check((event.kind == OutputEventKind::kMessageEnd) == (i + 1 == events.size()),
          "not exactly one end, at the end");
    if (event.kind == OutputEventKind::kCallBegin) {
      check(open < 0 && event.call_index == begun, "a call begins inside another");
      open = begun++;
      arguments.clear();
    } else if (event.kind == OutputEventKind::kCallArguments) {
      check(event.call_index == open, "arguments of no call");
      arguments += event.text;
    } else if (event.kind == OutputEventKind::kCallEnd) {
      check(event.call_index == open && event.text == arguments, "the arguments do not add up");
      open = -1;
    } else {
      check(open < 0, "text inside a call");
    }
  }
}

void check_output(ChatFormat format, Channel start, std::string_view bytes) {
  const std::vector<int32_t> ids = output_ids(format, bytes.substr(0, 300));
  OutputOptions options;
  options.start = start;
  for (size_t cut = 0; cut <= ids.size(); ++cut) {
    const auto parser = make_output_parser(format, tokenizer(format), options);
    check(parser.ok(), "no parser");
    std::vector<OutputEvent> events;
    for (const int32_t id : std::span(ids).first(cut)) {
      (*parser)->push(id, events);
    }
    (*parser)->finish(events);
    check_events(events);
    if (cut == ids.size()) {
      ChatRequest request;
      ChatMessage& message = request.messages.emplace_back();
      for (const OutputEvent& event : events) {
        apply_event(event, message);
      }
      check_render(format, request);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) {
    return 0;
  }
  const std::string_view rest(reinterpret_cast<const char*>(data + 1), size - 1);
  if (data[0] % 2 == 0) {
    check_request(rest);
    return 0;
  }
  const Channel start = data[0] % 4 == 1 ? Channel::kThink : Channel::kResponse;
  check_output(ChatFormat::kKimiK3, start, rest);
  check_output(ChatFormat::kKimiK2, start, rest);
  return 0;
}
