// Bugs stop the process here; errors that a user can cause are a Status instead (status.h).
#pragma once

#include <source_location>
#include <string_view>

namespace triax {

/// Prints file, line and `what` to stderr and aborts.
[[noreturn]] void check_failed(std::string_view what, const std::source_location& where);

/// Aborts when `condition` is false: an invariant of this code is broken.
inline void check(bool condition, std::string_view what,
                  const std::source_location& where = std::source_location::current()) {
  if (!condition) [[unlikely]] {
    check_failed(what, where);
  }
}

}  // namespace triax
