// Code point sets, their UTF-8, and the arena of forms.
#include "text/grammar/form.h"

#include <algorithm>

namespace triax::text::internal {
namespace {

constexpr std::pair<uint32_t, uint32_t> kSurrogates = {0xd800, 0xdfff};

int encode_utf8(uint32_t code, uint8_t (&out)[4]) {
  if (code < 0x80) {
    out[0] = static_cast<uint8_t>(code);
    return 1;
  }
  const int count = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
  constexpr uint32_t kLead[5] = {0, 0, 0xc0, 0xe0, 0xf0};
  for (int i = count - 1; i > 0; --i) {
    out[i] = static_cast<uint8_t>(0x80 | (code & 0x3f));
    code >>= 6;
  }
  out[0] = static_cast<uint8_t>(kLead[count] | code);
  return count;
}

}  // namespace

CodeSet::CodeSet(std::initializer_list<std::pair<uint32_t, uint32_t>> ranges) : ranges_(ranges) {
  normalise();
}

void CodeSet::add(const CodeSet& other) {
  ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
}

void CodeSet::normalise() {
  std::sort(ranges_.begin(), ranges_.end());
  std::vector<std::pair<uint32_t, uint32_t>> merged;
  for (const auto& [from, to] : ranges_) {
    if (!merged.empty() && from <= merged.back().second + 1) {
      merged.back().second = std::max(merged.back().second, to);
    } else {
      merged.emplace_back(from, to);
    }
  }
  ranges_ = std::move(merged);
}

CodeSet CodeSet::complement() const {
  CodeSet taken = *this;
  taken.add(kSurrogates.first, kSurrogates.second);
  taken.normalise();
  CodeSet result;
  uint32_t next = 0;
  for (const auto& [from, to] : taken.ranges_) {
    if (from > next) {
      result.add(next, from - 1);
    }
    next = to + 1;
  }
  if (next <= kCodeMax) {
    result.add(next, kCodeMax);
  }
  return result;
}

CodeSet CodeSet::intersection(const CodeSet& other) const {
  CodeSet outside = complement();
  outside.add(other.complement());
  outside.normalise();
  return outside.complement();
}

bool CodeSet::contains(uint32_t code) const {
  return std::ranges::any_of(
      ranges_, [&](const auto& range) { return range.first <= code && code <= range.second; });
}

void append_utf8(uint32_t code, std::string& out) {
  uint8_t bytes[4];
  const int count = encode_utf8(code, bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(count));
}

const CodeSet& plain_characters() {
  static const CodeSet set = {{0x20, 0x21}, {0x23, 0x5b}, {0x5d, 0xd7ff}, {0xe000, kCodeMax}};
  return set;
}

Forms::Forms() {
  add({.kind = Form::Kind::kEmpty});
  add({.kind = Form::Kind::kNever});
}

FormId Forms::add(Form form) {
  forms_.push_back(std::move(form));
  return static_cast<FormId>(forms_.size() - 1);
}

FormId Forms::bytes(uint8_t low, uint8_t high) {
  return add({.kind = Form::Kind::kBytes, .low = low, .high = high});
}

FormId Forms::literal(std::string_view text) {
  return text.empty() ? empty() : add({.kind = Form::Kind::kLiteral, .text = std::string(text)});
}

FormId Forms::token(int32_t id) {
  return add({.kind = Form::Kind::kToken, .value = static_cast<uint32_t>(id)});
}

FormId Forms::sequence(std::vector<FormId> parts) {
  if (std::ranges::find(parts, never()) != parts.end()) {
    return never();
  }
  std::erase(parts, empty());
  if (parts.empty()) {
    return empty();
  }
  return parts.size() == 1 ? parts[0]
                           : add({.kind = Form::Kind::kSequence, .parts = std::move(parts)});
}

FormId Forms::choice(std::vector<FormId> parts) {
  std::erase(parts, never());
  if (parts.empty()) {
    return never();
  }
  return parts.size() == 1 ? parts[0]
                           : add({.kind = Form::Kind::kChoice, .parts = std::move(parts)});
}

FormId Forms::repeat(FormId form, int64_t min, int64_t max) {
  if (max == 0 || form == empty() || (form == never() && min == 0)) {
    return empty();
  }
  if (form == never()) {
    return never();
  }
  if (min == 1 && max == 1) {
    return form;
  }
  return add({.kind = Form::Kind::kRepeat, .min = min, .max = max, .parts = {form}});
}

FormId Forms::automaton(ByteAutomaton automaton) {
  automata_.push_back(std::move(automaton));
  return add(
      {.kind = Form::Kind::kAutomaton, .value = static_cast<uint32_t>(automata_.size() - 1)});
}

RuleId Forms::declare(std::string name) {
  rules_.push_back({std::move(name), never()});
  return static_cast<RuleId>(rules_.size() - 1);
}

FormId Forms::rule(RuleId rule) { return add({.kind = Form::Kind::kRule, .value = rule}); }

FormId Forms::character(const CodeSet& set) {
  std::vector<FormId> parts;
  for (const auto& [from, to] : set.ranges()) {
    // Surrogates have no UTF-8.
    if (from < kSurrogates.first) {
      add_code_range(from, std::min(to, kSurrogates.first - 1), parts);
    }
    if (to > kSurrogates.second) {
      add_code_range(std::max(from, kSurrogates.second + 1), to, parts);
    }
  }
  return choice(std::move(parts));
}

/// Cuts from..to into ranges whose encodings are products of byte ranges.
void Forms::add_code_range(uint32_t from, uint32_t to, std::vector<FormId>& out) {
  if (from > to) {
    return;
  }
  for (const uint32_t last : {0x7fU, 0x7ffU, 0xffffU}) {
    if (from <= last && to > last) {
      add_code_range(from, last, out);
      add_code_range(last + 1, to, out);
      return;
    }
  }
  for (int bits = 6; bits < 24 && to >= 0x80; bits += 6) {
    const uint32_t mask = (1U << bits) - 1;
    if ((from & ~mask) == (to & ~mask)) {
      break;
    }
    if ((from & mask) != 0) {
      add_code_range(from, from | mask, out);
      add_code_range((from | mask) + 1, to, out);
      return;
    }
    if ((to & mask) != mask) {
      add_code_range(from, (to & ~mask) - 1, out);
      add_code_range(to & ~mask, to, out);
      return;
    }
  }
  uint8_t low[4], high[4];
  const int count = encode_utf8(from, low);
  encode_utf8(to, high);
  std::vector<FormId> parts;
  for (int i = 0; i < count; ++i) {
    parts.push_back(bytes(low[i], high[i]));
  }
  out.push_back(sequence(std::move(parts)));
}

}  // namespace triax::text::internal
