// Bytes as the JSON of token ids that the program takes: read or refused, and what was read comes
// back the same when it is written and read again.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "text/token_ids.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace triax;  // NOLINT: this file is one function
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const Result<std::vector<int32_t>> ids = text::parse_token_ids(text, "fuzz");
  const Result<std::vector<int32_t>> scanned = text::scan_token_ids(text, "fuzz");
  check(scanned.ok() || !scanned.status().message().empty(), "an error without a message");
  if (!ids.ok()) {
    check(!ids.status().message().empty(), "an error without a message");
    return 0;
  }
  std::string written = "[";
  for (const int32_t id : *ids) {
    check(id >= 0, "a negative id");
    if (written.size() > 1) {
      written += ',';
    }
    written += std::to_string(id);
  }
  const Result<std::vector<int32_t>> again = text::parse_token_ids(written + "]", "again");
  check(again.ok() && *again == *ids, "ids change when written and read");
  return 0;
}
