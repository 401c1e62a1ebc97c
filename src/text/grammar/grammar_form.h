// Grammars in the notation of llama.cpp's GBNF as forms.
#pragma once

#include <string_view>

#include "base/status.h"
#include "text/grammar/form.h"

namespace triax::text::internal {

/// The form of the rule `root`. A grammar is a list of `name ::= body`; a body has alternatives
/// with `|`, items in a row, `( )`, "text", [classes] as in regular expressions, `.` for any
/// character but a line feed, names of rules, and * + ? {n} {n,} {n,m} behind an item. `#` begins a
/// comment. A body goes on over line breaks until the next `name ::=`.
/// Errors     kInvalidArgument "grammar:LINE:COLUMN: what is wrong": bad syntax, a rule that is
///            used but not defined, or defined twice, no root; nesting deeper than 100.
///            kResourceExhausted for more than 20,000 rules
Result<FormId> grammar_form(Forms& forms, std::string_view text);

}  // namespace triax::text::internal
