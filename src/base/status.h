// Errors as values. A Status says what was done, on what, what was expected, what was found.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "base/check.h"

namespace triax {

enum class StatusCode {
  kOk = 0,
  kInvalidArgument,    // the caller's input is wrong; retrying cannot help
  kNotFound,           // a file, tensor or name is not there
  kDataLoss,           // bytes are corrupt or truncated
  kResourceExhausted,  // memory, disk or a limit of ours
  kUnavailable,        // not on this machine or in this build
  kCancelled,          // somebody asked to stop
  kInternal,           // the operating system refused what should work
};

/// The outcome of an operation that can fail. Ok carries no message.
/// Ownership  a value; cheap to move
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status invalid_argument(std::string m) {
    return {StatusCode::kInvalidArgument, std::move(m)};
  }
  static Status not_found(std::string m) { return {StatusCode::kNotFound, std::move(m)}; }
  static Status data_loss(std::string m) { return {StatusCode::kDataLoss, std::move(m)}; }
  static Status resource_exhausted(std::string m) {
    return {StatusCode::kResourceExhausted, std::move(m)};
  }
  static Status unavailable(std::string m) { return {StatusCode::kUnavailable, std::move(m)}; }
  static Status cancelled(std::string m) { return {StatusCode::kCancelled, std::move(m)}; }
  static Status internal(std::string m) { return {StatusCode::kInternal, std::move(m)}; }

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

/// A T, or the Status that says why there is none.
/// Errors     value() and operator* on a failed result abort: ask ok() first
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT: implicit, so that `return value;` reads
  Result(Status status) : status_(std::move(status)) {  // NOLINT: as above
    check(!status_.ok(), "a Result without a value needs an error");
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  T& value() & {
    check(ok(), status_.message());
    return *value_;
  }
  const T& value() const& {
    check(ok(), status_.message());
    return *value_;
  }
  T&& value() && {
    check(ok(), status_.message());
    return std::move(*value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace triax
