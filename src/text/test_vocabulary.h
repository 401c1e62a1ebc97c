// A small vocabulary in tiktoken's text format, for tests and fuzzers only.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "text/tokenizer.h"

namespace triax::text {

/// The 256 single bytes, a few words, and tokens that overlap in ways that make merge order matter
/// ("ab", "bc", "abc"), that cross characters (the first two bytes of a Han character) and that are
/// runs.
inline std::vector<std::string> test_tokens() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) {
    tokens.emplace_back(1, static_cast<char>(byte));
  }
  for (const char* token : {"bc",
                            "ab",
                            "abc",
                            "aa",
                            "aaaa",
                            "  ",
                            "    ",
                            "th",
                            "he",
                            "the",
                            " the",
                            "in",
                            "ing",
                            "er",
                            " t",
                            "\n\n",
                            "ca",
                            "bca",
                            "cab",
                            "\xe4\xba",
                            "\xe4\xba\xba",
                            "\xf0\x9f",
                            "\xf0\x9f\x98",
                            "\xc3\xa9",
                            "12",
                            "123",
                            "<|",
                            "|>",
                            "open",
                            "\xff\xfe",
                            "\xcc\x81\xcc\x81"}) {
    tokens.emplace_back(token);
  }
  return tokens;
}

inline std::string base64(std::string_view bytes) {
  static constexpr char kAlphabet[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t j = i; j < i + 3; ++j) {
      group = group << 8 | (j < bytes.size() ? static_cast<unsigned char>(bytes[j]) : 0U);
    }
    for (size_t digit = 0; digit < 4; ++digit) {
      text += i + digit > bytes.size() ? '=' : kAlphabet[group >> (18 - 6 * digit) & 63];
    }
  }
  return text;
}

/// The lines of a tiktoken.model with these tokens.
inline std::string vocabulary_text(const std::vector<std::string>& tokens) {
  std::string text;
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    text += base64(tokens[rank]) + " " + std::to_string(rank) + "\n";
  }
  return text;
}

inline Tokenizer test_tokenizer(SpecialSet set = SpecialSet::kKimiK3) {
  auto tokenizer =
      Tokenizer::from_vocabulary_text(vocabulary_text(test_tokens()), "test vocabulary", set);
  check(tokenizer.ok(), tokenizer.status().message());
  return *std::move(tokenizer);
}

}  // namespace triax::text
