// Kimi K2 and Kimi Linear: text, then a section of calls between special tokens.
#include <algorithm>
#include <string>
#include <utility>

#include "text/chat_k2.h"
#include "text/output_parser_formats.h"

namespace triax::text {
namespace {

enum class Place { kContent, kSection, kCallId, kArguments };

struct K2Ids {
  int32_t end, section_begin, section_end, call_begin, argument_begin, call_end;
  int32_t user, assistant, system;
};

class K2Parser : public OutputParser {
 public:
  K2Parser(const Tokenizer& tokenizer, OutputOptions options, const K2Ids& ids)
      : OutputParser(tokenizer, std::move(options)), ids_(ids) {}

  void push(int32_t id, std::vector<OutputEvent>& events) override {
    if (ended()) {
      return;
    }
    if (!tokenizer().is_special(id)) {
      take(decoder_.push(id), events);
      return;
    }
    take(decoder_.finish(), events);
    // Another turn's start ends this one as well.
    if (id == ids_.end || id == ids_.user || id == ids_.assistant || id == ids_.system) {
      leave(events);
      end_message(true, events);
    } else if (id == ids_.section_begin || id == ids_.call_end) {
      leave(events);
      place_ = Place::kSection;
    } else if (id == ids_.section_end) {
      leave(events);
      place_ = Place::kContent;
    } else if (id == ids_.call_begin) {
      leave(events);
      call_id_.clear();
      place_ = Place::kCallId;
    } else if (id == ids_.argument_begin && place_ == Place::kCallId) {
      begin(events);
    }
  }

 protected:
  void cut(std::vector<OutputEvent>& events) override {
    take(decoder_.finish(), events);
    if (place_ == Place::kArguments) {
      if (arguments().empty()) {
        give_arguments("{", events);
      }
      end_call(false, events);
    }
  }

 private:
  void take(std::string text, std::vector<OutputEvent>& events) {
    switch (place_) {
      case Place::kContent:
        give_text(Channel::kResponse, std::move(text), events);
        return;
      case Place::kCallId:
        call_id_ += text;
        return;
      case Place::kArguments:
        give_arguments(text, events);
        return;
      case Place::kSection:
        return;
    }
  }

  void begin(std::vector<OutputEvent>& events) {
    constexpr std::string_view kSpaces = " \t\r\n";
    call_id_.erase(0, std::min(call_id_.find_first_not_of(kSpaces), call_id_.size()));
    call_id_.erase(call_id_.find_last_not_of(kSpaces) + 1);
    begin_call(call_id_, std::string(k2_tool_name(call_id_)), events);
    place_ = Place::kArguments;
  }

  // Ends a call, with or without arguments; the other places need no end.
  void leave(std::vector<OutputEvent>& events) {
    if (place_ == Place::kCallId) {
      begin(events);
    }
    if (place_ == Place::kArguments) {
      if (arguments().empty()) {
        give_arguments("{}", events);
      }
      end_call(true, events);
      place_ = Place::kSection;
    }
  }

  const K2Ids ids_;
  Place place_ = Place::kContent;
  std::string call_id_;
};

}  // namespace

Result<std::unique_ptr<OutputParser>> make_k2_parser(const Tokenizer& tokenizer,
                                                     OutputOptions options) {
  const Result<std::vector<int32_t>> ids = control_ids(
      tokenizer, {"<|im_end|>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
                  "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>",
                  "<|im_user|>", "<|im_assistant|>", "<|im_system|>"});
  if (!ids.ok()) {
    return ids.status();
  }
  const std::vector<int32_t>& i = *ids;
  return std::unique_ptr<OutputParser>(std::make_unique<K2Parser>(
      tokenizer, std::move(options), K2Ids{i[0], i[1], i[2], i[3], i[4], i[5], i[6], i[7], i[8]}));
}

}  // namespace triax::text
