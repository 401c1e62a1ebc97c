// Kimi K3: tags between <|open|> or <|close|> and <|sep|>.
#include <algorithm>
#include <optional>
#include <utility>

#include "text/json_text.h"
#include "text/output_parser_formats.h"

namespace triax::text {
namespace {

// A longer tag is taken for text after a stray control token.
constexpr size_t kTagBytesMax = 4096;

constexpr std::string_view kSpaces = " \t\r\n";

std::string_view trim(std::string_view text) {
  const size_t begin = std::min(text.find_first_not_of(kSpaces), text.size());
  text.remove_prefix(begin);
  return text.substr(0, text.find_last_not_of(kSpaces) + 1);
}

std::string unescape(std::string_view value) {
  std::string out;
  while (!value.empty()) {
    if (value.starts_with("&quot;")) {
      out += '"';
      value.remove_prefix(6);
    } else if (value.starts_with("&amp;")) {
      out += '&';
      value.remove_prefix(5);
    } else {
      out += value.front();
      value.remove_prefix(1);
    }
  }
  return out;
}

// `name key="value" ...`; what does not fit this is passed over.
class Tag {
 public:
  explicit Tag(std::string_view text) : rest_(trim(text)) {
    const size_t end = std::min(rest_.find_first_of(kSpaces), rest_.size());
    name_ = rest_.substr(0, end);
    rest_.remove_prefix(end);
  }

  std::string_view name() const { return name_; }

  std::optional<std::string> attribute(std::string_view key) const {
    std::string_view rest = rest_;
    while (true) {
      const size_t equals = rest.find("=\"");
      if (equals == std::string_view::npos) {
        return std::nullopt;
      }
      const std::string_view found = trim(rest.substr(0, equals));
      rest.remove_prefix(equals + 2);
      const size_t quote = std::min(rest.find('"'), rest.size());
      if (found == key) {
        return unescape(rest.substr(0, quote));
      }
      rest.remove_prefix(std::min(quote + 1, rest.size()));
    }
  }

 private:
  std::string_view name_;
  std::string_view rest_;
};

enum class Place {
  kThink,
  kResponse,
  kBetween,   // after a channel: text here is part of the answer, but spaces are not
  kTools,     // text here means nothing
  kCall,      // nor here
  kArgument,  // the value of an argument
  kJson,      // arguments that the model could not split
};

class K3Parser : public OutputParser {
 public:
  K3Parser(const Tokenizer& tokenizer, OutputOptions options, const std::vector<int32_t>& ids)
      : OutputParser(tokenizer, std::move(options)),
        open_(ids[0]),
        close_(ids[1]),
        separator_(ids[2]),
        end_(ids[3]),
        place_(this->options().start == Channel::kThink ? Place::kThink : Place::kResponse) {}

  void push(int32_t id, std::vector<OutputEvent>& events) override {
    if (ended()) {
      return;
    }
    if (!tokenizer().is_special(id)) {
      take(decoder_.push(id), events);
      return;
    }
    take(decoder_.finish(), events);
    if (id == end_) {
      leave(events);
      end_message(true, events);
    } else if (id == open_ || id == close_) {
      tag_ = id == open_ ? TagKind::kOpen : TagKind::kClose;
      tag_text_.clear();
    } else if (id == separator_ && tag_ != TagKind::kNone) {
      const Tag tag(tag_text_);
      if (std::exchange(tag_, TagKind::kNone) == TagKind::kOpen) {
        open(tag, events);
      } else {
        close(tag.name(), events);
      }
    }
  }

 protected:
  void cut(std::vector<OutputEvent>& events) override {
    take(decoder_.finish(), events);
    if (!in_call()) {
      return;
    }
    if (place_ == Place::kArgument && !value_is_string_) {
      give_arguments(value_, events);
    }
    if (arguments().empty()) {
      give_arguments("{", events);
    }
    end_call(false, events);
  }

 private:
  enum class TagKind { kNone, kOpen, kClose };
  enum class Shape { kNothing, kArguments, kJson };  // what a call holds so far

  bool in_call() const {
    return place_ == Place::kCall || place_ == Place::kArgument || place_ == Place::kJson;
  }

  void take(std::string text, std::vector<OutputEvent>& events) {
    if (text.empty()) {
      return;
    }
    if (tag_ == TagKind::kNone) {
      take_text(std::move(text), events);
      return;
    }
    tag_text_ += text;
    if (tag_text_.size() > kTagBytesMax) {
      tag_ = TagKind::kNone;
      take_text(std::exchange(tag_text_, {}), events);
    }
  }

  void take_text(std::string text, std::vector<OutputEvent>& events) {
    switch (place_) {
      case Place::kBetween:
        text.erase(0, std::min(text.find_first_not_of(kSpaces), text.size()));
        if (text.empty()) {
          return;
        }
        place_ = Place::kResponse;
        [[fallthrough]];
      case Place::kResponse:
        give_text(Channel::kResponse, std::move(text), events);
        return;
      case Place::kThink:
        give_text(Channel::kThink, std::move(text), events);
        return;
      case Place::kJson:
        give_arguments(text, events);
        return;
      case Place::kArgument:
        take_value(text, events);
        return;
      case Place::kTools:
      case Place::kCall:
        return;
    }
  }

  void take_value(std::string_view text, std::vector<OutputEvent>& events) {
    if (!value_is_string_) {
      value_ += text;
      return;
    }
    std::string escaped;
    append_json_escaped(text, escaped);
    give_arguments(escaped, events);
  }

  void open(const Tag& tag, std::vector<OutputEvent>& events) {
    const std::string_view name = tag.name();
    if (name == "think" || name == "response" || name == "tools") {
      leave(events);
      place_ = name == "think"      ? Place::kThink
               : name == "response" ? Place::kResponse
                                    : Place::kTools;
    } else if (name == "call") {
      leave(events);
      begin_call("", tag.attribute("tool").value_or(""), events);
      place_ = Place::kCall;
      shape_ = Shape::kNothing;
    } else if (name == "message") {
      leave(events);
      end_message(true, events);
    } else if (in_call() && (name == "argument" || name == "json")) {
      end_value(events);
      if (name == "argument" && shape_ != Shape::kJson) {
        begin_argument(tag, events);
      } else if (name == "json" && shape_ == Shape::kNothing) {
        shape_ = Shape::kJson;
        place_ = Place::kJson;
      }
    }
  }

  void close(std::string_view name, std::vector<OutputEvent>& events) {
    if (name == "message") {
      leave(events);
      end_message(true, events);
    } else if (name == "tools" && (in_call() || place_ == Place::kTools)) {
      leave(events);
      place_ = Place::kBetween;
    } else if (name == "call" && in_call()) {
      leave(events);
      place_ = Place::kTools;
    } else if ((name == "argument" && place_ == Place::kArgument) ||
               (name == "json" && place_ == Place::kJson)) {
      end_value(events);
    } else if ((name == "think" && place_ == Place::kThink) ||
               (name == "response" && place_ == Place::kResponse)) {
      place_ = Place::kBetween;
    }
  }

  // Ends a call with all that is open in it; the other places need no end.
  void leave(std::vector<OutputEvent>& events) {
    if (in_call()) {
      end_value(events);
      if (shape_ == Shape::kArguments) {
        give_arguments("}", events);
      } else if (arguments().empty()) {
        give_arguments("{}", events);
      }
      end_call(true, events);
    }
  }

  void begin_argument(const Tag& tag, std::vector<OutputEvent>& events) {
    value_is_string_ = tag.attribute("type").value_or("string") == "string";
    value_.clear();
    std::string head = shape_ == Shape::kNothing ? "{" : ", ";
    head += quote_json(tag.attribute("key").value_or("")) + ": ";
    give_arguments(head + (value_is_string_ ? "\"" : ""), events);
    shape_ = Shape::kArguments;
    place_ = Place::kArgument;
  }

  void end_value(std::vector<OutputEvent>& events) {
    if (place_ == Place::kArgument && value_is_string_) {
      give_arguments("\"", events);
    } else if (place_ == Place::kArgument) {
      const std::string_view value = trim(value_);
      give_arguments(is_json(value) ? std::string(value) : quote_json(value_), events);
    }
    place_ = Place::kCall;
  }

  const int32_t open_, close_, separator_, end_;
  Place place_;
  TagKind tag_ = TagKind::kNone;
  std::string tag_text_;
  Shape shape_ = Shape::kNothing;
  std::string value_;  // so far, of an argument that is no string
  bool value_is_string_ = true;
};

}  // namespace

Result<std::unique_ptr<OutputParser>> make_k3_parser(const Tokenizer& tokenizer,
                                                     OutputOptions options) {
  const Result<std::vector<int32_t>> ids =
      control_ids(tokenizer, {"<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"});
  if (!ids.ok()) {
    return ids.status();
  }
  return std::unique_ptr<OutputParser>(
      std::make_unique<K3Parser>(tokenizer, std::move(options), *ids));
}

}  // namespace triax::text
