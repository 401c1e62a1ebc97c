// Typed, range-checked access to the fields of one JSON object that leaves no field unread. Private
// to this module.
#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>

#include "base/status.h"

namespace triax::plan {

using Json = nlohmann::json;

/// Errors     kDataLoss with `source` for text that is no JSON; kInvalidArgument for JSON that is
/// no
///            object
Result<Json> parse_object(std::string_view text, std::string_view source);

/// The first thing wrong stays; after it every read gives the fallback.
class JsonReader {
 public:
  JsonReader(const Json& object, std::string source) : object_(object), source_(source) {}

  bool has(std::string_view name) const { return object_.contains(name); }
  /// In [min, max]; absent: `fallback`, unless it is NaN, which makes the field required.
  double number(std::string_view name, double min, double max, double fallback);
  std::string text(std::string_view name, std::string_view fallback);
  /// An object inside; an empty one when absent.
  const Json& object(std::string_view name);
  void ignore(std::string_view name) { read_.insert(std::string(name)); }

  /// kInvalidArgument naming the first field that is wrong, or that nobody read.
  Status finish();

 private:
  const Json* find(std::string_view name);
  void fail(std::string_view name, std::string_view expected);

  const Json& object_;
  std::string source_;
  std::set<std::string, std::less<>> read_;
  Status status_;
};

}  // namespace triax::plan
