// JSON as text, where order, number spelling and limits matter. Knows nothing of chats.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace triax::text {

/// Limits of what parse_json takes, so that hostile input costs neither the stack nor quadratic
/// time (ordered objects search linearly).
inline constexpr int kJsonDepthMax = 100;
inline constexpr int kJsonMembersMax = 1024;

/// Parses JSON strictly (UTF-8, no comments, finite numbers), keys in their order.
/// Errors     kInvalidArgument, with the position; a value too deep, an object with too many
/// members
Result<nlohmann::ordered_json> parse_json(std::string_view text);

/// Compact, keys sorted recursively by their bytes, text that is not ASCII kept.
std::string sorted_json(const nlohmann::ordered_json& value);

/// `text` as a JSON string with its quotation marks; escapes only what must be.
std::string quote_json(std::string_view text);
/// The same without the quotation marks, appended to `out`: pieces may follow one another.
void append_json_escaped(std::string_view text, std::string& out);

/// True when `text` is one JSON value no deeper than kJsonDepthMax.
bool is_json(std::string_view text);

/// One member of an object. `type` is string, number, boolean, null, object or array. `text` is a
/// string's own characters, of anything else its JSON with ", " and ": " between the parts, keys in
/// their order, numbers as they were written.
struct JsonMember {
  std::string key;
  std::string_view type;
  std::string text;
};

/// The members of the object that `text` holds, or nothing when it holds no valid object. Of equal
/// keys the last value counts, at the first one's place. Any depth.
std::optional<std::vector<JsonMember>> split_json_object(std::string_view text);

}  // namespace triax::text
