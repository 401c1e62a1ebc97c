// Typed, range-checked access to the fields of a JSON object. Private to this module.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace triax::checkpoint {

using Json = nlohmann::json;

/// The value of `text`. Errors: kDataLoss, the message has `source` and the byte where it ends.
Result<Json> parse_json(std::string_view text, std::string_view source);

/// `value` for a message: short, one line.
std::string json_excerpt(const Json& value);

/// Reads fields of one object. The first thing wrong stays in the Status that all readers of one
/// file share; after it every read gives the fallback. A field that is null counts as absent.
class Fields {
 public:
  /// `path` is what messages put before a field's name, for instance "text_config."
  Fields(const Json& object, std::string source, std::string path, Status& status)
      : object_(object), source_(std::move(source)), path_(std::move(path)), status_(status) {}

  /// Null when absent.
  const Json* find(std::string_view name) const;
  bool has(std::string_view name) const { return find(name) != nullptr; }

  /// Required, and in [min, max].
  int64_t integer(std::string_view name, int64_t min, int64_t max);
  int64_t integer_or(std::string_view name, int64_t fallback, int64_t min, int64_t max);
  float number(std::string_view name, double min, double max);
  float number_or(std::string_view name, float fallback, double min, double max);
  bool flag_or(std::string_view name, bool fallback);
  std::string text_or(std::string_view name, std::string_view fallback);
  /// Required; a list of integers in [min, max].
  std::vector<int64_t> integers(std::string_view name, int64_t min, int64_t max);
  /// One integer or a list of them; empty when absent.
  std::vector<int32_t> ids(std::string_view name, int64_t max);
  /// Fields of an object inside; null when absent. Anything else than an object is an error.
  std::optional<Fields> object(std::string_view name);

  /// An absent field, or one of `values`. `why` follows the message.
  void expect_one_of(std::string_view name, std::initializer_list<std::string_view> values);
  void expect_integer(std::string_view name, int64_t value, std::string_view why);
  void expect_flag(std::string_view name, bool value, std::string_view why);
  void expect_absent(std::string_view name, std::string_view why);

  /// Records that `name` is wrong, unless something was before.
  void fail(std::string_view name, std::string_view expected, std::string_view advice = {});

  bool ok() const { return status_.ok(); }
  std::string full_name(std::string_view name) const { return path_ + std::string(name); }

 private:
  const Json& object_;
  std::string source_;
  std::string path_;
  Status& status_;
};

}  // namespace triax::checkpoint
