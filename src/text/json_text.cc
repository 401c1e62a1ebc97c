#include "text/json_text.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>

namespace triax::text {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// Follows brackets and strings of any text, valid or not, so that the parser never meets more.
Status check_limits(std::string_view text) {
  std::vector<int> members;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      i += c == '\\' ? 1 : 0;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      members.push_back(0);
      if (members.size() > static_cast<size_t>(kJsonDepthMax)) {
        return Status::invalid_argument(
            fmt::format("JSON is nested deeper than {} at byte {}", kJsonDepthMax, i));
      }
    } else if ((c == '}' || c == ']') && !members.empty()) {
      members.pop_back();
    } else if (c == ':' && !members.empty() && ++members.back() > kJsonMembersMax) {
      return Status::invalid_argument(
          fmt::format("a JSON object has more than {} members at byte {}", kJsonMembersMax, i));
    }
  }
  return {};
}

// Writes the members of the outermost object as they are parsed; no recursion.
class ObjectSplitter : public nlohmann::json_sax<json> {
 public:
  std::vector<JsonMember> members;

  bool null() override { return scalar("null", "null"); }
  bool boolean(bool value) override { return scalar("boolean", value ? "true" : "false"); }
  // Only -0 gets here as an integer that is not negative.
  bool number_integer(number_integer_t value) override {
    return scalar("number", value == 0 ? "-0" : std::to_string(value));
  }
  bool number_unsigned(number_unsigned_t value) override {
    return scalar("number", std::to_string(value));
  }
  bool number_float(number_float_t /*value*/, const string_t& written) override {
    return scalar("number", written);
  }
  bool string(string_t& value) override {
    return scalar("string", open_.size() == 1 ? value : quote_json(value));
  }
  bool binary(binary_t& /*value*/) override { return false; }

  bool start_object(size_t /*members*/) override { return start('{', "object"); }
  bool start_array(size_t /*elements*/) override { return start('[', "array"); }
  bool end_object() override { return end('}'); }
  bool end_array() override { return end(']'); }

  bool key(string_t& key) override {
    if (open_.size() == 1) {
      const auto [entry, added] = places_.try_emplace(key, members.size());
      place_ = entry->second;
      if (added) {
        members.push_back({key, {}, {}});
      }
      members[place_].text.clear();
      return true;
    }
    separate();
    members[place_].text += quote_json(key) + ": ";
    return true;
  }

  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  void separate() {
    members[place_].text += first_ ? "" : ", ";
    first_ = false;
  }

  bool begin_value(std::string_view type) {
    if (open_.empty()) {
      return false;  // the outermost value is no object
    }
    if (open_.size() == 1) {
      members[place_].type = type;
    } else if (open_.back() == '[') {
      separate();
    }
    return true;
  }

  bool scalar(std::string_view type, std::string_view text) {
    if (!begin_value(type)) {
      return false;
    }
    members[place_].text += text;
    return true;
  }

  bool start(char bracket, std::string_view type) {
    if (open_.empty()) {
      open_ += bracket;
      return bracket == '{';
    }
    begin_value(type);
    members[place_].text += bracket;
    open_ += bracket;
    first_ = true;
    return true;
  }

  bool end(char bracket) {
    open_.pop_back();
    if (!open_.empty()) {
      members[place_].text += bracket;
    }
    first_ = false;
    return true;
  }

  std::string open_;   // brackets around the parser's position
  bool first_ = true;  // nothing yet in the innermost one
  size_t place_ = 0;   // member being written
  std::unordered_map<std::string, size_t> places_;
};

}  // namespace

Result<ordered_json> parse_json(std::string_view text) {
  if (Status limits = check_limits(text); !limits.ok()) {
    return limits;
  }
  try {
    return ordered_json::parse(text.begin(), text.end());
  } catch (const ordered_json::exception& error) {
    std::string_view what = error.what();
    // The library's "[json.exception.parse_error.101] " says nothing to a client.
    if (const size_t bracket = what.find("] "); bracket != std::string_view::npos) {
      what.remove_prefix(bracket + 2);
    }
    return Status::invalid_argument(fmt::format("not valid JSON: {}", what));
  }
}

std::string sorted_json(const ordered_json& value) {
  return json(value).dump(-1, ' ', false, json::error_handler_t::replace);
}

void append_json_escaped(std::string_view text, std::string& out) {
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        } else {
          out += c;
        }
    }
  }
}

std::string quote_json(std::string_view text) {
  std::string out = "\"";
  append_json_escaped(text, out);
  return out + '"';
}

bool is_json(std::string_view text) {
  return check_limits(text).ok() && json::accept(text.begin(), text.end());
}

std::optional<std::vector<JsonMember>> split_json_object(std::string_view text) {
  ObjectSplitter splitter;
  if (!json::sax_parse(text.begin(), text.end(), &splitter)) {
    return std::nullopt;
  }
  return std::move(splitter.members);
}

}  // namespace triax::text
