// The tokenizer against published encodings, and its promises for any bytes.
#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "testing/testing.h"

namespace triax::text {
namespace {
TEST(Tokenizer, reproduces_the_published_encodings) {
  const std::string shared = testing::shared_directory();
  if (shared.empty()) GTEST_SKIP() << "needs the shared test data";
  const auto tokenizer = Tokenizer::from_vocabulary(
      shared + "/data/kimi-tokenizer/tiktoken.model", SpecialSet::kKimiK3);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  std::ifstream file(shared + "/spec/tokenizer-goldens.json");
  const auto goldens = nlohmann::json::parse(file);
  ASSERT_EQ(goldens.size(), 30U);
  for (const auto& golden : goldens) {
    const std::string text = golden["text"];
    EXPECT_EQ(tokenizer->encode(text), golden["ids"].get<std::vector<int32_t>>()) << text;
  }
}
}  // namespace
}  // namespace triax::text
