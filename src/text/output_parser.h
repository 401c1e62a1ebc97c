// From generated token ids back to a message, while they come: reasoning, response, tool calls.
// The reverse of chat_k3.h and chat_k2.h.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/chat.h"
#include "text/stream_decoder.h"
#include "text/tokenizer.h"

namespace triax::text {

enum class OutputEventKind {
  kReasoning,      // text: more reasoning
  kResponse,       // text: more of the answer
  kCallBegin,      // call_index, call_id, call_name
  kCallArguments,  // call_index; text: more of the arguments' JSON
  kCallEnd,        // call_index, complete; text: the whole JSON, all kCallArguments in a row
  kMessageEnd,     // complete
};

/// Text is valid UTF-8 whenever it is given out; a character never comes in two events.
struct OutputEvent {
  OutputEventKind kind = OutputEventKind::kMessageEnd;
  std::string text;
  int call_index = -1;  // from 0
  std::string call_id;
  std::string call_name;
  bool complete = true;  // false: the output was cut here
};

struct OutputOptions {
  /// Where the model starts: generation_channel of the request.
  Channel start = Channel::kResponse;
  /// K3's calls have no id: it is this and the call's index. Make it unique where clients need ids
  /// that differ between messages.
  std::string call_id_prefix = "call_";
};

/// Reads the tokens a model generates after a prompt's generation prefix. Every sequence of ids,
/// cut anywhere, gives a message: what is malformed is read with good will, never refused.
///  - think may be left by opening response or tools; any element may be left unclosed when the
///    next opens or the message ends; response may be missing.
///  - tags that are unknown or out of place are dropped, the text inside stays.
///  - special tokens that the format does not use are dropped.
///  - a call's arguments come out as the JSON text of one object (K2: as the model wrote it). A
///    value that is not of its type's JSON becomes a string.
///  - a call that is cut keeps the arguments written so far, no valid JSON unless the model itself
///    had written the whole object: nobody can run half a command by mistake.
/// The events, joined, depend on the ids alone. After kMessageEnd nothing more comes.
/// Ownership  refers to the tokenizer
class OutputParser {
 public:
  virtual ~OutputParser() = default;
  OutputParser(const OutputParser&) = delete;
  OutputParser& operator=(const OutputParser&) = delete;

  /// Appends what this token makes certain. Push the stop token too: it says that the message is
  /// complete.
  virtual void push(int32_t id, std::vector<OutputEvent>& events) = 0;

  /// No more tokens come. Ends what is open, with complete = false, unless the message has ended.
  void finish(std::vector<OutputEvent>& events);

 protected:
  OutputParser(const Tokenizer& tokenizer, OutputOptions options);

  /// Ends what the parser itself has begun, as cut.
  virtual void cut(std::vector<OutputEvent>& events) = 0;

  void give_text(Channel channel, std::string text, std::vector<OutputEvent>& events);
  void begin_call(std::string id, std::string name, std::vector<OutputEvent>& events);
  void give_arguments(std::string_view text, std::vector<OutputEvent>& events);
  void end_call(bool complete, std::vector<OutputEvent>& events);
  void end_message(bool complete, std::vector<OutputEvent>& events);

  bool ended() const { return ended_; }
  int calls() const { return calls_; }
  const std::string& arguments() const { return arguments_; }
  const Tokenizer& tokenizer() const { return tokenizer_; }
  const OutputOptions& options() const { return options_; }

  StreamDecoder decoder_;

 private:
  const Tokenizer& tokenizer_;
  OutputOptions options_;
  std::string arguments_;  // of the call that is open
  int calls_ = 0;          // begun
  bool ended_ = false;
};

/// Errors     kInvalidArgument when the tokenizer lacks a control token of the format
Result<std::unique_ptr<OutputParser>> make_output_parser(ChatFormat format,
                                                         const Tokenizer& tokenizer,
                                                         OutputOptions options);

/// Adds an event to the message it tells of. An assistant message that got all events of an output
/// is what a client would send back as history.
void apply_event(const OutputEvent& event, ChatMessage& message);

/// The message in `ids`; incomplete output gives what is there.
Result<ChatMessage> parse_output(ChatFormat format, const Tokenizer& tokenizer,
                                 OutputOptions options, std::span<const int32_t> ids);

}  // namespace triax::text
