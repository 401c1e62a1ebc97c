// Regular expressions as forms.
#pragma once

#include <functional>
#include <string_view>

#include "base/status.h"
#include "text/grammar/form.h"

namespace triax::text::internal {

enum class RegexMatch {
  kWhole,     // all of the text
  kAnywhere,  // some part of it, as JSON schema's pattern; ^ and $ tie it to the ends
};

/// The form of texts that match `pattern`; `write` gives the form of one character of a set. Takes
/// ECMAScript's syntax: alternatives, groups (named, too: nothing is captured), classes, \d \w \s
/// (ASCII but for \s) and their complements, escapes, greedy and lazy quantifiers, which are the
/// same here, ^ and $ at the ends of the outermost alternatives.
/// Errors     kInvalidArgument "12: what is wrong", the position counted in bytes from 0: bad
///            syntax, and what no finite automaton of a sensible size can do: look-around,
///            back-references, \b, flags, \p, ^ and $ elsewhere; nesting deeper than 100
Result<FormId> regex_form(Forms& forms, std::string_view pattern, RegexMatch match,
                          const std::function<FormId(const CodeSet&)>& write);

/// One character after a backslash, shared with the grammar's reader: \n \t \r \f \v \0 \xHH \uXXXX
/// \u{X} \UXXXXXXXX and any punctuation. `at` stands behind the backslash and is moved on.
/// Errors     kInvalidArgument, without a position
Result<uint32_t> read_escape(std::string_view text, size_t& at);

/// One character of valid UTF-8, or an error.
Result<uint32_t> read_character(std::string_view text, size_t& at);

/// What stands in [ ]: `at` behind the bracket, moved behind the closing one.
Result<CodeSet> read_class(std::string_view text, size_t& at);

}  // namespace triax::text::internal
