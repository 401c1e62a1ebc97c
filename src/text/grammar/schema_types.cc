// Strings, numbers, arrays and objects of a schema.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "text/grammar/regex_form.h"
#include "text/grammar/schema_form.h"

namespace triax::text::internal {
namespace {

// Bounds of numbers are integers that a double holds exactly.
constexpr double kBoundMax = 9007199254740992.0;  // 2^53
constexpr size_t kKeyBytesMax = 1024;

Status refuse(const std::string& path, std::string_view key, std::string_view why) {
  return Status::invalid_argument(fmt::format("{}.{}: {}", path, key, why));
}

struct Bounds {
  std::optional<double> min, max;
  bool above_min = false, below_max = false;  // excluded
};

/// The four keywords as one pair of bounds.
Result<Bounds> bounds_of(const Json& schema, const std::string& path) {
  Bounds bounds;
  for (const char* key : {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}) {
    if (!schema.contains(key)) {
      continue;
    }
    const Json& value = schema[key];
    if (!value.is_number() || !(std::abs(value.get<double>()) <= kBoundMax)) {
      return refuse(path, key,
                    fmt::format("expected a number within 2^53, found {}", value.dump()));
    }
    const double bound = value.get<double>();
    const std::string_view name = key;
    const bool exclusive = name.starts_with("exclusive");
    const bool lower = name.ends_with("inimum");
    std::optional<double>& side = lower ? bounds.min : bounds.max;
    bool& excluded = lower ? bounds.above_min : bounds.below_max;
    if (!side || (lower ? bound > *side : bound < *side)) {
      side = bound;
      excluded = exclusive;
    } else if (bound == *side) {
      excluded = excluded || exclusive;
    }
  }
  return bounds;
}

IntegerRange integers_within(const Bounds& bounds) {
  IntegerRange range;
  if (bounds.min) {
    const double first = std::ceil(*bounds.min);
    range.min = static_cast<int64_t>(first) + (bounds.above_min && first == *bounds.min ? 1 : 0);
  }
  if (bounds.max) {
    const double last = std::floor(*bounds.max);
    range.max = static_cast<int64_t>(last) - (bounds.below_max && last == *bounds.max ? 1 : 0);
  }
  return range;
}

}  // namespace

std::string_view format_pattern(std::string_view format) {
  constexpr std::string_view kDate =
      "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-"
      "9]"
      "|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468]["
      "048]"
      "|[13579][26])00)-02-29)";
  static const std::string kTime =
      "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?"
      "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
  static const std::string kDateTime = std::string(kDate) + "T" + kTime;
  static const std::string kHost =
      "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
      "(?:\\.[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?){0,7}";
  static const std::string kEmail = "[A-Za-z0-9_+-]+(?:\\.[A-Za-z0-9_+-]+){0,7}@" + kHost;
  constexpr std::string_view kIpv4 =
      "(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\\.){3}"
      "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
  constexpr std::string_view kIpv6 =
      "(?:[0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]{1,4}|(?:[0-9A-Fa-f]{1,4}:){1,6}:[0-9A-Fa-f]{1,4}|"
      "(?:[0-9A-Fa-f]{1,4}:){1,7}:|::(?:[0-9A-Fa-f]{1,4}:){0,6}[0-9A-Fa-f]{1,4}|::";
  constexpr std::string_view kUuid =
      "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}";
  constexpr std::string_view kDuration =
      "P(?:[0-9]+W|[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)|"
      "P(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)?T(?:[0-9]+H(?:[0-9]+M(?:"
      "[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)";
  constexpr std::string_view kUri =
      "[A-Za-z][A-Za-z0-9+.-]*:(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})+"
      "(?:#(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*)?";
  const std::pair<std::string_view, std::string_view> formats[] = {
      {"date", kDate},   {"time", kTime},     {"date-time", kDateTime}, {"duration", kDuration},
      {"email", kEmail}, {"hostname", kHost}, {"ipv4", kIpv4},          {"ipv6", kIpv6},
      {"uuid", kUuid},   {"uri", kUri}};
  const auto* found =
      std::ranges::find(formats, format, &std::pair<std::string_view, std::string_view>::first);
  return found == std::end(formats) ? std::string_view{} : found->second;
}

Result<FormId> SchemaReader::read_string(const Json& schema, StringStyle style,
                                         const std::string& path) {
  const bool lengths = schema.contains("minLength") || schema.contains("maxLength");
  const bool pattern = schema.contains("pattern");
  if (lengths + pattern + schema.contains("format") > 1) {
    return refuse(path, pattern ? "pattern" : "format",
                  "only one of pattern, format and the length bounds is supported at once");
  }
  if (!pattern && !schema.contains("format")) {
    const Result<int64_t> min = count_of(schema, "minLength", 0, path);
    const Result<int64_t> max = count_of(schema, "maxLength", kUnbounded, path);
    if (!min.ok() || !max.ok()) {
      return min.ok() ? max.status() : min.status();
    }
    return *max != kUnbounded && *min > *max ? forms_.never() : json_.string(style, *min, *max);
  }
  const char* key = pattern ? "pattern" : "format";
  if (!schema[key].is_string()) {
    return refuse(path, key, "expected a string");
  }
  std::string expression = schema[key].get<std::string>();
  if (!pattern) {
    const std::string_view known = format_pattern(expression);
    if (known.empty()) {
      return refuse(path, key, fmt::format("'{}' is not supported", expression));
    }
    expression = known;
  }
  const Result<FormId> inner =
      regex_form(forms_, expression, pattern ? RegexMatch::kAnywhere : RegexMatch::kWhole,
                 [&](const CodeSet& set) { return json_.character(set, style); });
  if (!inner.ok()) {
    return Status(inner.status().code(),
                  fmt::format("{}.{}: {}", path, key, inner.status().message()));
  }
  return json_.quoted(*inner, style);
}

Result<FormId> SchemaReader::read_number(const Json& schema, bool integer,
                                         const std::string& path) {
  const Result<Bounds> bounds = bounds_of(schema, path);
  if (!bounds.ok()) {
    return bounds.status();
  }
  if (integer || schema.contains("multipleOf")) {
    IntegerRange range = integers_within(*bounds);
    if (schema.contains("multipleOf")) {
      const Json& value = schema["multipleOf"];
      if (!value.is_number_integer() || value.get<int64_t>() < 1 ||
          value.get<int64_t>() > IntegerRange::kMultipleMax) {
        return refuse(path, "multipleOf",
                      fmt::format("only integers from 1 to {} are supported, found {}",
                                  IntegerRange::kMultipleMax, value.dump()));
      }
      range.multiple = value.get<int64_t>();
    }
    return json_.integer(range);
  }
  NumberRange range;
  range.above_min = bounds->above_min;
  range.below_max = bounds->below_max;
  for (const auto& [from, to] :
       {std::pair(&bounds->min, &range.min), std::pair(&bounds->max, &range.max)}) {
    if (!*from) {
      continue;
    }
    if (std::floor(**from) != **from) {
      return refuse(path, from == &bounds->min ? "minimum" : "maximum",
                    "a bound with a fraction is only supported for integers");
    }
    *to = static_cast<int64_t>(**from);
  }
  return json_.number(range);
}

Result<FormId> SchemaReader::read_array(const Json& schema, const std::string& path, int depth) {
  const Result<int64_t> min = count_of(schema, "minItems", 0, path);
  const Result<int64_t> max = count_of(schema, "maxItems", kUnbounded, path);
  if (!min.ok() || !max.ok()) {
    return min.ok() ? max.status() : min.status();
  }
  if (schema.contains("uniqueItems") && schema["uniqueItems"] != Json(false)) {
    return refuse(path, "uniqueItems", "only false is supported");
  }
  if (*max != kUnbounded && *min > *max) {
    return forms_.never();
  }
  const Result<FormId> rest =
      item_rule(schema.contains("items") ? schema["items"] : Json(true), path + ".items", depth);
  if (!rest.ok()) {
    return rest;
  }
  if (!schema.contains("prefixItems")) {
    if (*rest == forms_.never()) {
      return *min > 0 ? forms_.never() : json_.array(*rest, 0, 0);
    }
    return json_.array(*rest, *min, *max);
  }
  const Json& prefix = schema["prefixItems"];
  if (!prefix.is_array() || prefix.empty()) {
    return refuse(path, "prefixItems", "expected an array with entries");
  }
  // From the last item to the first: what follows the i-th is only needed beyond minItems.
  const auto count = static_cast<int64_t>(prefix.size());
  const FormId comma = forms_.sequence({json_.space(), json_.comma()});
  const int64_t rest_max = *max == kUnbounded ? kUnbounded : std::max<int64_t>(*max - count, 0);
  FormId after = *rest == forms_.never() && *min > count
                     ? forms_.never()
                     : forms_.repeat(forms_.sequence({comma, *rest}),
                                     std::max<int64_t>(*min - count, 0), rest_max);
  for (int64_t i = count; i-- > 0;) {
    const Result<FormId> item = item_rule(prefix[static_cast<size_t>(i)],
                                          fmt::format("{}.prefixItems[{}]", path, i), depth);
    if (!item.ok()) {
      return item;
    }
    const FormId here = forms_.sequence({i == 0 ? forms_.empty() : comma, *item, after});
    after = *max != kUnbounded && i >= *max ? forms_.empty()
            : i >= *min                     ? forms_.optional(here)
                                            : here;
  }
  return forms_.sequence(
      {forms_.literal("["), json_.space(), after, json_.space(), forms_.literal("]")});
}

Result<SchemaReader::Members> SchemaReader::members_of(const Json& schema,
                                                       const std::string& path) {
  const Json properties = schema.value("properties", Json::object());
  const Json required = schema.value("required", Json::array());
  if (!properties.is_object()) {
    return refuse(path, "properties", "expected an object");
  }
  if (!required.is_array() ||
      !std::ranges::all_of(required, [](const Json& name) { return name.is_string(); })) {
    return refuse(path, "required", "expected an array of strings");
  }
  Members members;
  members.open = !schema.contains("properties") && required.empty();
  for (const char* key : {"unevaluatedProperties", "additionalProperties"}) {
    if (schema.contains(key)) {
      members.extra = schema[key];
      members.open = members.extra != Json(false);
    }
  }
  for (const auto& [name, property] : properties.items()) {
    members.properties.push_back(
        {.name = name,
         .required = std::ranges::find(required, Json(name)) != required.end(),
         .schema = property,
         .path = path + ".properties." + name});
  }
  for (const Json& name : required) {
    if (!properties.contains(name.get<std::string>())) {
      if (members.extra == Json(false)) {
        return refuse(path, "required",
                      fmt::format("names {}, which additionalProperties forbids", name.dump()));
      }
      members.properties.push_back({.name = name.get<std::string>(),
                                    .required = true,
                                    .schema = members.extra,
                                    .path = path + ".required." + name.get<std::string>()});
    }
  }
  for (const Property& property : members.properties) {
    if (property.name.size() > kKeyBytesMax) {
      return refuse(path, "properties", fmt::format("a name longer than {} bytes", kKeyBytesMax));
    }
  }
  return members;
}

Result<FormId> SchemaReader::read_map(const Json& schema, const Members& members,
                                      const std::string& path, int depth) {
  const Result<int64_t> min = count_of(schema, "minProperties", 0, path);
  const Result<int64_t> max = count_of(schema, "maxProperties", kUnbounded, path);
  if (!min.ok() || !max.ok()) {
    return min.ok() ? max.status() : min.status();
  }
  Result<FormId> key = json_.string(StringStyle::kJson);
  if (schema.contains("propertyNames")) {
    key =
        read_typed(schema["propertyNames"], "string", StringStyle::kJson, path + ".propertyNames");
  }
  const Result<FormId> value = item_rule(members.extra, path + ".additionalProperties", depth);
  if (!key.ok() || !value.ok()) {
    return key.ok() ? value : key;
  }
  const FormId member = json_.key_value(*key, *value);
  if ((*max != kUnbounded && *min > *max) || (*min > 0 && member == forms_.never())) {
    return forms_.never();
  }
  if (*max == 0 || member == forms_.never()) {
    return json_.braces(forms_.empty());
  }
  const FormId more =
      forms_.repeat(forms_.sequence({json_.space(), json_.comma(), member}),
                    std::max<int64_t>(*min - 1, 0), *max == kUnbounded ? kUnbounded : *max - 1);
  const FormId all = forms_.sequence({member, more});
  return json_.braces(*min == 0 ? forms_.optional(all) : all);
}

Result<FormId> SchemaReader::read_object(const Json& schema, const std::string& path, int depth) {
  const Result<Members> read_members = members_of(schema, path);
  if (!read_members.ok()) {
    return read_members.status();
  }
  const Members& members = *read_members;
  if (members.properties.empty() && members.open) {
    return read_map(schema, members, path, depth);
  }
  for (const char* key : {"minProperties", "maxProperties", "propertyNames"}) {
    if (schema.contains(key)) {
      return refuse(path, key, "only supported where no property is declared");
    }
  }
  const FormId comma = forms_.sequence({json_.space(), json_.comma()});
  // `after`: what may follow a member; `first`: what may stand in the braces. Built from the end.
  FormId after = forms_.empty();
  FormId first = forms_.empty();
  if (members.open) {
    std::vector<std::string> names;
    std::ranges::for_each(members.properties, [&](const Property& p) { names.push_back(p.name); });
    const Result<FormId> value = item_rule(members.extra, path + ".additionalProperties", depth);
    if (!value.ok()) {
      return value;
    }
    const RuleId extra = forms_.declare(path + ".additionalProperties");
    forms_.define(extra, json_.key_value(json_.string_except(names, StringStyle::kJson), *value));
    after = forms_.repeat(forms_.sequence({comma, forms_.rule(extra)}), 0, kUnbounded);
    first = forms_.optional(forms_.sequence({forms_.rule(extra), after}));
  }
  for (size_t i = members.properties.size(); i-- > 0;) {
    const Property& property = members.properties[i];
    const Result<FormId> value = item_rule(property.schema, property.path, depth);
    if (!value.ok()) {
      return value;
    }
    const RuleId rule = forms_.declare(property.path);
    forms_.define(rule, json_.key_value(json_.text(property.name, StringStyle::kJson), *value));
    const RuleId rest = forms_.declare(property.path);
    forms_.define(rest, after);
    const FormId here = forms_.rule(rule);
    const FormId begin = forms_.sequence({here, forms_.rule(rest)});
    first = property.required ? begin : forms_.choice({begin, first});
    const FormId next = forms_.sequence({comma, here});
    after = forms_.sequence({property.required ? next : forms_.optional(next), forms_.rule(rest)});
  }
  return json_.braces(first);
}

}  // namespace triax::text::internal
