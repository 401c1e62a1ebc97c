// References and allOf: schemas that hold at the same time become one.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "text/grammar/schema_form.h"

namespace triax::text::internal {
namespace {

constexpr int64_t kWorkMax = 100'000;
constexpr int kDepthMax = 60;

bool same_type(const std::string& a, const std::string& b, std::string& common) {
  if (a == b || (a == "number" && b == "integer")) {
    common = b;
    return true;
  }
  common = a;
  return a == "integer" && b == "number";
}

Json as_list(const Json& value) { return value.is_array() ? value : Json::array({value}); }

Json common_types(const Json& a, const Json& b) {
  Json result = Json::array();
  for (const Json& x : as_list(a)) {
    for (const Json& y : as_list(b)) {
      std::string common;
      if (x.is_string() && y.is_string() &&
          same_type(x.get<std::string>(), y.get<std::string>(), common) &&
          std::ranges::find(result, Json(common)) == result.end()) {
        result.push_back(common);
      }
    }
  }
  return result;
}

Json common_values(const Json& a, const Json& b) {
  Json result = Json::array();
  for (const Json& x : a) {
    if (std::ranges::find(b, x) != b.end()) {
      result.push_back(x);
    }
  }
  return result;
}

Json both(const Json& a, const Json& b) { return a == b ? a : Json{{"allOf", {a, b}}}; }

bool is_lower_bound(const std::string& key) {
  return key == "minimum" || key == "exclusiveMinimum" || key == "minLength" || key == "minItems" ||
         key == "minProperties";
}

bool is_upper_bound(const std::string& key) {
  return key == "maximum" || key == "exclusiveMaximum" || key == "maxLength" || key == "maxItems" ||
         key == "maxProperties";
}

/// What copying and merging a schema costs, about.
int64_t weight(const Json& schema) {
  int64_t members = 1;
  if (schema.is_object()) {
    for (const auto& [key, value] : schema.items()) {
      members += 1 + static_cast<int64_t>(value.size());
    }
  }
  return members;
}

bool is_annotation(const std::string& key) {
  return key == "title" || key == "description" || key == "default" || key == "examples" ||
         key == "$comment" || key == "$schema" || key == "$id" || key == "$defs" ||
         key == "definitions" || key == "deprecated" || key == "readOnly" || key == "writeOnly";
}

}  // namespace

Result<const Json*> SchemaReader::find(const std::string& reference,
                                       const std::string& path) const {
  if (reference.empty() || reference[0] != '#' || (reference.size() > 1 && reference[1] != '/')) {
    return Status::invalid_argument(fmt::format(
        "{}.$ref: '{}' is not supported, only \"#\" and \"#/...\" are", path, reference));
  }
  try {
    const Json::json_pointer pointer(reference.substr(1));
    if (document_.contains(pointer)) {
      return &document_.at(pointer);
    }
  } catch (const Json::exception&) {
    // Not a JSON pointer: reported as not found.
  }
  return Status::invalid_argument(fmt::format("{}.$ref: '{}' is not there", path, reference));
}

Result<Json> SchemaReader::flatten(const Json& schema, const std::string& path, int depth) {
  work_ += weight(schema);
  if (work_ > kWorkMax) {
    return Status::resource_exhausted(
        fmt::format("{}: references and allOf multiply to more than {} keywords", path, kWorkMax));
  }
  if (depth > kDepthMax) {
    return Status::invalid_argument(fmt::format(
        "{}: references and allOf lead into each other or are deeper than {}", path, kDepthMax));
  }
  if (!schema.is_object() || (!schema.contains("$ref") && !schema.contains("allOf"))) {
    return schema;
  }
  Json result = schema;
  result.erase("$ref");
  result.erase("allOf");
  std::vector<std::pair<const Json*, std::string>> parts;
  if (schema.contains("$ref")) {
    if (!schema["$ref"].is_string()) {
      return Status::invalid_argument(fmt::format("{}.$ref: expected a string", path));
    }
    const Result<const Json*> target = find(schema["$ref"].get<std::string>(), path);
    if (!target.ok()) {
      return target.status();
    }
    parts.emplace_back(*target, path + ".$ref");
  }
  if (schema.contains("allOf")) {
    if (!schema["allOf"].is_array()) {
      return Status::invalid_argument(fmt::format("{}.allOf: expected an array", path));
    }
    for (size_t i = 0; i < schema["allOf"].size(); ++i) {
      parts.emplace_back(&schema["allOf"][i], fmt::format("{}.allOf[{}]", path, i));
    }
  }
  for (const auto& [part, part_path] : parts) {
    const Result<Json> flat = flatten(*part, part_path, depth + 1);
    if (!flat.ok()) {
      return flat;
    }
    Result<Json> merged = merge(result, *flat, part_path);
    if (!merged.ok()) {
      return merged;
    }
    result = std::move(*merged);
  }
  return result;
}

Result<Json> SchemaReader::merge(const Json& a, const Json& b, const std::string& path) {
  work_ += weight(a) + weight(b);
  if (work_ > kWorkMax) {
    return Status::resource_exhausted(
        fmt::format("{}: references and allOf multiply to more than {} keywords", path, kWorkMax));
  }
  if (a.is_boolean() || b.is_boolean()) {
    return a == Json(false) || b == Json(false) ? Json(false) : a.is_boolean() ? b : a;
  }
  if (!a.is_object() || !b.is_object()) {
    return Status::invalid_argument(fmt::format("{}: expected an object or a boolean", path));
  }
  Json result = a;
  const Status objects = merge_objects(result, b, path);
  if (!objects.ok()) {
    return objects;
  }
  for (const auto& [key, value] : b.items()) {
    const Status status = merge_keyword(result, key, value, path);
    if (!status.ok()) {
      return status;
    }
  }
  return result;
}

/// What depends on both sides' properties together.
Status SchemaReader::merge_objects(Json& a, const Json& b, const std::string& path) const {
  const auto closed = [](const Json& schema) {
    return schema.contains("additionalProperties") && schema["additionalProperties"] != Json(true);
  };
  const auto properties = [](const Json& schema) {
    return schema.contains("properties") && schema["properties"].is_object() ? schema["properties"]
                                                                             : Json::object();
  };
  const Json of_a = properties(a);
  const Json of_b = properties(b);
  const auto beyond = [](const Json& x, const Json& y) {
    return std::ranges::any_of(x.items(),
                               [&](const auto& item) { return !y.contains(item.key()); });
  };
  if ((closed(a) && beyond(of_b, of_a)) || (closed(b) && beyond(of_a, of_b))) {
    return Status::invalid_argument(
        fmt::format("{}.additionalProperties: restricts properties that another part of the same "
                    "schema declares, which is not supported",
                    path));
  }
  // An open side without the keyword says nothing against the other's `true`.
  if (!a.contains("additionalProperties") && a.contains("properties") &&
      b.contains("additionalProperties") && !closed(b)) {
    a["additionalProperties"] = true;
  }
  return {};
}

Status SchemaReader::merge_keyword(Json& into, const std::string& key, const Json& value,
                                   const std::string& path) {
  if (key == "const" || key == "enum") {
    const Json values = key == "const" ? Json::array({value}) : value;
    if (into.contains("const")) {
      into["enum"] = Json::array({into["const"]});
      into.erase("const");
    }
    into["enum"] = into.contains("enum") ? common_values(into["enum"], values) : values;
    return {};
  }
  if (!into.contains(key)) {
    into[key] = value;
    return {};
  }
  Json& own = into[key];
  if (own == value || is_annotation(key)) {
    return {};
  }
  if (key == "type") {
    own = common_types(own, value);
  } else if (key == "properties" && own.is_object() && value.is_object()) {
    for (const auto& [name, schema] : value.items()) {
      own[name] = own.contains(name) ? both(own[name], schema) : schema;
    }
  } else if (key == "required" && own.is_array() && value.is_array()) {
    for (const Json& name : value) {
      if (std::ranges::find(own, name) == own.end()) {
        own.push_back(name);
      }
    }
  } else if (key == "items" || key == "additionalProperties" || key == "propertyNames") {
    own = both(own, value);
  } else if (is_lower_bound(key) && own.is_number() && value.is_number()) {
    own = std::max(own, value);
  } else if (is_upper_bound(key) && own.is_number() && value.is_number()) {
    own = std::min(own, value);
  } else if (key == "multipleOf" && own.is_number_integer() && value.is_number_integer() &&
             own.get<int64_t>() > 0 && own.get<int64_t>() <= IntegerRange::kMultipleMax &&
             value.get<int64_t>() > 0 && value.get<int64_t>() <= IntegerRange::kMultipleMax) {
    own = std::lcm(own.get<int64_t>(), value.get<int64_t>());
  } else {
    return Status::invalid_argument(fmt::format(
        "{}.{}: two parts of one schema both have it, which is not supported", path, key));
  }
  return {};
}

}  // namespace triax::text::internal
