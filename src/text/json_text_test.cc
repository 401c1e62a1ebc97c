// JSON texts: limits, escapes, sorted keys, objects taken apart.
#include "text/json_text.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "text/chat_testing.h"

namespace triax::text {
namespace {

TEST(JsonText, nesting_and_members_are_limited) {
  const auto nested = [](size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_TRUE(parse_json(nested(kJsonDepthMax)).ok());
  EXPECT_FALSE(parse_json(nested(kJsonDepthMax + 1)).ok());
  EXPECT_FALSE(parse_json(std::string(1000000, '[')).ok());
  EXPECT_FALSE(is_json(nested(kJsonDepthMax + 1)));
  // Brackets in strings do not count.
  EXPECT_TRUE(parse_json("\"\\\"" + std::string(1000, '[') + "\"").ok());

  const auto object = [](int members) {
    std::string text = "{\"\":0";
    for (int i = 1; i < members; ++i) {
      text.append(",\"").append(std::to_string(i)).append("\":{\"a\":0}");
    }
    return text + "}";
  };
  EXPECT_TRUE(parse_json(object(kJsonMembersMax)).ok());
  EXPECT_FALSE(parse_json(object(kJsonMembersMax + 1)).ok());
}

TEST(JsonText, what_is_no_json_is_refused) {
  for (const char* text : {"", " ", "{", "}", "{\"a\":}", "[1,]", "NaN", "1e999", "\"\xff\"", "//",
                           "{} {}", "{'a':1}", "\"\\ud800\"", "nul", "\"\n\"", "01", "]"}) {
    EXPECT_FALSE(parse_json(text).ok()) << text;
    EXPECT_FALSE(is_json(text)) << text;
  }
}

TEST(JsonText, keys_are_sorted_recursively_and_text_is_kept) {
  const auto value = parse_json(R"({"b": [{"z": 1, "y": 2.50}], "é": "\u4f60", "a": null})");
  ASSERT_TRUE(value.ok());
  EXPECT_EQ(sorted_json(*value), R"({"a":null,"b":[{"y":2.5,"z":1}],"é":"你"})");
}

TEST(JsonText, quoted_text_reads_back) {
  Rng rng(2);
  for (int i = 0; i < 2000; ++i) {
    const std::string text = random_text(rng, 20);
    EXPECT_EQ(nlohmann::json::parse(quote_json(text)).get<std::string>(), text);
  }
}

TEST(JsonText, an_object_and_its_members_say_the_same) {
  Rng rng(3);
  for (int i = 0; i < 2000; ++i) {
    const std::string text = random_arguments(rng);
    const auto members = split_json_object(text);
    ASSERT_TRUE(members.has_value()) << text;
    nlohmann::json whole;
    for (const JsonMember& member : *members) {
      whole[member.key] = member.type == "string" ? nlohmann::json(member.text)
                                                  : nlohmann::json::parse(member.text);
      EXPECT_EQ(whole[member.key].type_name(), member.type);
    }
    EXPECT_EQ(members->empty() ? nlohmann::json::object() : whole, nlohmann::json::parse(text));
  }
}

TEST(JsonText, only_objects_have_members) {
  for (const char* text : {"", "[]", "1", "\"a\"", "null", "{", "{\"a\":1,}", "{} 1"}) {
    EXPECT_FALSE(split_json_object(text).has_value()) << text;
  }
  EXPECT_TRUE(split_json_object(" {} ")->empty());
}

}  // namespace
}  // namespace triax::text
