// The page at "/": its files lie in the program, made from web/ and Debian's libraries by
// tools/page_files.py. Knows no sockets.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "server/routes.h"

namespace triax::server {

struct PageFile {
  std::string_view path;  // as served
  std::string_view type;
  std::string_view tag;  // of the content; the ETag
  bool packed = false;   // `body` is gzip
  int64_t size = 0;      // unpacked
  std::span<const unsigned char> body;
};

/// All files, by path.
std::span<const PageFile> page_files();

/// The content-security policy of all of them.
std::string_view page_policy();

/// The file as an answer: 304 when the client has it, packed when the client unpacks, with all
/// headers of safety. The browser asks again each time; the tag makes that cheap.
HttpReply page_reply(const PageFile& file, const HttpRequest& request);

/// A route for each file. They need no key: they hold nothing but the page.
void add_page_routes(std::vector<Route>& routes);

}  // namespace triax::server
