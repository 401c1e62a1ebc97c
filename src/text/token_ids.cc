#include "text/token_ids.h"

#include <fmt/core.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "text/json_text.h"

namespace triax::text {

Result<std::vector<int32_t>> parse_token_ids(std::string_view json, const std::string& source) {
  const Result<nlohmann::ordered_json> parsed = parse_json(json);
  if (!parsed.ok()) {
    return Status::invalid_argument(fmt::format("{}: {}", source, parsed.status().message()));
  }
  const bool wrapped = parsed->is_object() && parsed->contains("ids");
  const nlohmann::ordered_json& list = wrapped ? parsed->at("ids") : *parsed;
  if (!list.is_array() || list.empty()) {
    return Status::invalid_argument(fmt::format(
        R"({}: expected a JSON array of token ids, or {{"ids": [...]}}, with an entry)", source));
  }
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const nlohmann::ordered_json& id : list) {
    // Unsigned is how the parser keeps every integer that is not negative.
    if (!id.is_number_unsigned() || id.get<uint64_t>() > INT32_MAX) {
      return Status::invalid_argument(fmt::format("{}: entry {} is {:.40}, expected a token id",
                                                  source, ids.size(), sorted_json(id)));
    }
    ids.push_back(static_cast<int32_t>(id.get<uint64_t>()));
  }
  return ids;
}

Result<std::vector<int32_t>> scan_token_ids(std::string_view text, const std::string& source) {
  std::vector<int32_t> ids;
  for (const char *p = text.data(), *end = p + text.size(); p < end;) {
    if (*p < '0' || *p > '9') {
      ++p;
      continue;
    }
    int32_t id = 0;
    const auto [next, error] = std::from_chars(p, end, id);
    if (error != std::errc()) {
      return Status::invalid_argument(
          fmt::format("{}: the number at byte {} is no token id", source, p - text.data()));
    }
    ids.push_back(id);
    p = next;
  }
  return ids;
}

}  // namespace triax::text
