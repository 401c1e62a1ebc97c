// Forms of JSON's parts, as they stand in JSON text.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar/form.h"

namespace triax::text::internal {

/// How the characters of a string are written.
enum class StringStyle {
  kJson,  // between quotation marks, with escapes
  kRaw,   // as they are, without quotation marks (K3's arguments of type string)
};

/// Integers within bounds, both included, that are multiples of `multiple`.
struct IntegerRange {
  std::optional<int64_t> min, max;
  int64_t multiple = 1;  // 1 to kMultipleMax
  static constexpr int64_t kMultipleMax = 1000;
};

/// Numbers within bounds that are integers themselves.
struct NumberRange {
  std::optional<int64_t> min, max;
  bool above_min = false, below_max = false;  // the bound itself is excluded
};

/// Makes forms in an arena; what is used often becomes a rule, once.
class JsonForms {
 public:
  explicit JsonForms(Forms& forms) : forms_(forms) {}

  /// Up to two line breaks, then up to 64 blanks or tabs: JSON allows more, but a model that has
  /// lost its way would go on for ever.
  FormId space();
  FormId string(StringStyle style, int64_t min = 0, int64_t max = kUnbounded);
  /// One character of the set as a string writes it. Escapes only what must be.
  FormId character(const CodeSet& set, StringStyle style);
  /// A string of exactly this text, or just a part of one when not `whole`.
  FormId text(std::string_view text, StringStyle style, bool whole = true);
  /// A string, escaped where it must be only, that is none of `texts` (UTF-8, short).
  FormId string_except(const std::vector<std::string>& texts, StringStyle style);
  FormId quoted(FormId characters, StringStyle style);

  FormId integer(const IntegerRange& range);
  FormId number(const NumberRange& range);
  FormId boolean();
  FormId null() { return forms_.literal("null"); }
  /// This value, with any space between its parts.
  FormId constant(const nlohmann::ordered_json& value, StringStyle style);
  FormId any_value();
  FormId any_object();
  FormId any_array();

  FormId key_value(FormId key, FormId value);
  /// `{` members `}`; members may be empty.
  FormId braces(FormId members);
  /// min to max items.
  FormId array(FormId item, int64_t min, int64_t max);
  /// first, then `, rest`.
  FormId comma();

 private:
  FormId any_character(StringStyle style);
  FormId shared(std::optional<RuleId>& rule, const char* name, const std::function<FormId()>& make);
  FormId digits(const IntegerRange& magnitude);
  FormId fraction_bounded(const NumberRange& range);
  Forms& forms_;
  std::optional<RuleId> space_, string_, value_, object_, array_, number_;
};

}  // namespace triax::text::internal
