#include "checkpoint/json_fields.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <cmath>
#include <utility>

namespace triax::checkpoint {
namespace {

constexpr size_t kExcerptChars = 60;

/// Keeps where a text stopped being JSON; builds nothing.
class ErrorPosition : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return true; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(size_t at, const std::string&, const nlohmann::detail::exception&) override {
    position = at;
    return false;
  }
  size_t position = 0;
};

bool whole_number(const Json& value, int64_t* out) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    *out = static_cast<int64_t>(number);
    return number <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  }
  if (!value.is_number_integer()) {
    return false;
  }
  *out = value.get<int64_t>();
  return true;
}

bool whole_number_in(const Json& value, int64_t min, int64_t max, int64_t* out) {
  return whole_number(value, out) && *out >= min && *out <= max;
}

std::string range_text(int64_t min, int64_t max) {
  return min == max ? fmt::format("{}", min) : fmt::format("an integer in [{}, {}]", min, max);
}

}  // namespace

Result<Json> parse_json(std::string_view text, std::string_view source) {
  Json value = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!value.is_discarded()) {
    return value;
  }
  ErrorPosition error;
  Json::sax_parse(text.begin(), text.end(), &error);
  return Status::data_loss(
      fmt::format("checkpoint: {}: not JSON: it breaks at byte {} of {}; the file is "
                  "truncated or damaged, fetch it again",
                  source, error.position, text.size()));
}

std::string json_excerpt(const Json& value) {
  if (value.is_array() && value.size() > 8) {
    return fmt::format("a list of {}", value.size());
  }
  if (value.is_object()) {
    return fmt::format("an object of {} fields", value.size());
  }
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kExcerptChars) {
    text = text.substr(0, kExcerptChars) + "...";
  }
  return text;
}

const Json* Fields::find(std::string_view name) const {
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

void Fields::fail(std::string_view name, std::string_view expected, std::string_view advice) {
  if (!status_.ok()) {
    return;
  }
  const Json* value = find(name);
  const std::string found = value == nullptr ? "is missing" : "is " + json_excerpt(*value);
  status_ = Status::invalid_argument(fmt::format("checkpoint: {}: {} {}, expected {}{}{}", source_,
                                                 full_name(name), found, expected,
                                                 advice.empty() ? "" : "; ", advice));
}

int64_t Fields::integer(std::string_view name, int64_t min, int64_t max) {
  const Json* value = find(name);
  int64_t number = 0;
  if (value == nullptr || !whole_number_in(*value, min, max, &number)) {
    fail(name, range_text(min, max));
    return min;
  }
  return number;
}

int64_t Fields::integer_or(std::string_view name, int64_t fallback, int64_t min, int64_t max) {
  return has(name) ? integer(name, min, max) : fallback;
}

float Fields::number(std::string_view name, double min, double max) {
  const Json* value = find(name);
  const double x = value != nullptr && value->is_number() ? value->get<double>() : NAN;
  if (!(x >= min && x <= max)) {
    fail(name, fmt::format("a number in [{}, {}]", min, max));
    return static_cast<float>(min);
  }
  return static_cast<float>(x);
}

float Fields::number_or(std::string_view name, float fallback, double min, double max) {
  return has(name) ? number(name, min, max) : fallback;
}

bool Fields::flag_or(std::string_view name, bool fallback) {
  const Json* value = find(name);
  if (value == nullptr) {
    return fallback;
  }
  if (!value->is_boolean()) {
    fail(name, "true or false");
    return fallback;
  }
  return value->get<bool>();
}

std::string Fields::text_or(std::string_view name, std::string_view fallback) {
  const Json* value = find(name);
  if (value != nullptr && value->is_string()) {
    return value->get<std::string>();
  }
  if (value != nullptr) {
    fail(name, "a string");
  }
  return std::string(fallback);
}

std::vector<int64_t> Fields::integers(std::string_view name, int64_t min, int64_t max) {
  std::vector<int64_t> list;
  const Json* value = find(name);
  if (value == nullptr || !value->is_array()) {
    fail(name, "a list of integers");
    return list;
  }
  for (const Json& item : *value) {
    int64_t number = 0;
    if (!whole_number_in(item, min, max, &number)) {
      fail(name,
           fmt::format("a list of integers in [{}, {}], one is {}", min, max, json_excerpt(item)));
      return {};
    }
    list.push_back(number);
  }
  return list;
}

std::vector<int32_t> Fields::ids(std::string_view name, int64_t max) {
  const Json* value = find(name);
  if (value == nullptr) {
    return {};
  }
  if (!value->is_array()) {
    return {static_cast<int32_t>(integer(name, 0, max))};
  }
  std::vector<int32_t> list;
  for (int64_t id : integers(name, 0, max)) {
    list.push_back(static_cast<int32_t>(id));
  }
  return list;
}

std::optional<Fields> Fields::object(std::string_view name) {
  const Json* value = find(name);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_object()) {
    fail(name, "an object");
    return std::nullopt;
  }
  return Fields(*value, source_, full_name(name) + ".", status_);
}

void Fields::expect_one_of(std::string_view name, std::initializer_list<std::string_view> values) {
  const Json* value = find(name);
  if (value == nullptr) {
    return;
  }
  for (std::string_view allowed : values) {
    if (value->is_string() && value->get_ref<const std::string&>() == allowed) {
      return;
    }
  }
  fail(name, fmt::format("\"{}\"", fmt::join(values, "\" or \"")), "nothing else is implemented");
}

void Fields::expect_integer(std::string_view name, int64_t value, std::string_view why) {
  int64_t number = 0;
  if (const Json* found = find(name);
      found != nullptr && !whole_number_in(*found, value, value, &number)) {
    fail(name, range_text(value, value), why);
  }
}

void Fields::expect_flag(std::string_view name, bool value, std::string_view why) {
  if (const Json* found = find(name); found != nullptr && *found != Json(value)) {
    fail(name, value ? "true" : "false", why);
  }
}

void Fields::expect_absent(std::string_view name, std::string_view why) {
  if (has(name)) {
    fail(name, "null or nothing", why);
  }
}

}  // namespace triax::checkpoint
