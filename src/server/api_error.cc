#include "server/api_error.h"

#include <fmt/core.h>

#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>

namespace triax::server {
namespace {

using Json = nlohmann::ordered_json;

/// The field that a message begins with: "messages[2].content: expected ..." -> its length.
size_t field_length(std::string_view message) {
  size_t n = 0;
  while (n < message.size() &&
         (std::isalnum(static_cast<unsigned char>(message[n])) != 0 || message[n] == '_' ||
          message[n] == '.' || message[n] == '[' || message[n] == ']')) {
    ++n;
  }
  return message.substr(n, 2) == ": " ? n : 0;
}

std::string_view anthropic_type(int http_status) {
  switch (http_status) {
    case 400:
    case 405:
    case 422:
      return "invalid_request_error";
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
    case 529:
      return "overloaded_error";
    default:
      return "api_error";
  }
}

}  // namespace

ApiError ApiError::bad_field(std::string_view field, std::string_view what) {
  return {.message = fmt::format("{}: {}", field, what), .param = std::string(field)};
}

ApiError ApiError::from_status(const Status& status) {
  ApiError error{.message = status.message(),
                 .param = status.message().substr(0, field_length(status.message()))};
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
      break;
    case StatusCode::kNotFound:
      error.http_status = 404;
      break;
    case StatusCode::kResourceExhausted:
    case StatusCode::kUnavailable:
    case StatusCode::kCancelled:
      error.http_status = 503;
      error.type = "server_error";
      break;
    default:
      error.http_status = 500;
      error.type = "server_error";
  }
  return error;
}

std::string error_body(const ApiError& error, ErrorShape shape, std::string_view request_id) {
  if (shape == ErrorShape::kAnthropic) {
    return json_text(
        {{"type", "error"},
         {"error", {{"type", anthropic_type(error.http_status)}, {"message", error.message}}},
         {"request_id", request_id}});
  }
  const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  return json_text({{"error",
                     {{"message", error.message},
                      {"type", error.type},
                      {"param", or_null(error.param)},
                      {"code", or_null(error.code)}}}});
}

std::string shown(const Json& value) {
  constexpr size_t kLongest = 40;
  if (value.is_object()) {
    return "an object";
  }
  if (value.is_array()) {
    return "an array";
  }
  std::string text = json_text(value);
  return text.size() <= kLongest ? text : "a long string";
}

std::string json_text(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

FieldReader::FieldReader(const Json& object, std::string path)
    : object_(object), path_(std::move(path)) {}

const Json* FieldReader::find(const char* key) const {
  if (!object_.is_object()) {
    return nullptr;
  }
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

std::string FieldReader::path(std::string_view key) const {
  return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
}

void FieldReader::fail(std::string_view key, std::string_view what) {
  fail(ApiError::bad_field(path(key), what));
}

void FieldReader::fail(ApiError error) {
  if (ok()) {
    error_ = std::move(error);
  }
}

void FieldReader::expected(const char* key, std::string_view what, const Json& found) {
  fail(key, fmt::format("expected {}, found {}", what, shown(found)));
}

void FieldReader::boolean(const char* key, bool& out) {
  const Json* value = find(key);
  if (value == nullptr) {
    return;
  }
  value->is_boolean() ? void(out = value->get<bool>()) : expected(key, "true or false", *value);
}

void FieldReader::integer(const char* key, int64_t least, int64_t most, int64_t& out) {
  const Json* value = find(key);
  if (value == nullptr) {
    return;
  }
  const std::string range = fmt::format("an integer from {} to {}", least, most);
  // 2.0 is an integer to JSON schema, and some clients write it so.
  double number = 0.0;
  if (value->is_number()) {
    number = value->get<double>();
  }
  if (!value->is_number() || std::floor(number) != number || number < static_cast<double>(least) ||
      number > static_cast<double>(most)) {
    return expected(key, range, *value);
  }
  if (value->is_number_float()) {
    out = static_cast<int64_t>(number);
    return;
  }
  if (value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    return expected(key, range, *value);
  }
  const auto integer = value->get<int64_t>();
  integer<least || integer> most ? expected(key, range, *value) : void(out = integer);
}

void FieldReader::number(const char* key, double least, double most, double& out) {
  const Json* value = find(key);
  if (value == nullptr) {
    return;
  }
  const double number = value->is_number() ? value->get<double>() : NAN;
  if (!(number >= least && number <= most)) {
    return expected(key, fmt::format("a number from {} to {}", least, most), *value);
  }
  out = number;
}

void FieldReader::string(const char* key, std::string& out) {
  const Json* value = find(key);
  if (value == nullptr) {
    return;
  }
  value->is_string() ? void(out = value->get<std::string>()) : expected(key, "a string", *value);
}

const Json* FieldReader::object(const char* key) {
  const Json* value = find(key);
  if (value != nullptr && !value->is_object()) {
    expected(key, "an object", *value);
    return nullptr;
  }
  return value;
}

const Json* FieldReader::array(const char* key) {
  const Json* value = find(key);
  if (value != nullptr && !value->is_array()) {
    expected(key, "an array", *value);
    return nullptr;
  }
  return value;
}

}  // namespace triax::server
