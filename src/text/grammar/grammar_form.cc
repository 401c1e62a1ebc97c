#include "text/grammar/grammar_form.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "text/grammar/regex_form.h"

namespace triax::text::internal {
namespace {

constexpr int kDepthMax = 100;
constexpr int64_t kCountMax = 100'000;
constexpr size_t kRulesMax = 20'000;

bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-';
}

class GrammarReader {
 public:
  GrammarReader(Forms& forms, std::string_view text) : forms_(forms), text_(text) {}

  Result<FormId> read() {
    skip_space();
    while (at_ < text_.size()) {
      const Status status = definition();
      if (!status.ok()) {
        return status;
      }
      skip_space();
    }
    for (const auto& [name, rule] : rules_) {
      if (!rule.defined) {
        at_ = rule.used_at;
        return error(fmt::format("the rule '{}' is not defined", name));
      }
    }
    const auto root = rules_.find("root");
    if (root == rules_.end()) {
      return error("there is no rule 'root'");
    }
    return forms_.rule(root->second.id);
  }

 private:
  struct Rule {
    RuleId id;
    bool defined = false;
    size_t used_at = 0;
  };

  Status error(std::string_view what, StatusCode code = StatusCode::kInvalidArgument) const {
    const std::string_view before = text_.substr(0, std::min(at_, text_.size()));
    const auto line = std::ranges::count(before, '\n') + 1;
    const size_t start = before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
    return {code, fmt::format("grammar:{}:{}: {}", line, before.size() - start + 1, what)};
  }

  void skip_space() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
        ++at_;
      } else {
        break;
      }
    }
  }
  bool take(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) {
      return false;
    }
    at_ += word.size();
    skip_space();
    return true;
  }
  bool peek(char c) const { return at_ < text_.size() && text_[at_] == c; }

  std::string_view name() {
    const size_t begin = at_;
    while (at_ < text_.size() && is_name(text_[at_])) {
      ++at_;
    }
    const std::string_view found = text_.substr(begin, at_ - begin);
    skip_space();
    return found;
  }

  /// Whether a definition starts here: a name and `::=`.
  bool at_definition() {
    const size_t begin = at_;
    const bool found = !name().empty() && text_.substr(at_, 3) == "::=";
    at_ = begin;
    return found;
  }

  Rule& rule(std::string_view name, size_t at) {
    const auto [found, is_new] = rules_.try_emplace(std::string(name));
    if (is_new) {
      found->second = {.id = forms_.declare(std::string(name)), .defined = false, .used_at = at};
    }
    return found->second;
  }

  Status definition() {
    const size_t begin = at_;
    const std::string_view left = name();
    if (left.empty() || !take("::=")) {
      return error("expected 'name ::='");
    }
    Rule& defined = rule(left, begin);
    if (defined.defined) {
      at_ = begin;
      return error(fmt::format("the rule '{}' is defined twice", left));
    }
    if (rules_.size() > kRulesMax) {
      return error(fmt::format("more than {} rules", kRulesMax), StatusCode::kResourceExhausted);
    }
    defined.defined = true;
    const RuleId id = defined.id;
    const Result<FormId> body = alternatives(0);
    if (!body.ok()) {
      return body.status();
    }
    forms_.define(id, *body);
    if (at_ < text_.size() && !at_definition()) {
      return error("expected an item, '|' or 'name ::='");
    }
    return {};
  }

  Result<FormId> alternatives(int depth) {
    if (depth > kDepthMax) {
      return error(fmt::format("groups are nested deeper than {}", kDepthMax));
    }
    std::vector<FormId> choices;
    do {
      std::vector<FormId> parts;
      while (at_ < text_.size()) {
        const Result<std::optional<FormId>> part = item(depth);
        if (!part.ok()) {
          return part.status();
        }
        if (!part->has_value()) {
          break;
        }
        const Result<FormId> repeated = quantified(**part);
        if (!repeated.ok()) {
          return repeated;
        }
        parts.push_back(*repeated);
      }
      choices.push_back(forms_.sequence(std::move(parts)));
    } while (take("|"));
    return forms_.choice(std::move(choices));
  }

  /// The next item, nothing where the sequence ends.
  Result<std::optional<FormId>> item(int depth) {
    const char c = text_[at_];
    if (c == '(') {
      take("(");
      const Result<FormId> inner = alternatives(depth + 1);
      if (!inner.ok()) {
        return inner.status();
      }
      return take(")") ? Result<std::optional<FormId>>(*inner) : error("'(' without ')'");
    }
    if (c == '"') {
      return literal();
    }
    if (c == '[') {
      const size_t begin = at_++;
      const Result<CodeSet> set = read_class(text_, at_);
      if (!set.ok()) {
        at_ = begin;
        return error(set.status().message());
      }
      skip_space();
      return std::optional(forms_.character(*set));
    }
    if (c == '.') {
      take(".");
      return std::optional(forms_.character(CodeSet({{'\n', '\n'}}).complement()));
    }
    if (is_name(c) && !at_definition()) {
      const size_t begin = at_;
      return std::optional(forms_.rule(rule(name(), begin).id));
    }
    return std::optional<FormId>();
  }

  Result<std::optional<FormId>> literal() {
    const size_t begin = at_++;
    std::string text;
    while (!peek('"')) {
      size_t from = at_;
      if (at_ >= text_.size() || peek('\n')) {
        at_ = begin;
        return error("a text without its closing '\"'");
      }
      if (!peek('\\')) {
        text += text_[at_++];
        continue;
      }
      ++at_;
      const Result<uint32_t> code = read_escape(text_, at_);
      if (!code.ok()) {
        at_ = from;
        return error(code.status().message());
      }
      append_utf8(*code, text);
    }
    take("\"");
    return std::optional(forms_.literal(text));
  }

  Result<FormId> quantified(FormId form) {
    if (take("*")) {
      return forms_.repeat(form, 0, kUnbounded);
    }
    if (take("+")) {
      return forms_.repeat(form, 1, kUnbounded);
    }
    if (take("?")) {
      return forms_.optional(form);
    }
    if (!take("{")) {
      return form;
    }
    const auto number = [&]() -> int64_t {
      int64_t value = -1;
      for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
        value = std::min(std::max<int64_t>(value, 0) * 10 + (text_[at_] - '0'), kCountMax + 1);
      }
      skip_space();
      return value;
    };
    const int64_t min = number();
    const int64_t max = take(",") ? number() : min;
    if (min < 0 || min > kCountMax || max > kCountMax || (max != kUnbounded && min > max) ||
        !take("}")) {
      return error(
          fmt::format("expected {{n}}, {{n,}} or {{n,m}} with counts up to {}", kCountMax));
    }
    return forms_.repeat(form, min, max);
  }

  Forms& forms_;
  std::string_view text_;
  size_t at_ = 0;
  std::map<std::string, Rule, std::less<>> rules_;
};

}  // namespace

Result<FormId> grammar_form(Forms& forms, std::string_view text) {
  return GrammarReader(forms, text).read();
}

}  // namespace triax::text::internal
