// Seconds on a clock that does not go back.
#pragma once

#include <chrono>

namespace triax::server {

inline double clock_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace triax::server
