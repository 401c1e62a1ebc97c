// What the tests of the APIs and their fuzzer share: a model without weights, events of an answer,
// the frames of a stream. In a header so that no test code gets into the library.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "server/generation.h"
#include "text/chat_testing.h"
#include "text/json_text.h"

namespace triax::server {

/// `tokenizer` must outlive it.
inline ModelInfo test_model(const text::Tokenizer& tokenizer) {
  return {.id = "twin",
          .created = 1,
          .vocab = tokenizer.size(),
          .context_tokens = 2000,
          .tokenizer = &tokenizer,
          .chat = text::ChatFormat::kKimiK3,
          .defaults = std::nullopt};
}

inline nlohmann::ordered_json parsed(std::string_view text) {
  Result<nlohmann::ordered_json> json = text::parse_json(text);
  check(json.ok(), std::string(text) + ": " + json.status().message());
  return *std::move(json);
}

struct Frame {
  std::string event;
  nlohmann::ordered_json data;
};

/// The server-sent events in `text`, each with a name and one line of JSON.
inline std::vector<Frame> frames_of(std::string_view text) {
  std::vector<Frame> frames;
  while (!text.empty()) {
    const size_t end = text.find("\n\n");
    check(end != std::string_view::npos, "a frame ends with an empty line");
    const std::string_view frame = text.substr(0, end);
    const size_t line = frame.find('\n');
    check(frame.starts_with("event: ") && line != std::string_view::npos &&
              frame.substr(line + 1).starts_with("data: "),
          "a frame has a name and data");
    frames.push_back({std::string(frame.substr(7, line - 7)), parsed(frame.substr(line + 7))});
    text.remove_prefix(end + 2);
  }
  return frames;
}

/// One event of an output.
inline text::OutputEvent output_text(text::OutputEventKind kind, std::string text) {
  return {kind, std::move(text), -1, "", "", true};
}
inline text::OutputEvent call_begin(std::string id, std::string name) {
  return {text::OutputEventKind::kCallBegin, "", 0, std::move(id), std::move(name), true};
}
inline text::OutputEvent call_end(std::string arguments, bool complete) {
  return {text::OutputEventKind::kCallEnd, std::move(arguments), 0, "", "", complete};
}
inline text::OutputEvent message_end(bool complete = true) {
  return {text::OutputEventKind::kMessageEnd, "", -1, "", "", complete};
}

/// The same output with its text in other pieces, none cutting a character.
inline std::vector<text::OutputEvent> split_anew(const std::vector<text::OutputEvent>& events,
                                                 Rng& rng, uint64_t longest) {
  std::vector<text::OutputEvent> pieces;
  for (const text::OutputEvent& event : events) {
    if (event.kind != text::OutputEventKind::kReasoning &&
        event.kind != text::OutputEventKind::kResponse &&
        event.kind != text::OutputEventKind::kCallArguments) {
      pieces.push_back(event);
      continue;
    }
    for (size_t begin = 0; begin < event.text.size();) {
      size_t end = begin + 1 + rng.below(longest);
      while (end < event.text.size() &&
             (static_cast<unsigned char>(event.text[end]) & 0xc0) == 0x80) {
        ++end;
      }
      pieces.push_back(event);
      pieces.back().text = event.text.substr(begin, end - begin);
      begin = end;
    }
  }
  return pieces;
}

/// Everything of one choice, from kStarted to kFinished.
inline std::vector<GenerationEvent> whole_answer(const std::vector<text::OutputEvent>& outputs,
                                                 FinishReason reason, std::string stop = {}) {
  GenerationEvent started;
  started.kind = GenerationEvent::Kind::kStarted;
  started.usage.prompt_tokens = 100;
  started.usage.cached_tokens = 64;
  std::vector<GenerationEvent> events = {started};
  for (const text::OutputEvent& output : outputs) {
    events.emplace_back().output = output;
  }
  GenerationEvent finished = started;
  finished.kind = GenerationEvent::Kind::kFinished;
  finished.usage.answer_tokens = 30;
  finished.usage.reasoning_tokens = 10;
  finished.reason = reason;
  finished.stop = std::move(stop);
  events.push_back(std::move(finished));
  return events;
}

inline std::string push_all(AnswerWriter& writer, const std::vector<GenerationEvent>& events) {
  std::string out;
  for (const GenerationEvent& event : events) {
    writer.push(event, out);
  }
  return out;
}

}  // namespace triax::server
