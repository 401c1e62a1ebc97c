// Dispatch over keywords and types.
#include "text/grammar/schema_form.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace triax::text::internal {
namespace {

constexpr int kDepthMax = 200;
constexpr size_t kFormsMax = 500'000;
constexpr std::array<std::string_view, 7> kTypes = {"object",  "array",   "string", "number",
                                                    "integer", "boolean", "null"};

// Say nothing about which instances are valid.
constexpr std::string_view kAnnotations[] = {"title",
                                             "description",
                                             "default",
                                             "examples",
                                             "$comment",
                                             "$schema",
                                             "$id",
                                             "$defs",
                                             "definitions",
                                             "deprecated",
                                             "readOnly",
                                             "writeOnly",
                                             "contentMediaType",
                                             "contentEncoding"};

// Which type a keyword is about; "" about all.
constexpr std::pair<std::string_view, std::string_view> kKeywords[] = {
    {"type", ""},
    {"enum", ""},
    {"const", ""},
    {"anyOf", ""},
    {"oneOf", ""},
    {"allOf", ""},
    {"$ref", ""},
    {"properties", "object"},
    {"required", "object"},
    {"additionalProperties", "object"},
    {"unevaluatedProperties", "object"},
    {"propertyNames", "object"},
    {"minProperties", "object"},
    {"maxProperties", "object"},
    {"items", "array"},
    {"prefixItems", "array"},
    {"minItems", "array"},
    {"maxItems", "array"},
    {"uniqueItems", "array"},
    {"pattern", "string"},
    {"format", "string"},
    {"minLength", "string"},
    {"maxLength", "string"},
    {"minimum", "number"},
    {"maximum", "number"},
    {"exclusiveMinimum", "number"},
    {"exclusiveMaximum", "number"},
    {"multipleOf", "number"},
};

bool is_annotation(std::string_view key) {
  return std::ranges::find(kAnnotations, key) != std::end(kAnnotations);
}

Status check_keywords(const Json& schema, const std::string& path) {
  for (const auto& [key, value] : schema.items()) {
    const bool known = std::ranges::any_of(
        kKeywords, [&, name = std::string_view(key)](const auto& k) { return k.first == name; });
    if (!known && !is_annotation(key)) {
      return Status::invalid_argument(
          fmt::format("{}.{}: this keyword is not supported", path, key));
    }
  }
  return {};
}

bool is_type(const Json& value, std::string_view type) {
  if (type == "integer") {
    return value.is_number_integer();
  }
  return type == "object"    ? value.is_object()
         : type == "array"   ? value.is_array()
         : type == "string"  ? value.is_string()
         : type == "number"  ? value.is_number()
         : type == "boolean" ? value.is_boolean()
                             : value.is_null();
}

/// The types of `type`; without it those that keywords are about; without any, all but integer.
Result<std::vector<std::string_view>> types_of(const Json& schema, const std::string& path) {
  std::vector<std::string_view> types;
  if (schema.contains("type")) {
    const Json& type = schema["type"];
    for (const Json& name : type.is_array() ? type : Json::array({type})) {
      const auto known = name.is_string()
                             ? std::ranges::find(kTypes, name.get_ref<const std::string&>())
                             : kTypes.end();
      if (known == kTypes.end()) {
        return Status::invalid_argument(fmt::format("{}.type: {} is no type", path, name.dump()));
      }
      types.push_back(*known);
    }
    return types;
  }
  for (const auto& [key, about] : kKeywords) {
    if (!about.empty() && schema.contains(key) && std::ranges::find(types, about) == types.end()) {
      types.push_back(about);
    }
  }
  if (types.empty()) {
    types = {"object", "array", "string", "number", "boolean", "null"};
  }
  return types;
}

}  // namespace

Result<int64_t> count_of(const Json& schema, const char* key, int64_t fallback,
                         const std::string& path) {
  if (!schema.contains(key)) {
    return fallback;
  }
  const Json& value = schema[key];
  if (value.is_number_integer() && value.get<int64_t>() >= 0 && value.get<int64_t>() < 1 << 30) {
    return value.get<int64_t>();
  }
  return Status::invalid_argument(
      fmt::format("{}.{}: expected an integer from 0, found {}", path, key, value.dump()));
}

Result<FormId> SchemaReader::read() { return read(document_, StringStyle::kJson, path_, 0); }

Result<FormId> SchemaReader::read_typed(const Json& schema, std::string_view type,
                                        StringStyle style, const std::string& path) {
  const Result<Json> flat = flatten(schema, path, 0);
  if (!flat.ok()) {
    return flat.status();
  }
  const Result<Json> typed = merge(*flat, Json{{"type", type}}, path);
  return typed.ok() ? read(*typed, style, path, 0) : typed.status();
}

Result<SchemaReader::Object> SchemaReader::read_object() {
  const Result<Json> flat = flatten(document_, path_, 0);
  if (!flat.ok()) {
    return flat.status();
  }
  if (*flat == Json(true)) {
    return Object{.properties = {}, .open = true};
  }
  const bool plain = flat->is_object() && !flat->contains("anyOf") && !flat->contains("oneOf") &&
                     !flat->contains("enum") && !flat->contains("const") &&
                     (!flat->contains("type") || (*flat)["type"] == Json("object"));
  if (!plain) {
    return Status::invalid_argument(
        fmt::format("{}: expected one object schema, with properties", path_));
  }
  const Status known = check_keywords(*flat, path_);
  if (!known.ok()) {
    return known;
  }
  for (const char* key : {"minProperties", "maxProperties", "propertyNames"}) {
    if (flat->contains(key)) {
      return Status::invalid_argument(
          fmt::format("{}.{}: this keyword is not supported here", path_, key));
    }
  }
  Result<Members> members = members_of(*flat, path_);
  if (!members.ok()) {
    return members.status();
  }
  if (members->open && members->extra != Json(true)) {
    return Status::invalid_argument(
        fmt::format("{}.additionalProperties: a schema is not supported here", path_));
  }
  return Object{.properties = std::move(members->properties), .open = members->open};
}

Result<FormId> SchemaReader::read_reference(const std::string& reference, StringStyle style,
                                            const std::string& path, int depth) {
  const auto [found, is_new] = references_.try_emplace({reference, style}, 0);
  if (!is_new) {
    return forms_.rule(found->second);
  }
  const Result<const Json*> target = find(reference, path);
  if (!target.ok()) {
    return target.status();
  }
  const RuleId rule = found->second = forms_.declare(path_ + reference.substr(1));
  const Result<FormId> form = read(**target, style, path_ + reference.substr(1), depth + 1);
  if (!form.ok()) {
    return form;
  }
  forms_.define(rule, *form);
  return forms_.rule(rule);
}

Result<FormId> SchemaReader::read(const Json& schema, StringStyle style, const std::string& path,
                                  int depth) {
  if (depth > kDepthMax) {
    return Status::invalid_argument(fmt::format("{}: deeper than {}", path, kDepthMax));
  }
  if (forms_.size() > kFormsMax) {
    return Status::resource_exhausted(
        fmt::format("{}: the schema grows to more than {} forms", path, kFormsMax));
  }
  if (schema.is_boolean()) {
    return schema.get<bool>() ? json_.any_value() : forms_.never();
  }
  if (!schema.is_object()) {
    return Status::invalid_argument(fmt::format("{}: expected an object or a boolean", path));
  }
  const bool alone = std::ranges::all_of(schema.items(), [](const auto& item) {
    return item.key() == "$ref" || is_annotation(item.key());
  });
  if (alone && schema.contains("$ref") && schema["$ref"].is_string()) {
    return read_reference(schema["$ref"].get<std::string>(), style, path, depth);
  }
  const Result<Json> flattened = flatten(schema, path, 0);
  if (!flattened.ok()) {
    return flattened.status();
  }
  const Json& flat = *flattened;
  if (flat.is_boolean()) {
    return flat.get<bool>() ? json_.any_value() : forms_.never();
  }
  const Status known = check_keywords(flat, path);
  if (!known.ok()) {
    return known;
  }
  if (flat.contains("anyOf") && flat.contains("oneOf")) {
    return Status::invalid_argument(
        fmt::format("{}.oneOf: not supported together with anyOf", path));
  }
  if (flat.contains("anyOf") || flat.contains("oneOf")) {
    return read_choice(flat, flat.contains("anyOf") ? "anyOf" : "oneOf", style, path, depth);
  }
  if (flat.contains("enum") || flat.contains("const")) {
    return read_enum(flat, style, path);
  }
  const Result<std::vector<std::string_view>> types = types_of(flat, path);
  if (!types.ok()) {
    return types.status();
  }
  std::vector<FormId> choices;
  for (const std::string_view type : *types) {
    const Result<FormId> form = read_type(flat, type, style, path, depth);
    if (!form.ok()) {
      return form;
    }
    choices.push_back(*form);
  }
  return forms_.choice(std::move(choices));
}

Result<FormId> SchemaReader::read_choice(const Json& schema, const char* keyword, StringStyle style,
                                         const std::string& path, int depth) {
  if (!schema[keyword].is_array() || schema[keyword].empty()) {
    return Status::invalid_argument(
        fmt::format("{}.{}: expected an array with entries", path, keyword));
  }
  Json base = schema;
  base.erase(keyword);
  const bool bare =
      std::ranges::all_of(base.items(), [](const auto& item) { return is_annotation(item.key()); });
  std::vector<FormId> choices;
  for (size_t i = 0; i < schema[keyword].size(); ++i) {
    const std::string branch_path = fmt::format("{}.{}[{}]", path, keyword, i);
    Json branch = schema[keyword][i];
    if (!bare) {
      const Result<Json> flat = flatten(branch, branch_path, 0);
      if (!flat.ok()) {
        return flat.status();
      }
      Result<Json> merged = merge(base, *flat, branch_path);
      if (!merged.ok()) {
        return merged.status();
      }
      branch = std::move(*merged);
    }
    const Result<FormId> form = read(branch, style, branch_path, depth + 1);
    if (!form.ok()) {
      return form;
    }
    choices.push_back(*form);
  }
  return forms_.choice(std::move(choices));
}

Result<FormId> SchemaReader::read_type(const Json& schema, std::string_view type, StringStyle style,
                                       const std::string& path, int depth) {
  if (type == "object") {
    return read_object(schema, path, depth);
  }
  if (type == "array") {
    return read_array(schema, path, depth);
  }
  if (type == "string") {
    return read_string(schema, style, path);
  }
  if (type == "number" || type == "integer") {
    return read_number(schema, type == "integer", path);
  }
  return type == "boolean" ? json_.boolean() : json_.null();
}

/// Values are filtered by type; other keywords beside them would need a validator.
Result<FormId> SchemaReader::read_enum(const Json& schema, StringStyle style,
                                       const std::string& path) {
  for (const auto& [key, about] : kKeywords) {
    if (!about.empty() && schema.contains(key)) {
      return Status::invalid_argument(
          fmt::format("{}.{}: not supported together with enum or const", path, key));
    }
  }
  Json values = schema.contains("enum") ? schema["enum"] : Json::array({schema["const"]});
  if (!values.is_array()) {
    return Status::invalid_argument(fmt::format("{}.enum: expected an array", path));
  }
  if (schema.contains("enum") && schema.contains("const")) {
    values = std::ranges::find(values, schema["const"]) != values.end()
                 ? Json::array({schema["const"]})
                 : Json::array();
  }
  const Result<std::vector<std::string_view>> types = types_of(schema, path);
  if (!types.ok()) {
    return types.status();
  }
  std::vector<FormId> choices;
  for (const Json& value : values) {
    if (std::ranges::any_of(*types, [&](std::string_view type) { return is_type(value, type); })) {
      choices.push_back(json_.constant(value, style));
    }
  }
  return forms_.choice(std::move(choices));
}

/// An item that a repetition will copy: only a call of it is.
Result<FormId> SchemaReader::item_rule(const Json& schema, const std::string& path, int depth) {
  const Result<FormId> form = read(schema, StringStyle::kJson, path, depth + 1);
  if (!form.ok() || *form == forms_.never() || forms_.at(*form).kind == Form::Kind::kRule) {
    return form;
  }
  const RuleId rule = forms_.declare(path);
  forms_.define(rule, *form);
  return forms_.rule(rule);
}

}  // namespace triax::text::internal
