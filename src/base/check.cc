#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace triax {

void check_failed(std::string_view what, const std::source_location& where) {
  std::fprintf(stderr, "%s:%u: check failed: %.*s\n", where.file_name(),
               static_cast<unsigned>(where.line()), static_cast<int>(what.size()), what.data());
  std::abort();
}

}  // namespace triax
