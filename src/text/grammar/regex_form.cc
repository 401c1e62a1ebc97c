// A recursive-descent reader that builds the form as it goes.
#include "text/grammar/regex_form.h"

#include <fmt/core.h>

#include <optional>
#include <utility>
#include <vector>

#include "text/utf8.h"

namespace triax::text::internal {
namespace {

constexpr int kDepthMax = 100;
constexpr int64_t kCountMax = 100'000;

const CodeSet kDigit = {{'0', '9'}};
const CodeSet kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CodeSet kSpace = {{0x09, 0x0d},     {0x20, 0x20},     {0xa0, 0xa0},     {0x1680, 0x1680},
                        {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f},
                        {0x3000, 0x3000}, {0xfeff, 0xfeff}};
const CodeSet kLineEnd = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

/// \d and its like; nothing for another letter.
std::optional<CodeSet> class_escape(char letter) {
  switch (letter) {
    case 'd':
      return kDigit;
    case 'w':
      return kWord;
    case 's':
      return kSpace;
    case 'D':
      return kDigit.complement();
    case 'W':
      return kWord.complement();
    case 'S':
      return kSpace.complement();
    default:
      return std::nullopt;
  }
}

Result<uint32_t> read_hex(std::string_view text, size_t& at, size_t digits) {
  uint32_t code = 0;
  for (size_t i = 0; i < digits; ++i, ++at) {
    const char c = at < text.size() ? text[at] : '\0';
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) {
      return Status::invalid_argument(fmt::format("expected {} hexadecimal digits", digits));
    }
    code = code << 4 | static_cast<uint32_t>(digit);
  }
  if (code > kCodeMax || (code >= 0xd800 && code <= 0xdfff)) {
    return Status::invalid_argument(fmt::format("U+{:04X} is no character", code));
  }
  return code;
}

class RegexReader {
 public:
  RegexReader(Forms& forms, std::string_view pattern, RegexMatch match,
              const std::function<FormId(const CodeSet&)>& write)
      : forms_(forms), text_(pattern), match_(match), write_(write) {}

  Result<FormId> read() {
    const Result<FormId> form = alternatives(0);
    if (!form.ok()) {
      return form;
    }
    return at_ == text_.size() ? form : error("')' without '('");
  }

 private:
  Status error(std::string_view what) const {
    return Status::invalid_argument(fmt::format("{}: {}", at_, what));
  }
  bool peek(char c) const { return at_ < text_.size() && text_[at_] == c; }
  bool take(char c) {
    if (!peek(c)) {
      return false;
    }
    ++at_;
    return true;
  }
  bool take(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) {
      return false;
    }
    at_ += word.size();
    return true;
  }

  FormId anything() { return forms_.repeat(write_(CodeSet{}.complement()), 0, kUnbounded); }

  Result<FormId> alternatives(int depth) {
    if (depth > kDepthMax) {
      return error(fmt::format("groups are nested deeper than {}", kDepthMax));
    }
    std::vector<FormId> choices;
    do {
      Result<FormId> form = alternative(depth);
      if (!form.ok()) {
        return form;
      }
      choices.push_back(*form);
    } while (take('|'));
    return forms_.choice(std::move(choices));
  }

  Result<FormId> alternative(int depth) {
    std::vector<FormId> parts;
    const bool search = depth == 0 && match_ == RegexMatch::kAnywhere;
    bool tied = false;
    if (depth == 0) {
      tied = take('^');
    }
    if (search && !tied) {
      parts.push_back(anything());
    }
    tied = false;
    while (at_ < text_.size() && !peek('|') && !peek(')')) {
      if (peek('$') && depth == 0) {
        ++at_;
        if (at_ < text_.size() && !peek('|')) {
          return error("'$' may only end the expression or an outermost alternative");
        }
        tied = true;
        break;
      }
      Result<FormId> part = atom(depth);
      if (part.ok()) {
        part = quantified(*part);
      }
      if (!part.ok()) {
        return part;
      }
      parts.push_back(*part);
    }
    if (search && !tied) {
      parts.push_back(anything());
    }
    return forms_.sequence(std::move(parts));
  }

  Result<FormId> atom(int depth) {
    switch (text_[at_]) {
      case '(':
        return group(depth);
      case '[': {
        ++at_;
        const size_t begin = at_;
        const Result<CodeSet> set = read_class(text_, at_);
        if (!set.ok()) {
          at_ = begin;
          return error(set.status().message());
        }
        return write_(*set);
      }
      case '.':
        ++at_;
        return write_(kLineEnd.complement());
      case '\\':
        return escape();
      case '^':
      case '$':
        return error(fmt::format("'{}' is only supported at the ends of the outermost alternatives",
                                 text_[at_]));
      case '*':
      case '+':
      case '?':
        return error(fmt::format("'{}' has nothing to repeat", text_[at_]));
      default:
        return one_character();
    }
  }

  Result<FormId> one_character() {
    const Result<uint32_t> code = read_character(text_, at_);
    if (!code.ok()) {
      return error(code.status().message());
    }
    return write_({{*code, *code}});
  }

  Result<FormId> escape() {
    ++at_;
    if (at_ == text_.size()) {
      return error("a backslash at the end");
    }
    if (const std::optional<CodeSet> set = class_escape(text_[at_])) {
      ++at_;
      return write_(*set);
    }
    if ((text_[at_] >= '1' && text_[at_] <= '9') || text_[at_] == 'k') {
      return error("back-references are not supported");
    }
    if (text_[at_] == 'b' || text_[at_] == 'B') {
      return error("word boundaries are not supported");
    }
    const Result<uint32_t> code = read_escape(text_, at_);
    if (!code.ok()) {
      return error(code.status().message());
    }
    return write_({{*code, *code}});
  }

  Result<FormId> group(int depth) {
    ++at_;
    if (take("?")) {
      if (take("=") || take("!") || take("<=") || take("<!")) {
        return error("look-around is not supported");
      }
      if (take("<") || take("P<")) {
        const size_t end = text_.find('>', at_);
        if (end == std::string_view::npos) {
          return error("a group's name without '>'");
        }
        at_ = end + 1;
      } else if (!take(":")) {
        return error("flags and other group extensions are not supported");
      }
    }
    const Result<FormId> inner = alternatives(depth + 1);
    if (inner.ok() && !take(')')) {
      return error("'(' without ')'");
    }
    return inner;
  }

  /// The numbers of {n}, {n,}, {n,m}; nothing when it is no such thing (then '{' is a character).
  std::optional<std::pair<int64_t, int64_t>> counts() {
    size_t at = at_ + 1;
    const auto number = [&]() -> int64_t {
      int64_t value = -1;
      for (; at < text_.size() && text_[at] >= '0' && text_[at] <= '9'; ++at) {
        value =
            std::min<int64_t>(std::max<int64_t>(value, 0) * 10 + (text_[at] - '0'), kCountMax + 1);
      }
      return value;
    };
    const int64_t min = number();
    int64_t max = min;
    if (min >= 0 && at < text_.size() && text_[at] == ',') {
      ++at;
      max = number();  // -1 when absent: kUnbounded
    }
    if (min < 0 || at >= text_.size() || text_[at] != '}') {
      return std::nullopt;
    }
    at_ = at + 1;
    return std::pair(min, max);
  }

  Result<FormId> quantified(FormId form) {
    std::optional<std::pair<int64_t, int64_t>> range;
    if (take('*')) {
      range = {0, kUnbounded};
    } else if (take('+')) {
      range = {1, kUnbounded};
    } else if (take('?')) {
      range = {0, 1};
    } else if (peek('{')) {
      range = counts();
    }
    if (!range) {
      return form;
    }
    take('?');  // lazy: the same texts
    if (peek('*') || peek('+') || peek('?')) {
      return error("a quantifier after a quantifier");
    }
    const auto [min, max] = *range;
    if (min > kCountMax || max > kCountMax) {
      return error(fmt::format("a count above {}", kCountMax));
    }
    if (max != kUnbounded && min > max) {
      return error(fmt::format("the counts {} and {} are out of order", min, max));
    }
    return forms_.repeat(form, min, max);
  }

  Forms& forms_;
  std::string_view text_;
  RegexMatch match_;
  const std::function<FormId(const CodeSet&)>& write_;
  size_t at_ = 0;
};

}  // namespace

Result<uint32_t> read_character(std::string_view text, size_t& at) {
  if (at >= text.size()) {
    return Status::invalid_argument("the text ends where a character was expected");
  }
  const Utf8Step step = utf8_step(text.substr(at));
  if (step.state != Utf8State::kValid) {
    return Status::invalid_argument("bytes that are not UTF-8");
  }
  at += static_cast<size_t>(step.bytes);
  return static_cast<uint32_t>(step.point);
}

Result<uint32_t> read_escape(std::string_view text, size_t& at) {
  if (at >= text.size()) {
    return Status::invalid_argument("a backslash at the end");
  }
  const char c = text[at++];
  switch (c) {
    case 'n':
      return uint32_t{'\n'};
    case 't':
      return uint32_t{'\t'};
    case 'r':
      return uint32_t{'\r'};
    case 'f':
      return uint32_t{'\f'};
    case 'v':
      return uint32_t{'\v'};
    case '0':
      return uint32_t{0};
    case 'x':
      return read_hex(text, at, 2);
    case 'U':
      return read_hex(text, at, 8);
    case 'u': {
      if (at < text.size() && text[at] == '{') {
        const size_t end = text.find('}', at);
        if (end == std::string_view::npos || end - at - 1 > 6 || end - at == 1) {
          return Status::invalid_argument("expected \\u{1 to 6 hexadecimal digits}");
        }
        ++at;
        Result<uint32_t> code = read_hex(text, at, end - at);
        at = end + 1;
        return code;
      }
      return read_hex(text, at, 4);
    }
    default:
      break;
  }
  const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  if (letter || static_cast<unsigned char>(c) >= 0x80) {
    return Status::invalid_argument(letter ? fmt::format("the escape \\{} is not supported", c)
                                           : "a character that needs no backslash");
  }
  return static_cast<uint32_t>(static_cast<unsigned char>(c));
}

Result<CodeSet> read_class(std::string_view text, size_t& at) {
  constexpr uint32_t kNothing = kCodeMax + 1;
  CodeSet set;
  const bool negated = at < text.size() && text[at] == '^';
  at += negated ? 1 : 0;
  uint32_t last = kNothing;  // what a '-' would start a range from
  bool range = false;        // there was a '-' behind `last`
  for (; at < text.size() && text[at] != ']';) {
    const char c = text[at];
    if (c == '-' && last != kNothing && !range) {
      range = true;
      ++at;
      continue;
    }
    const char escaped = c == '\\' && at + 1 < text.size() ? text[at + 1] : '\0';
    if (const std::optional<CodeSet> inner = class_escape(escaped)) {
      at += 2;
      set.add(*inner);
      if (std::exchange(range, false)) {
        set.add('-');
      }
      last = kNothing;
      continue;
    }
    if (escaped == 'b') {
      return Status::invalid_argument("\\b in a class is not supported; write \\x08");
    }
    at += c == '\\' ? 1 : 0;
    const Result<uint32_t> code = c == '\\' ? read_escape(text, at) : read_character(text, at);
    if (!code.ok()) {
      return code.status();
    }
    if (std::exchange(range, false)) {
      if (*code < last) {
        return Status::invalid_argument("a range whose ends are out of order");
      }
      set.add(last, *code);
      last = kNothing;
    } else {
      set.add(*code);
      last = *code;
    }
  }
  if (at >= text.size()) {
    return Status::invalid_argument("'[' without ']'");
  }
  ++at;
  if (range) {
    set.add('-');
  }
  set.normalise();
  return negated ? set.complement() : set;
}

Result<FormId> regex_form(Forms& forms, std::string_view pattern, RegexMatch match,
                          const std::function<FormId(const CodeSet&)>& write) {
  return RegexReader(forms, pattern, match, write).read();
}

}  // namespace triax::text::internal
