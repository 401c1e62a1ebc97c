// Token ids as people and programs write them. Knows no vocabulary.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace triax::text {

/// A JSON array of token ids, or an object with one under "ids".
/// `source` is what messages call the text.
/// Errors     kInvalidArgument: no such JSON, an entry that is no integer from 0 to 2^31 - 1, or no
///            entries; the message names source, entry, found
Result<std::vector<int32_t>> parse_token_ids(std::string_view json, const std::string& source);

/// Every run of digits in `text` as one id: "1 2 3", "[1, 2, 3]".
/// Errors     kInvalidArgument for a number above 2^31 - 1
Result<std::vector<int32_t>> scan_token_ids(std::string_view text, const std::string& source);

}  // namespace triax::text
