// K3's typed arguments: `<|open|>argument key="n" type="number"<|sep|>3<|close|>argument<|sep|>`.
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "text/grammar/chat_form.h"
#include "text/grammar/schema_form.h"
#include "text/json_text.h"

namespace triax::text::internal {
namespace {

// Up to so many arguments may come in any order: there is a rule for each set that has come.
constexpr size_t kAnyOrderMax = 6;
constexpr std::string_view kTypes[] = {"string", "number", "boolean", "null", "object", "array"};

struct Argument {
  FormId form;
  bool required;
};

class ArgumentForms {
 public:
  ArgumentForms(Forms& forms, JsonForms& json, FormId open, FormId close, FormId sep)
      : forms_(forms), json_(json), open_(open), close_(close), sep_(sep) {}

  FormId argument(FormId key, FormId typed_value) {
    return forms_.sequence({open_, forms_.literal("argument key=\""), key,
                            forms_.literal("\" type=\""), typed_value, close_,
                            forms_.literal("argument"), sep_});
  }
  FormId typed(std::string_view type, FormId value) {
    return forms_.sequence({forms_.literal(type), forms_.literal("\""), sep_, value});
  }

  /// Any keys, any values.
  FormId anything() {
    const CodeSet special = {{'"', '"'}, {'&', '&'}};
    const FormId key =
        forms_.repeat(forms_.choice({forms_.character(special.complement()),
                                     forms_.literal("&amp;"), forms_.literal("&quot;")}),
                      1, kUnbounded);
    const FormId value = forms_.choice({
        typed("string", json_.string(StringStyle::kRaw)),
        typed("number", json_.number({})),
        typed("boolean", json_.boolean()),
        typed("null", json_.null()),
        typed("object", json_.any_object()),
        typed("array", json_.any_array()),
    });
    return forms_.repeat(argument(key, value), 0, kUnbounded);
  }

  /// Each at most once, the required ones exactly once.
  FormId in_any_order(const std::vector<Argument>& arguments) {
    std::vector<RuleId> rules;  // by the set of arguments that have come
    const size_t sets = size_t{1} << arguments.size();
    for (size_t set = 0; set < sets; ++set) {
      rules.push_back(forms_.declare("arguments"));
    }
    for (size_t set = 0; set < sets; ++set) {
      std::vector<FormId> choices;
      bool enough = true;
      for (size_t i = 0; i < arguments.size(); ++i) {
        const size_t bit = size_t{1} << i;
        if ((set & bit) == 0) {
          enough = enough && !arguments[i].required;
          choices.push_back(forms_.sequence({arguments[i].form, forms_.rule(rules[set | bit])}));
        }
      }
      if (enough) {
        choices.push_back(forms_.empty());
      }
      forms_.define(rules[set], forms_.choice(std::move(choices)));
    }
    return forms_.rule(rules[0]);
  }

  FormId in_order(const std::vector<Argument>& arguments) {
    std::vector<FormId> parts;
    for (const Argument& a : arguments) {
      parts.push_back(a.required ? a.form : forms_.optional(a.form));
    }
    return forms_.sequence(std::move(parts));
  }

 private:
  Forms& forms_;
  JsonForms& json_;
  FormId open_, close_, sep_;
};

std::string escape_attribute(std::string_view value) {
  std::string out;
  for (const char c : value) {
    out += c == '&' ? "&amp;" : c == '"' ? "&quot;" : std::string(1, c);
  }
  return out;
}

/// One property as an argument; never() when no value is possible.
Result<FormId> property_form(SchemaReader& reader, const SchemaReader::Property& property,
                             Forms& forms, ArgumentForms& arguments) {
  std::vector<FormId> values;
  for (const std::string_view type : kTypes) {
    const Result<FormId> value =
        reader.read_typed(property.schema, type,
                          type == "string" ? StringStyle::kRaw : StringStyle::kJson, property.path);
    if (!value.ok()) {
      return value;
    }
    if (*value != forms.never()) {
      values.push_back(arguments.typed(type, *value));
    }
  }
  if (values.empty()) {
    return forms.never();
  }
  const RuleId rule = forms.declare(property.path);
  forms.define(rule, arguments.argument(forms.literal(escape_attribute(property.name)),
                                        forms.choice(std::move(values))));
  return forms.rule(rule);
}

}  // namespace

Result<FormId> k3_arguments(const Tokenizer& tokenizer, const ToolForm& tool, Forms& forms,
                            JsonForms& json) {
  const Result<FormId> open = control(tokenizer, "<|open|>", forms);
  const Result<FormId> close = control(tokenizer, "<|close|>", forms);
  const Result<FormId> sep = control(tokenizer, "<|sep|>", forms);
  if (!open.ok() || !close.ok() || !sep.ok()) {
    return open.ok() ? close.ok() ? sep : close : open;
  }
  ArgumentForms arguments(forms, json, *open, *close, *sep);
  if (tool.parameters.empty()) {
    return arguments.anything();
  }
  const Result<Json> schema = parse_json(tool.parameters);
  if (!schema.ok()) {
    return Status(schema.status().code(), tool.path + ": " + schema.status().message());
  }
  SchemaReader reader(forms, json, *schema, tool.path);
  Result<SchemaReader::Object> object = reader.read_object();
  if (!object.ok()) {
    return object.status();
  }
  if (object->properties.empty()) {
    return object->open ? arguments.anything() : forms.empty();
  }
  // The model has seen the declaration with its keys sorted.
  std::ranges::sort(object->properties, {}, &SchemaReader::Property::name);
  std::vector<Argument> list;
  for (const SchemaReader::Property& property : object->properties) {
    const Result<FormId> form = property_form(reader, property, forms, arguments);
    if (!form.ok()) {
      return form;
    }
    if (*form != forms.never() || property.required) {
      list.push_back({*form, property.required});
    }
  }
  return list.size() <= kAnyOrderMax ? arguments.in_any_order(list) : arguments.in_order(list);
}

}  // namespace triax::text::internal
