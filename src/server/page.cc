#include "server/page.h"

#include <fmt/core.h>

#include <boost/beast/zlib/inflate_stream.hpp>

#include "base/check.h"

namespace triax::server {
namespace {

constexpr size_t kGzipHead = 10;  // as tools/page_files.py writes it

std::string unpacked(const PageFile& file) {
  namespace zlib = boost::beast::zlib;
  // A byte more than needed: a full output would hide the end of the stream.
  std::string out(static_cast<size_t>(file.size) + 1, '\0');
  zlib::z_params params;
  params.next_in = file.body.data() + kGzipHead;
  // With gzip's tail, which it does not take: Beast wants to look at bits behind the last code.
  params.avail_in = file.body.size() - kGzipHead;
  params.next_out = out.data();
  params.avail_out = out.size();
  zlib::inflate_stream stream;
  boost::system::error_code error;
  stream.write(params, zlib::Flush::finish, error);
  check(error == zlib::error::end_of_stream && params.avail_out == 1,
        fmt::format("page: {} is damaged: {}", file.path, error.message()));
  out.pop_back();
  return out;
}

/// Whether "gzip" or "*" is among the codings, and not with q=0.
bool takes_gzip(std::string_view accept_encoding) {
  while (!accept_encoding.empty()) {
    const size_t end = std::min(accept_encoding.find(','), accept_encoding.size());
    std::string coding;
    for (const char c : accept_encoding.substr(0, end)) {
      if (c != ' ' && c != '\t') {
        coding += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
      }
    }
    accept_encoding.remove_prefix(std::min(end + 1, accept_encoding.size()));
    const std::string name = coding.substr(0, coding.find(';'));
    if (name == "gzip" || name == "*") {
      const size_t q = coding.find(";q=0");
      return q == std::string::npos || coding.find_first_of("123456789", q) != std::string::npos;
    }
  }
  return false;
}

bool has_tag(std::string_view if_none_match, std::string_view tag) {
  return if_none_match == "*" || if_none_match.find(tag) != std::string_view::npos;
}

}  // namespace

HttpReply page_reply(const PageFile& file, const HttpRequest& request) {
  HttpReply reply;
  reply.content_type = file.type;
  reply.headers = {
      {"etag", fmt::format("\"{}\"", file.tag)},
      {"cache-control", "no-cache"},
      {"vary", "accept-encoding"},
      {"content-security-policy", std::string(page_policy())},
      {"x-content-type-options", "nosniff"},
      {"referrer-policy", "no-referrer"},
      {"cross-origin-opener-policy", "same-origin"},
      {"cross-origin-resource-policy", "same-origin"},
      {"permissions-policy", "camera=(), microphone=(), geolocation=(), payment=(), usb=()"},
  };
  if (has_tag(request.if_none_match, file.tag)) {
    reply.status = 304;
  } else if (!file.packed) {
    reply.body.assign(file.body.begin(), file.body.end());
  } else if (takes_gzip(request.accept_encoding)) {
    reply.headers.emplace_back("content-encoding", "gzip");
    reply.body.assign(file.body.begin(), file.body.end());
  } else {
    reply.body = unpacked(file);
  }
  return reply;
}

void add_page_routes(std::vector<Route>& routes) {
  for (const PageFile& file : page_files()) {
    Route route{.method = "GET", .path = std::string(file.path)};
    route.open = true;
    route.reply = [&file](const HttpRequest& request, const Service&) -> ApiResult<HttpReply> {
      return page_reply(file, request);
    };
    routes.push_back(std::move(route));
  }
}

}  // namespace triax::server
