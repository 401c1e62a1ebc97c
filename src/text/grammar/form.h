// Forms: what text may be, built bottom-up from bytes and control tokens. Schemas, expressions,
// grammars and chat formats all become forms; automaton.h reads them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace triax::text::internal {

using FormId = uint32_t;
using RuleId = uint32_t;

constexpr int64_t kUnbounded = -1;
constexpr uint32_t kCodeMax = 0x10ffff;

/// A set of Unicode code points: ranges, both ends included, sorted and apart after normalise().
class CodeSet {
 public:
  CodeSet() = default;
  CodeSet(std::initializer_list<std::pair<uint32_t, uint32_t>> ranges);

  void add(uint32_t from, uint32_t to) { ranges_.emplace_back(from, to); }
  void add(uint32_t code) { add(code, code); }
  void add(const CodeSet& other);
  void normalise();
  /// All code points that are not in this one, surrogates left out.
  CodeSet complement() const;
  CodeSet intersection(const CodeSet& other) const;
  bool contains(uint32_t code) const;
  bool empty() const { return ranges_.empty(); }
  std::span<const std::pair<uint32_t, uint32_t>> ranges() const { return ranges_; }

 private:
  std::vector<std::pair<uint32_t, uint32_t>> ranges_;
};

/// The character's UTF-8.
void append_utf8(uint32_t code, std::string& out);

/// Code points that a JSON string may hold as they are: no quotation mark, backslash, control.
const CodeSet& plain_characters();

/// A finite automaton over bytes, given as a whole. State 0 is the start.
struct ByteAutomaton {
  struct Edge {
    uint32_t from;
    uint8_t low, high;
    uint32_t to;
  };
  uint32_t states = 0;
  std::vector<Edge> edges;
  std::vector<uint32_t> accepting;
};

struct Form {
  enum class Kind : uint8_t {
    kEmpty,      // the empty text
    kNever,      // nothing
    kBytes,      // one byte of low..high
    kLiteral,    // `text`
    kToken,      // the control token `value`
    kSequence,   // parts in a row
    kChoice,     // any of parts
    kRepeat,     // parts[0], min to max times
    kRule,       // what the rule `value` is
    kAutomaton,  // automata()[value]
  };
  Kind kind = Kind::kEmpty;
  uint8_t low = 0, high = 0;
  uint32_t value = 0;
  int64_t min = 0, max = 0;
  std::vector<FormId> parts = {};
  std::string text = {};
};

/// An arena of forms and named rules. Rules make recursion and sharing: any other form that is used
/// twice is built twice.
class Forms {
 public:
  Forms();

  FormId empty() const { return 0; }
  FormId never() const { return 1; }
  FormId bytes(uint8_t low, uint8_t high);
  FormId any_byte() { return bytes(0, 255); }
  FormId literal(std::string_view text);
  FormId token(int32_t id);
  FormId sequence(std::vector<FormId> parts);
  FormId choice(std::vector<FormId> parts);
  /// max: kUnbounded for no limit.
  FormId repeat(FormId form, int64_t min, int64_t max);
  FormId optional(FormId form) { return repeat(form, 0, 1); }
  /// One character of the set, in UTF-8.
  FormId character(const CodeSet& set);
  FormId automaton(ByteAutomaton automaton);

  /// A rule to be defined later; `name` is for messages.
  RuleId declare(std::string name);
  void define(RuleId rule, FormId form) { rules_[rule].form = form; }
  FormId rule(RuleId rule);

  const Form& at(FormId id) const { return forms_[id]; }
  const ByteAutomaton& automaton_at(uint32_t index) const { return automata_[index]; }
  size_t size() const { return forms_.size(); }
  size_t rules() const { return rules_.size(); }
  FormId rule_form(RuleId rule) const { return rules_[rule].form; }
  const std::string& rule_name(RuleId rule) const { return rules_[rule].name; }

 private:
  struct Rule {
    std::string name;
    FormId form;
  };
  FormId add(Form form);
  void add_code_range(uint32_t from, uint32_t to, std::vector<FormId>& out);

  std::vector<Form> forms_;
  std::vector<Rule> rules_;
  std::vector<ByteAutomaton> automata_;
};

}  // namespace triax::text::internal
