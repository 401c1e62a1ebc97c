#include "text/token_ids.h"

#include <gtest/gtest.h>

namespace triax::text {
namespace {

using Ids = std::vector<int32_t>;

TEST(TokenIdsTest, AnArrayOrAnObjectWithOneIsRead) {
  EXPECT_EQ(*parse_token_ids("[1, 2, 2147483647]", "x"), (Ids{1, 2, 2147483647}));
  EXPECT_EQ(*parse_token_ids(R"({"count": 1, "ids": [0]})", "x"), (Ids{0}));
}

TEST(TokenIdsTest, EverythingElseIsRefusedWithTheSourceNamed) {
  for (const char* bad :
       {"", "[", "[]", "{}", "7", "null", "[1, -2]", "[2147483648]", "[1.5]", "[1e3]", "[\"1\"]",
        "[[1]]", "[99999999999999999999]", R"({"ids": 1})", R"({"ids": []})", "[1] [2]"}) {
    const Result<Ids> ids = parse_token_ids(bad, "ids.json");
    ASSERT_FALSE(ids.ok()) << bad;
    EXPECT_EQ(ids.status().code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(ids.status().message().starts_with("ids.json: ")) << ids.status().message();
  }
  EXPECT_FALSE(parse_token_ids(std::string(100000, '['), "x").ok());
}

TEST(TokenIdsTest, NumbersAreFoundInAnyText) {
  EXPECT_EQ(*scan_token_ids("1 2,3\n[4]x5", "x"), (Ids{1, 2, 3, 4, 5}));
  EXPECT_EQ(*scan_token_ids("", "x"), Ids{});
  EXPECT_FALSE(scan_token_ids("1 2147483648", "x").ok());
}

}  // namespace
}  // namespace triax::text
