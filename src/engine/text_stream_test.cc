#include "engine/text_stream.h"

#include <gtest/gtest.h>

namespace triax::engine {
namespace {

/// Everything shown when `text` comes in pieces of `step` bytes.
std::string shown(const std::vector<std::string>& stops, const std::string& text, size_t step) {
  StopMatcher matcher(stops);
  std::string all;
  for (size_t at = 0; at < text.size() && !matcher.stopped(); at += step) {
    all += matcher.push(std::string_view(text).substr(at, step));
  }
  return matcher.stopped() ? all : all + matcher.finish();
}

TEST(StopMatcherTest, EverySplitShowsTheTextBeforeTheFirstStop) {
  struct Case {
    std::vector<std::string> stops;
    std::string text, expected;
  };
  for (const Case& c : std::vector<Case>{{{"END"}, "one END two", "one "},
                                         {{"END"}, "one EN two", "one EN two"},
                                         {{"aab"}, "aaaab!", "aa"},
                                         {{"x", "yz"}, "ayz", "a"},
                                         {{"yz", "ayz"}, "ayz", ""},
                                         {{}, "all of it", "all of it"},
                                         {{""}, "an empty stop is none", "an empty stop is none"},
                                         {{"end"}, "at the en", "at the en"}}) {
    for (size_t step = 1; step <= c.text.size(); ++step) {
      EXPECT_EQ(shown(c.stops, c.text, step), c.expected) << c.text << " step " << step;
    }
  }
}

TEST(StopMatcherTest, TextThatCannotBecomeAStopIsShownAtOnce) {
  StopMatcher matcher({"stop"});
  EXPECT_EQ(matcher.push("hello st"), "hello ");
  EXPECT_EQ(matcher.push("r"), "str");
  EXPECT_EQ(matcher.finish(), "");
}

TEST(StopMatcherTest, NothingIsShownAfterAStop) {
  StopMatcher matcher({"!"});
  EXPECT_EQ(matcher.push("a!b"), "a");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.push("c"), "");
}

}  // namespace
}  // namespace triax::engine
