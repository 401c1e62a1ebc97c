// One line a request. Nothing of what was asked or answered is in it.
#pragma once

#include <string>

#include "server/http_server.h"

namespace triax::server {

enum class LogFormat { kText, kJson };

/// Without the end of the line; `unix_seconds` is when the request ended.
std::string access_line(const AccessRecord& record, LogFormat format, int64_t unix_seconds);

}  // namespace triax::server
