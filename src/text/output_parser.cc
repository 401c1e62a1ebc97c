#include "text/output_parser.h"

#include <fmt/core.h>

#include <utility>

#include "text/output_parser_formats.h"

namespace triax::text {

OutputParser::OutputParser(const Tokenizer& tokenizer, OutputOptions options)
    : decoder_(tokenizer, SpecialText::kHide),
      tokenizer_(tokenizer),
      options_(std::move(options)) {}

void OutputParser::finish(std::vector<OutputEvent>& events) {
  if (!ended_) {
    cut(events);
    end_message(false, events);
  }
}

void OutputParser::give_text(Channel channel, std::string text, std::vector<OutputEvent>& events) {
  if (!text.empty()) {
    OutputEvent& event = events.emplace_back();
    event.kind =
        channel == Channel::kThink ? OutputEventKind::kReasoning : OutputEventKind::kResponse;
    event.text = std::move(text);
  }
}

void OutputParser::begin_call(std::string id, std::string name, std::vector<OutputEvent>& events) {
  arguments_.clear();
  OutputEvent& event = events.emplace_back();
  event.kind = OutputEventKind::kCallBegin;
  event.call_index = calls_++;
  event.call_id =
      id.empty() ? fmt::format("{}{}", options_.call_id_prefix, event.call_index) : std::move(id);
  event.call_name = std::move(name);
}

void OutputParser::give_arguments(std::string_view text, std::vector<OutputEvent>& events) {
  if (!text.empty()) {
    arguments_ += text;
    OutputEvent& event = events.emplace_back();
    event.kind = OutputEventKind::kCallArguments;
    event.call_index = calls_ - 1;
    event.text = text;
  }
}

void OutputParser::end_call(bool complete, std::vector<OutputEvent>& events) {
  OutputEvent& event = events.emplace_back();
  event.kind = OutputEventKind::kCallEnd;
  event.call_index = calls_ - 1;
  event.text = std::move(arguments_);
  event.complete = complete;
  arguments_.clear();
}

void OutputParser::end_message(bool complete, std::vector<OutputEvent>& events) {
  ended_ = true;
  OutputEvent& event = events.emplace_back();
  event.kind = OutputEventKind::kMessageEnd;
  event.complete = complete;
}

Result<std::vector<int32_t>> control_ids(const Tokenizer& tokenizer,
                                         std::initializer_list<std::string_view> names) {
  std::vector<int32_t> ids;
  for (std::string_view name : names) {
    const std::optional<int32_t> id = tokenizer.special(name);
    if (!id) {
      return Status::invalid_argument(fmt::format(
          "chat: the tokenizer has no special token '{}', which the chat format needs", name));
    }
    ids.push_back(*id);
  }
  return ids;
}

Result<std::unique_ptr<OutputParser>> make_output_parser(ChatFormat format,
                                                         const Tokenizer& tokenizer,
                                                         OutputOptions options) {
  return format == ChatFormat::kKimiK3 ? make_k3_parser(tokenizer, std::move(options))
                                       : make_k2_parser(tokenizer, std::move(options));
}

void apply_event(const OutputEvent& event, ChatMessage& message) {
  message.role = Role::kAssistant;
  switch (event.kind) {
    case OutputEventKind::kReasoning:
      message.reasoning += event.text;
      return;
    case OutputEventKind::kResponse:
      message.content += event.text;
      return;
    case OutputEventKind::kCallBegin:
      message.tool_calls.push_back({event.call_id, event.call_name, {}});
      return;
    case OutputEventKind::kCallArguments:
      message.tool_calls.back().arguments += event.text;
      return;
    case OutputEventKind::kCallEnd:
      message.tool_calls.back().arguments = event.text;
      return;
    case OutputEventKind::kMessageEnd:
      return;
  }
}

Result<ChatMessage> parse_output(ChatFormat format, const Tokenizer& tokenizer,
                                 OutputOptions options, std::span<const int32_t> ids) {
  const Result<std::unique_ptr<OutputParser>> parser =
      make_output_parser(format, tokenizer, std::move(options));
  if (!parser.ok()) {
    return parser.status();
  }
  std::vector<OutputEvent> events;
  for (const int32_t id : ids) {
    (*parser)->push(id, events);
  }
  (*parser)->finish(events);
  ChatMessage message;
  message.role = Role::kAssistant;
  for (const OutputEvent& event : events) {
    apply_event(event, message);
  }
  return message;
}

}  // namespace triax::text
