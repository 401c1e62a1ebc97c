#include "plan/json_reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

namespace triax::plan {

Result<Json> parse_object(std::string_view text, std::string_view source) {
  Json value = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) {
    return Status::data_loss(fmt::format("plan: {}: not JSON", source));
  }
  if (!value.is_object()) {
    return Status::invalid_argument(
        fmt::format("plan: {}: a JSON {}, expected an object", source, value.type_name()));
  }
  return value;
}

const Json* JsonReader::find(std::string_view name) {
  read_.insert(std::string(name));
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

void JsonReader::fail(std::string_view name, std::string_view expected) {
  if (!status_.ok()) {
    return;
  }
  const Json* value = find(name);
  std::string found = "is missing";
  if (value != nullptr) {
    found = "is " + value->dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 60);
  }
  status_ = Status::invalid_argument(
      fmt::format("plan: {}: {} {}, expected {}", source_, name, found, expected));
}

double JsonReader::number(std::string_view name, double min, double max, double fallback) {
  const Json* value = find(name);
  if (value == nullptr && !std::isnan(fallback)) {
    return fallback;
  }
  const double x = value != nullptr && value->is_number() ? value->get<double>() : NAN;
  if (!(x >= min && x <= max)) {
    fail(name, fmt::format("a number in [{:g}, {:g}]", min, max));
    return std::isnan(fallback) ? min : fallback;
  }
  return x;
}

std::string JsonReader::text(std::string_view name, std::string_view fallback) {
  const Json* value = find(name);
  if (value == nullptr) {
    return std::string(fallback);
  }
  if (!value->is_string()) {
    fail(name, "a text");
    return std::string(fallback);
  }
  return value->get<std::string>();
}

const Json& JsonReader::object(std::string_view name) {
  static const Json kEmpty = Json::object();
  const Json* value = find(name);
  if (value != nullptr && !value->is_object()) {
    fail(name, "an object");
    return kEmpty;
  }
  return value == nullptr ? kEmpty : *value;
}

Status JsonReader::finish() {
  for (const auto& [name, value] : object_.items()) {
    if (status_.ok() && !read_.contains(name)) {
      status_ = Status::invalid_argument(fmt::format(
          "plan: {}: unknown field {}, expected one of {}", source_,
          Json(name).dump(-1, ' ', true, Json::error_handler_t::replace), fmt::join(read_, ", ")));
    }
  }
  return status_;
}

}  // namespace triax::plan
