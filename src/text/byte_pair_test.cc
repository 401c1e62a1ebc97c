// Merging against the definition, on short and on long pieces.
#include "text/byte_pair.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "base/rng.h"
#include "text/test_vocabulary.h"

namespace triax::text {
namespace {

/// The definition: join the leftmost pair of lowest rank until no pair is a token.
std::vector<int32_t> merged_by_definition(const Vocabulary& vocabulary, std::string_view piece) {
  std::vector<std::string> parts;
  for (const char c : piece) parts.emplace_back(1, c);
  if (vocabulary.find(piece) != Vocabulary::kNoRank) parts = {std::string(piece)};
  while (true) {
    uint32_t least = Vocabulary::kNoRank;
    size_t at = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const uint32_t rank = vocabulary.find(parts[i] + parts[i + 1]);
      if (rank < least) {
        least = rank;
        at = i;
      }
    }
    if (least == Vocabulary::kNoRank) break;
    parts[at] += parts[at + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
  std::vector<int32_t> ids;
  for (const std::string& part : parts) ids.push_back(static_cast<int32_t>(vocabulary.find(part)));
  return ids;
}

Vocabulary test_vocabulary() {
  auto vocabulary = Vocabulary::parse(vocabulary_text(test_tokens()), "test vocabulary");
  check(vocabulary.ok(), vocabulary.status().message());
  return *std::move(vocabulary);
}

std::vector<int32_t> encode(const Vocabulary& vocabulary, std::string_view piece) {
  std::vector<int32_t> ids;
  BytePairEncoder(vocabulary).encode(piece, ids);
  return ids;
}

TEST(BytePair, prefers_the_lower_rank_then_the_left) {
  const Vocabulary vocabulary = test_vocabulary();
  const auto rank = [&](const char* token) { return static_cast<int32_t>(vocabulary.find(token)); };
  // "bc" comes before "ab", so "abcx" joins the right pair first and then finds "abc".
  EXPECT_EQ(encode(vocabulary, "abcx"), (std::vector{rank("abc"), rank("x")}));
  // With equal ranks the left pair wins: aa aa a, then aaaa a.
  EXPECT_EQ(encode(vocabulary, "aaaaa"), (std::vector{rank("aaaa"), rank("a")}));
}

TEST(BytePair, takes_a_whole_token_though_merging_would_not_reach_it) {
  const Vocabulary vocabulary = test_vocabulary();
  // "open" is a token, "op", "pe", "en" are not.
  EXPECT_EQ(encode(vocabulary, "open").size(), 1U);
  EXPECT_EQ(encode(vocabulary, "openx").size(), 5U);
}

TEST(BytePair, follows_the_definition_for_any_piece) {
  const Vocabulary vocabulary = test_vocabulary();
  BytePairEncoder encoder(vocabulary);  // one for all: what a piece leaves behind must not matter
  Rng rng(1);
  const std::string_view alphabets[] = {"ab", "abc", "abcthe ing", "\xe4\xba\xf0\x9f\x98\xcc\x81"};
  for (int round = 0; round < 3000; ++round) {
    const std::string_view alphabet = alphabets[rng.below(4)];
    std::string piece(1 + rng.below(round % 10 == 0 ? 300 : 80), ' ');
    for (char& c : piece) c = alphabet[rng.below(alphabet.size())];
    std::vector<int32_t> ids;
    encoder.encode(piece, ids);
    ASSERT_EQ(ids, merged_by_definition(vocabulary, piece)) << piece;
  }
}

/// The 256 bytes and `count` joins of two random tokens over the letters a to d.
Vocabulary random_vocabulary(Rng& rng, size_t count) {
  std::vector<std::string> tokens = test_tokens();
  tokens.resize(256);
  std::vector<std::string> grown = {"a", "b", "c", "d"};
  while (grown.size() < count + 4) {
    const std::string joined = grown[rng.below(grown.size())] + grown[rng.below(grown.size())];
    if (joined.size() <= 12 && std::find(grown.begin(), grown.end(), joined) == grown.end()) {
      grown.push_back(joined);
      tokens.push_back(joined);
    }
  }
  auto vocabulary = Vocabulary::parse(vocabulary_text(tokens), "random vocabulary");
  check(vocabulary.ok(), vocabulary.status().message());
  return *std::move(vocabulary);
}

TEST(BytePair, follows_the_definition_for_any_vocabulary) {
  Rng rng(2);
  for (int round = 0; round < 200; ++round) {
    const Vocabulary vocabulary = random_vocabulary(rng, 4 + rng.below(60));
    BytePairEncoder encoder(vocabulary);
    for (int piece_index = 0; piece_index < 10; ++piece_index) {
      std::string piece(40 + rng.below(100), ' ');
      for (char& c : piece) c = static_cast<char>('a' + rng.below(4));
      std::vector<int32_t> ids;
      encoder.encode(piece, ids);
      ASSERT_EQ(ids, merged_by_definition(vocabulary, piece)) << piece;
    }
  }
}

TEST(BytePair, follows_the_definition_at_every_length) {
  const Vocabulary vocabulary = test_vocabulary();
  std::string piece;
  for (int i = 0; i < 140; ++i) {
    piece += "abcabaaacb"[i * i % 10];
    ASSERT_EQ(encode(vocabulary, piece), merged_by_definition(vocabulary, piece)) << piece;
  }
}

TEST(BytePair, is_not_quadratic) {
  const Vocabulary vocabulary = test_vocabulary();
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(encode(vocabulary, std::string(1600000, 'a')).size(), 400000U);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  EXPECT_LT(taken.count(), 20.0);  // well under a second; quadratic would be an hour
}

}  // namespace
}  // namespace triax::text
