#include "server/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <regex>

namespace triax::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const PageFile& file_at(std::string_view path) {
  const auto found = std::ranges::find(page_files(), path, &PageFile::path);
  EXPECT_NE(found, page_files().end()) << path;
  return *found;
}

std::map<std::string, std::string> headers(const HttpReply& reply) {
  return {reply.headers.begin(), reply.headers.end()};
}

TEST(Page, UnpacksForClientsThatDoNot) {
  for (const PageFile& file : page_files()) {
    const HttpReply plain = page_reply(file, {});
    EXPECT_EQ(static_cast<int64_t>(plain.body.size()), file.size) << file.path;
    EXPECT_EQ(headers(plain).count("content-encoding"), 0u);
  }
  EXPECT_THAT(page_reply(file_at("/"), {}).body, HasSubstr("<title>Triax</title>"));
  EXPECT_THAT(page_reply(file_at("/page/lib/katex.js"), {}).body, HasSubstr("katex"));
}

TEST(Page, PacksByWhatTheClientTakes) {
  const PageFile& file = file_at("/");
  ASSERT_TRUE(file.packed);
  for (const char* takes : {"gzip", "br, GZIP;q=0.5", "*", "deflate,gzip"}) {
    HttpRequest request;
    request.accept_encoding = takes;
    const HttpReply reply = page_reply(file, request);
    EXPECT_EQ(headers(reply)["content-encoding"], "gzip") << takes;
    EXPECT_EQ(reply.body.size(), file.body.size()) << takes;
  }
  for (const char* refuses : {"", "br", "gzip;q=0", "gzip; q=0.0, br", "gzipped"}) {
    HttpRequest request;
    request.accept_encoding = refuses;
    EXPECT_EQ(headers(page_reply(file, request)).count("content-encoding"), 0u) << refuses;
  }
}

TEST(Page, AClientThatHasItGetsNothing) {
  HttpRequest request;
  request.if_none_match = headers(page_reply(file_at("/"), {}))["etag"];
  const HttpReply same = page_reply(file_at("/"), request);
  EXPECT_EQ(same.status, 304);
  EXPECT_TRUE(same.body.empty());
  EXPECT_EQ(headers(same)["etag"], request.if_none_match);
  EXPECT_EQ(page_reply(file_at("/page/app.js"), request).status, 200);
}

// What model output could want to run, nothing lets it.
TEST(Page, EveryFileForbidsWhatIsNotItsOwn) {
  for (const PageFile& file : page_files()) {
    auto all = headers(page_reply(file, {}));
    const std::string& policy = all["content-security-policy"];
    EXPECT_THAT(policy, HasSubstr("default-src 'none'"));
    EXPECT_THAT(policy, HasSubstr("script-src 'self'"));
    EXPECT_THAT(policy, HasSubstr("frame-ancestors 'none'"));
    EXPECT_THAT(policy, HasSubstr("require-trusted-types-for 'script'"));
    EXPECT_THAT(policy, Not(HasSubstr("unsafe")));
    EXPECT_THAT(policy, Not(HasSubstr("http")));
    EXPECT_EQ(all["x-content-type-options"], "nosniff");
  }
}

TEST(Page, HoldsNoScriptOrStyleInItsMarkup) {
  const std::string markup = page_reply(file_at("/"), {}).body;
  EXPECT_THAT(markup, Not(HasSubstr("<style")));
  EXPECT_THAT(markup, Not(HasSubstr("style=")));
  EXPECT_FALSE(std::regex_search(markup, std::regex("\\son[a-z]+=")));
  EXPECT_THAT(markup, Not(HasSubstr("//")));
  for (size_t at = markup.find("<script"); at != std::string::npos;
       at = markup.find("<script", at + 1)) {
    EXPECT_THAT(markup.substr(at, markup.find('>', at) - at), HasSubstr("src=\"/page/"));
  }
}

}  // namespace
}  // namespace triax::server
