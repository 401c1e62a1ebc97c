#include "replay/html.h"

#include <gtest/gtest.h>

namespace triax::replay {
namespace {

size_t count(const std::string& text, const std::string& what) {
  size_t n = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) {
    ++n;
  }
  return n;
}

TEST(Html, ThePageNeedsNothingElseAndEscapesAllText) {
  const Chart chart{"a < b & \"c\"",
                    "<script>",
                    "x",
                    "y",
                    true,
                    1.0,
                    {{"one", {{16, 0.5}, {32, 0.25}}}, {"two & more", {{16, 0.75}}}}};
  const HtmlTable table{"t", {"<b>", "n"}, {{"x", "1"}, {"'", "2"}}};
  const std::string page = html_page("<title>", {"p & q"}, {chart}, {table});
  EXPECT_EQ(page.find("http"), std::string::npos);
  EXPECT_EQ(page.find("<script"), std::string::npos);
  EXPECT_EQ(page.find("<b>"), std::string::npos);
  EXPECT_NE(page.find("prefers-color-scheme: dark"), std::string::npos);
  for (const char* tag :
       {"svg", "table", "tr", "td", "th", "path", "title", "body", "html", "h2"}) {
    EXPECT_EQ(count(page, std::string("<") + tag + " ") + count(page, std::string("<") + tag + ">"),
              count(page, std::string("</") + tag + ">"))
        << tag;
  }
  EXPECT_EQ(count(page, "class=\"line\""), 2u);
}

TEST(Html, ChartsKeepToTheirFrame) {
  const Chart chart{"c", "", "x", "y", false, 0.0, {{"s", {{0, 0}, {5, 100}, {10, 50}}}}};
  const std::string page = html_page("t", {}, {chart}, {});
  EXPECT_NE(page.find("d=\"M56.0 276.0 L382.0"), std::string::npos) << page;
  const Chart empty{"c", "", "x", "y", false, 0.0, {{"s", {}}}};
  EXPECT_NE(html_page("t", {}, {empty}, {}).find("d=\"\""), std::string::npos);
  const Chart point{"c", "", "x", "y", true, 1.0, {{"s", {{8, 1}}}}};
  EXPECT_EQ(html_page("t", {}, {point}, {}).find("nan"), std::string::npos);
}

}  // namespace
}  // namespace triax::replay
