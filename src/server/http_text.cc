#include "server/http_text.h"

#include <fmt/chrono.h>
#include <fmt/core.h>

#include <algorithm>
#include <boost/beast/http/status.hpp>
#include <chrono>
#include <ctime>

#include "server/generation.h"

namespace triax::server {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') {
    return c - '0';
  }
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

}  // namespace

std::string response_head(const ResponseHead& head) {
  const boost::beast::string_view reason =
      boost::beast::http::obsolete_reason(static_cast<boost::beast::http::status>(head.status));
  std::string out = fmt::format(
      "HTTP/1.1 {} {}\r\nServer: triax\r\nDate: {:%a, %d %b %Y %H:%M:%S} GMT\r\n", head.status,
      std::string_view(reason.data(), reason.size()), fmt::gmtime(std::time(nullptr)));
  const auto field = [&out](std::string_view name, std::string_view value) {
    out.append(name).append(": ").append(value).append("\r\n");
  };
  if (!head.content_type.empty()) {
    field("Content-Type", head.content_type);
  }
  if (head.chunked) {
    field("Transfer-Encoding", "chunked");
  } else if (head.status != 204 && head.status != 304) {
    field("Content-Length", fmt::format("{}", head.length));
  }
  field("Connection", head.keep_alive ? "keep-alive" : "close");
  if (!head.id.empty()) {
    field("X-Request-Id", head.id);
  }
  if (head.more != nullptr) {
    for (const auto& [name, value] : *head.more) {
      field(name, value);
    }
  }
  return out + "\r\n";
}

void append_chunk(std::string_view data, std::string& out) {
  if (!data.empty()) {
    out += fmt::format("{:x}\r\n", data.size());
    out.append(data).append("\r\n");
  }
}

std::optional<Target> parse_target(std::string_view target) {
  Target out;
  if (const size_t question = target.find('?'); question != std::string_view::npos) {
    out.query = target.substr(question + 1);
    target = target.substr(0, question);
  }
  if (!target.starts_with('/')) {
    return std::nullopt;
  }
  for (size_t i = 0; i < target.size(); ++i) {
    if (target[i] != '%') {
      out.path += target[i];
      continue;
    }
    const int high = i + 2 < target.size() ? hex_digit(target[i + 1]) : -1;
    const int low = i + 2 < target.size() ? hex_digit(target[i + 2]) : -1;
    if (high < 0 || low < 0 || (high == 0 && low == 0)) {
      return std::nullopt;
    }
    out.path += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return out;
}

std::string request_id(std::string_view given) {
  constexpr size_t kLongest = 128;
  const bool fine =
      !given.empty() && given.size() <= kLongest && std::ranges::all_of(given, [](char c) {
        return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
               c == '.' || c == '_' || c == ':' || c == '-';
      });
  return fine ? std::string(given) : random_id("req_");
}

int find_key(const std::vector<std::string>& keys, std::string_view given) {
  int found = -1;
  for (size_t i = 0; i < keys.size(); ++i) {
    const std::string& key = keys[i];
    unsigned difference = key.size() == given.size() ? 0 : 1;
    for (size_t j = 0; j < key.size(); ++j) {
      const char other = given.empty() ? '\0' : given[j % given.size()];
      difference |= static_cast<unsigned char>(key[j]) ^ static_cast<unsigned char>(other);
    }
    // No branch that depends on how much was equal.
    found += difference == 0 ? static_cast<int>(i) - found : 0;
  }
  return found;
}

}  // namespace triax::server
