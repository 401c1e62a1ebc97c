// What a client did wrong, or what kept the server from answering: one value, which each API writes
// in its own shape; and readers of JSON fields that name the field.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/status.h"

namespace triax::server {

struct ApiError {
  int http_status = 400;
  std::string type = "invalid_request_error";  // OpenAI's words
  std::string code = {};                       // "context_length_exceeded"; empty: none
  std::string message;                         // names the field, what was expected, what was found
  std::string param = {};                      // the field alone: "messages[3].content"
  double retry_after_s = 0.0;                  // > 0: of 429 and 503

  /// 400 about one field; the message becomes "FIELD: what".
  static ApiError bad_field(std::string_view field, std::string_view what);
  /// From a message that begins with a field, as text and engine write them ("top_p: ..."), and
  /// otherwise by the code of the Status: 400 invalid argument, 404 not found, 503 exhausted or
  /// unavailable, 500 the rest.
  static ApiError from_status(const Status& status);
};

/// Whose words an error is written in.
enum class ErrorShape { kOpenAi, kAnthropic };

/// The JSON body of an error.
///   OpenAI     {"error": {"message", "type", "param", "code"}}
///   Anthropic  {"type": "error", "error": {"type", "message"}, "request_id"}
std::string error_body(const ApiError& error, ErrorShape shape, std::string_view request_id);

/// A T, or why there is none.
template <typename T>
class [[nodiscard]] ApiResult {
 public:
  ApiResult(T value) : value_(std::move(value)) {}         // NOLINT: so that `return value;` reads
  ApiResult(ApiError error) : error_(std::move(error)) {}  // NOLINT: as above

  bool ok() const { return value_.has_value(); }
  const ApiError& error() const { return error_; }
  T& operator*() {
    check(ok(), error_.message);
    return *value_;
  }
  const T& operator*() const {
    check(ok(), error_.message);
    return *value_;
  }
  T* operator->() { return &**this; }
  const T* operator->() const { return &**this; }

 private:
  ApiError error_;
  std::optional<T> value_;
};

/// Reads the members of one JSON object. JSON null counts as absent, as clients send it for "not
/// set". The first error stays and later calls do nothing: read everything, then ask.
/// Ownership  refers to the object
class FieldReader {
 public:
  /// `path`: where the object lies in the body ("", "stream_options", "tools[2]").
  explicit FieldReader(const nlohmann::ordered_json& object, std::string path = {});

  /// Each leaves `out` alone when the member is absent.
  void boolean(const char* key, bool& out);
  void integer(const char* key, int64_t least, int64_t most, int64_t& out);
  void number(const char* key, double least, double most, double& out);
  void string(const char* key, std::string& out);

  /// The member, or null when it is absent.
  const nlohmann::ordered_json* find(const char* key) const;
  /// The same; another type than an object (an array) is an error, and null then.
  const nlohmann::ordered_json* object(const char* key);
  const nlohmann::ordered_json* array(const char* key);

  /// "path.key".
  std::string path(std::string_view key) const;
  void fail(std::string_view key, std::string_view what);
  void fail(ApiError error);
  bool ok() const { return !error_.has_value(); }
  const std::optional<ApiError>& error() const { return error_; }

 private:
  void expected(const char* key, std::string_view what, const nlohmann::ordered_json& found);

  const nlohmann::ordered_json& object_;
  std::string path_;
  std::optional<ApiError> error_;
};

/// What a message shows of a value: itself if it is short, else its type.
std::string shown(const nlohmann::ordered_json& value);

/// Compact JSON; what is not UTF-8 becomes U+FFFD.
std::string json_text(const nlohmann::ordered_json& value);

}  // namespace triax::server
