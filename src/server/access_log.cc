#include "server/access_log.h"

#include <fmt/chrono.h>
#include <fmt/core.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace triax::server {
namespace {

double rounded(double seconds) { return std::round(seconds * 1e6) / 1e6; }

/// A path is the client's text: no control characters, no endless lines.
std::string printable(std::string_view text) {
  constexpr size_t kLongest = 200;
  std::string out;
  for (const char c : text.substr(0, kLongest)) {
    const bool plain = c > ' ' && c <= '~' && c != '"' && c != '\\';
    out += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

}  // namespace

std::string access_line(const AccessRecord& record, LogFormat format, int64_t unix_seconds) {
  const std::string time = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(unix_seconds));
  const GenerationUsage& usage = record.usage;
  const std::string method = printable(record.method);
  const std::string path = printable(record.path);
  if (format == LogFormat::kJson) {
    return json_text({{"time", time},
                      {"id", record.id},
                      {"peer", record.peer},
                      {"method", method},
                      {"path", path},
                      {"status", record.status},
                      {"bytes", record.bytes},
                      {"seconds", rounded(record.seconds)},
                      {"first_token_seconds", rounded(record.first_token_seconds)},
                      {"prompt_tokens", usage.prompt_tokens},
                      {"cached_tokens", usage.cached_tokens},
                      {"answer_tokens", usage.answer_tokens}});
  }
  std::string line = fmt::format("{} {} {} {} {} {:.3f}s {}B", time, record.peer, method, path,
                                 record.status, record.seconds, record.bytes);
  if (usage.prompt_tokens > 0) {
    line +=
        fmt::format(" first {:.3f}s, prompt {} ({} cached), answer {}", record.first_token_seconds,
                    usage.prompt_tokens, usage.cached_tokens, usage.answer_tokens);
  }
  return line + " " + record.id;
}

}  // namespace triax::server
