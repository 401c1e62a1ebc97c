#include "text/grammar/json_form.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "text/json_text.h"
#include "text/utf8.h"

namespace triax::text::internal {
namespace {

constexpr std::string_view kHex = "0123456789abcdefABCDEF";

const CodeSet& all_characters() {
  static const CodeSet set = CodeSet{}.complement();
  return set;
}

/// The characters of a valid UTF-8 text.
std::vector<uint32_t> code_points(std::string_view text) {
  std::vector<uint32_t> codes;
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    codes.push_back(step.state == Utf8State::kValid ? step.point : 0xfffdU);
    text.remove_prefix(static_cast<size_t>(step.bytes));
  }
  return codes;
}

/// A byte of `digits`.
FormId one_of(Forms& forms, std::string_view digits) {
  CodeSet set;
  for (const char c : digits) {
    set.add(static_cast<uint8_t>(c));
  }
  set.normalise();
  return forms.character(set);
}

/// \uXXXX of one character, two of them beyond the first plane. No lone surrogates.
FormId unicode_escape(Forms& forms) {
  const FormId hex = one_of(forms, kHex);
  const FormId tail = forms.sequence({hex, hex});
  const FormId plane = forms.choice({
      forms.sequence({one_of(forms, "0123456789abcefABCEF"), hex, tail}),
      forms.sequence({one_of(forms, "dD"), one_of(forms, "01234567"), tail}),
  });
  const FormId pair =
      forms.sequence({one_of(forms, "dD"), one_of(forms, "89abAB"), tail, forms.literal("\\u"),
                      one_of(forms, "dD"), one_of(forms, "cdefCDEF"), tail});
  return forms.sequence({forms.literal("u"), forms.choice({plane, pair})});
}

}  // namespace

FormId JsonForms::shared(std::optional<RuleId>& rule, const char* name,
                         const std::function<FormId()>& make) {
  if (!rule) {
    rule = forms_.declare(name);
    forms_.define(*rule, make());
  }
  return forms_.rule(*rule);
}

FormId JsonForms::space() {
  return shared(space_, "space", [&] {
    const FormId line =
        forms_.sequence({forms_.optional(forms_.literal("\r")), forms_.literal("\n")});
    return forms_.sequence(
        {forms_.repeat(line, 0, 2), forms_.repeat(one_of(forms_, " \t"), 0, 64)});
  });
}

FormId JsonForms::any_character(StringStyle style) {
  if (style == StringStyle::kRaw) {
    return forms_.character(all_characters());
  }
  const FormId escape =
      forms_.sequence({forms_.literal("\\"),
                       forms_.choice({one_of(forms_, "\"\\/bfnrt"), unicode_escape(forms_)})});
  return forms_.choice({forms_.character(plain_characters()), escape});
}

FormId JsonForms::quoted(FormId characters, StringStyle style) {
  if (style == StringStyle::kRaw) {
    return characters;
  }
  const FormId quote = forms_.literal("\"");
  return forms_.sequence({quote, characters, quote});
}

FormId JsonForms::string(StringStyle style, int64_t min, int64_t max) {
  const auto make = [&] { return quoted(forms_.repeat(any_character(style), min, max), style); };
  return style == StringStyle::kJson && min == 0 && max == kUnbounded
             ? shared(string_, "string", make)
             : make();
}

FormId JsonForms::character(const CodeSet& set, StringStyle style) {
  if (style == StringStyle::kRaw) {
    return forms_.character(set);
  }
  std::vector<FormId> choices = {forms_.character(set.intersection(plain_characters()))};
  for (uint32_t code = 0; code < 0x5d; ++code) {
    if (set.contains(code) && !plain_characters().contains(code)) {
      std::string escaped;
      append_json_escaped(std::string(1, static_cast<char>(code)), escaped);
      choices.push_back(forms_.literal(escaped));
    }
  }
  return forms_.choice(std::move(choices));
}

FormId JsonForms::text(std::string_view text, StringStyle style, bool whole) {
  if (style == StringStyle::kRaw) {
    return forms_.literal(text);
  }
  std::string escaped;
  append_json_escaped(text, escaped);
  return whole ? quoted(forms_.literal(escaped), style) : forms_.literal(escaped);
}

namespace {

struct TextTrie {
  std::map<uint32_t, TextTrie> children;
  bool end = false;
};

}  // namespace

FormId JsonForms::string_except(const std::vector<std::string>& texts, StringStyle style) {
  TextTrie root;
  for (const std::string& text : texts) {
    TextTrie* node = &root;
    for (const uint32_t code : code_points(text)) {
      node = &node->children[code];
    }
    node->end = true;
  }
  const RuleId rest = forms_.declare("rest of a key");
  forms_.define(rest, forms_.repeat(character(all_characters(), style), 0, kUnbounded));
  const std::function<FormId(const TextTrie&)> build = [&](const TextTrie& node) {
    CodeSet taken;
    std::vector<FormId> choices;
    for (const auto& [code, child] : node.children) {
      taken.add(code);
      CodeSet one;
      one.add(code);
      choices.push_back(forms_.sequence({character(one, style), build(child)}));
    }
    taken.normalise();
    choices.push_back(forms_.sequence({character(taken.complement(), style), forms_.rule(rest)}));
    if (!node.end) {
      choices.push_back(forms_.empty());
    }
    return forms_.choice(std::move(choices));
  };
  return quoted(build(root), style);
}

FormId JsonForms::boolean() {
  return forms_.choice({forms_.literal("true"), forms_.literal("false")});
}

FormId JsonForms::comma() { return forms_.sequence({forms_.literal(","), space()}); }

FormId JsonForms::key_value(FormId key, FormId value) {
  return forms_.sequence({key, forms_.literal(":"), space(), value});
}

FormId JsonForms::braces(FormId members) {
  return forms_.sequence({forms_.literal("{"), space(), members, space(), forms_.literal("}")});
}

FormId JsonForms::array(FormId item, int64_t min, int64_t max) {
  const FormId open = forms_.sequence({forms_.literal("["), space()});
  const FormId close = forms_.sequence({space(), forms_.literal("]")});
  const FormId more =
      forms_.repeat(forms_.sequence({space(), comma(), item}), std::max<int64_t>(min - 1, 0),
                    max == kUnbounded ? kUnbounded : std::max<int64_t>(max - 1, 0));
  const FormId items = max == 0 ? forms_.empty() : forms_.sequence({item, more});
  return forms_.sequence({open, min == 0 ? forms_.optional(items) : items, close});
}

FormId JsonForms::any_value() {
  if (!value_) {
    value_ = forms_.declare("value");
    forms_.define(*value_, forms_.choice({string(StringStyle::kJson), number({}), boolean(), null(),
                                          any_object(), any_array()}));
  }
  return forms_.rule(*value_);
}

FormId JsonForms::any_object() {
  return shared(object_, "object", [&] {
    const FormId member = key_value(string(StringStyle::kJson), any_value());
    const FormId more = forms_.repeat(forms_.sequence({space(), comma(), member}), 0, kUnbounded);
    return braces(forms_.optional(forms_.sequence({member, more})));
  });
}

FormId JsonForms::any_array() {
  return shared(array_, "array", [&] { return array(any_value(), 0, kUnbounded); });
}

FormId JsonForms::constant(const nlohmann::ordered_json& value, StringStyle style) {
  if (value.is_string()) {
    return text(value.get_ref<const std::string&>(), style);
  }
  if (value.is_array()) {
    std::vector<FormId> parts = {forms_.literal("["), space()};
    for (const auto& item : value) {
      if (parts.size() > 2) {
        parts.insert(parts.end(), {space(), comma()});
      }
      parts.push_back(constant(item, StringStyle::kJson));
    }
    parts.insert(parts.end(), {space(), forms_.literal("]")});
    return forms_.sequence(std::move(parts));
  }
  if (value.is_object()) {
    std::vector<FormId> parts;
    for (const auto& [key, member] : value.items()) {
      if (!parts.empty()) {
        parts.insert(parts.end(), {space(), comma()});
      }
      parts.push_back(
          key_value(text(key, StringStyle::kJson), constant(member, StringStyle::kJson)));
    }
    return braces(forms_.sequence(std::move(parts)));
  }
  return forms_.literal(value.dump());
}

}  // namespace triax::text::internal
