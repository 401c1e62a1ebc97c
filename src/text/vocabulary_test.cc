// Vocabulary files, whole and damaged.
#include "text/vocabulary.h"

#include <gtest/gtest.h>

#include <string>

#include "base/rng.h"
#include "text/test_vocabulary.h"

namespace triax::text {
namespace {

/// The message of a text that must not parse.
std::string error_of(const std::string& text) {
  const auto vocabulary = Vocabulary::parse(text, "v.model");
  EXPECT_FALSE(vocabulary.ok()) << text;
  if (vocabulary.ok()) return "";
  EXPECT_EQ(vocabulary.status().code(), StatusCode::kDataLoss);
  EXPECT_NE(vocabulary.status().message().find("v.model"), std::string::npos);
  return vocabulary.status().message();
}

void expect_error(const std::string& text, const std::string& part) {
  const std::string message = error_of(text);
  EXPECT_NE(message.find(part), std::string::npos) << "'" << message << "' lacks '" << part << "'";
}

/// The 256 bytes as tokens, with line `line` (from 1) replaced.
std::string with_line(size_t line, const std::string& replacement) {
  std::string text;
  for (size_t i = 0; i < 256; ++i) {
    text += i + 1 == line ? replacement
                          : base64(std::string(1, static_cast<char>(i))) + " " + std::to_string(i);
    text += '\n';
  }
  return text;
}

TEST(Vocabulary, gives_every_token_by_rank_and_by_bytes) {
  const auto tokens = test_tokens();
  const auto vocabulary = Vocabulary::parse(vocabulary_text(tokens), "v.model");
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status().message();
  ASSERT_EQ(vocabulary->size(), tokens.size());
  for (uint32_t rank = 0; rank < tokens.size(); ++rank) {
    EXPECT_EQ(vocabulary->bytes(rank), tokens[rank]);
    EXPECT_EQ(vocabulary->find(tokens[rank]), rank);
  }
  EXPECT_EQ(vocabulary->longest_bytes(), 4U);
}

TEST(Vocabulary, finds_nothing_that_is_no_token) {
  const auto vocabulary = Vocabulary::parse(vocabulary_text(test_tokens()), "v.model");
  ASSERT_TRUE(vocabulary.ok());
  for (const std::string text : {"", "ba", "aaa", "thee", "abcabcabc", "\0\0"}) {
    EXPECT_EQ(vocabulary->find(text), Vocabulary::kNoRank) << text;
  }
}

TEST(Vocabulary, tells_tokens_apart_that_differ_in_trailing_zero_bytes) {
  auto tokens = test_tokens();
  for (size_t bytes = 2; bytes < 40; ++bytes) {
    tokens.emplace_back(bytes, '\0');
  }
  const auto vocabulary = Vocabulary::parse(vocabulary_text(tokens), "v.model");
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status().message();
  for (uint32_t rank = 0; rank < tokens.size(); ++rank) {
    EXPECT_EQ(vocabulary->find(tokens[rank]), rank);
  }
}

TEST(Vocabulary, takes_a_last_line_without_its_break) {
  std::string text = vocabulary_text(test_tokens());
  text.pop_back();
  EXPECT_TRUE(Vocabulary::parse(text, "v.model").ok());
}

TEST(Vocabulary, survives_a_move) {
  auto first = Vocabulary::parse(vocabulary_text(test_tokens()), "v.model");
  ASSERT_TRUE(first.ok());
  const std::string_view view = first->bytes(258);
  const Vocabulary second = *std::move(first);
  EXPECT_EQ(view, "abc");
  EXPECT_EQ(second.bytes(258).data(), view.data());
}

TEST(VocabularyError, names_the_line_and_what_it_holds) {
  expect_error(with_line(7, "Bg== 5"), "line 7: expected rank 6, found '5'");
  expect_error(with_line(7, "Bg== 66"), "line 7: expected rank 6, found '66'");
  expect_error(with_line(7, "Bg== -6"), "line 7: expected rank 6, found '-6'");
  expect_error(with_line(7, "Bg== +6"), "line 7: expected rank 6");
  expect_error(with_line(7, "Bg== "), "line 7: expected rank 6, found ''");
  expect_error(with_line(7, "Bg== 6 "), "line 7: expected rank 6, found '6 '");
  expect_error(with_line(7, "Bg==  6"), "line 7: expected rank 6, found ' 6'");
  expect_error(with_line(7, "Bg== 6\r"), "line 7: expected rank 6, found '6\\x0d'");
  expect_error(with_line(7, "Bg== 4294967302"), "line 7: expected rank 6");
  expect_error(with_line(7, "Bg== 99999999999999999999999999"), "line 7: expected rank 6");
  expect_error(with_line(7, "Bg=="), "line 7: expected 'base64 rank', found 'Bg=='");
  expect_error(with_line(7, ""), "line 7: expected 'base64 rank', found ''");
  expect_error(with_line(7, "Bg==\t6"), "line 7: expected 'base64 rank'");
}

TEST(VocabularyError, refuses_bad_base64) {
  for (const std::string bad : {"", "B", "Bg", "Bg=", "Bg===", "====", "=", "B===", "Bg=A",
                                "Bh==", "B*==", "Bgh=", "AB=\xc3", "Qm9v=m9v", "Bg==Bg=="}) {
    SCOPED_TRACE(bad);
    expect_error(with_line(7, bad + " 6"), "line 7: expected base64");
  }
}

TEST(VocabularyError, refuses_a_token_given_twice) {
  expect_error(with_line(7, "BQ== 6"), "line 7: the token '\\x05' is that of line 6 again");
}

TEST(VocabularyError, refuses_a_vocabulary_without_some_byte) {
  expect_error(with_line(7, "BgY= 6"), "none for the byte 0x06");
}

TEST(VocabularyError, refuses_an_empty_or_a_binary_file) {
  expect_error("", "empty");
  expect_error("\n", "line 1");
  expect_error(std::string(100, '\0'), "line 1: expected 'base64 rank', found '\\x00");
  Rng rng(5);
  std::string noise(5000, ' ');
  for (char& c : noise) c = static_cast<char>(rng.next());
  error_of(noise);
  expect_error(std::string(1 << 20, 'A'), "...'");
}

TEST(VocabularyError, refuses_every_truncation_of_the_bytes) {
  const std::string text = with_line(0, "");
  for (size_t bytes = 0; bytes + 1 < text.size(); ++bytes) {
    error_of(text.substr(0, bytes));
  }
}

}  // namespace
}  // namespace triax::text
