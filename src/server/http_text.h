// The text of HTTP messages: what the server writes, and the parts of a target.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace triax::server {

struct ResponseHead {
  int status = 200;
  std::string_view content_type = "application/json";
  std::string_view id;
  bool keep_alive = true;
  bool chunked = false;
  size_t length = 0;  // of the body, unless chunked
  const std::vector<std::pair<std::string, std::string>>* more = nullptr;
};

/// Status line and header fields, the empty line included.
std::string response_head(const ResponseHead& head);

/// Appends one chunk of a chunked body; of an empty one nothing.
void append_chunk(std::string_view data, std::string& out);
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";

struct Target {
  std::string path;  // percent-decoded
  std::string query;
};

/// Splits a request's target: "/v1/models?x=1".
/// Returns    nothing when it does not begin with '/', or what it encodes is no such byte
std::optional<Target> parse_target(std::string_view target);

/// The client's x-request-id when it is 1 to 128 letters, digits and "._:-", else one of ours.
std::string request_id(std::string_view given);

/// Whether `given` is one of `keys`: its place, or -1. The time depends on the keys' lengths alone.
int find_key(const std::vector<std::string>& keys, std::string_view given);

}  // namespace triax::server
