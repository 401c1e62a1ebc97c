// Streams of tokens: valid UTF-8 at every step, and in the end the same as decoding at once.
#include "text/stream_decoder.h"

#include <gtest/gtest.h>

#include <string>
#include <type_traits>

#include "base/rng.h"
#include "text/test_vocabulary.h"
#include "text/utf8.h"

namespace triax::text {
namespace {

const Tokenizer& tokenizer() {
  static const Tokenizer made = test_tokenizer();
  return made;
}

bool is_valid_utf8(std::string_view text) {
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    if (step.state != Utf8State::kValid) return false;
    text.remove_prefix(static_cast<size_t>(step.bytes));
  }
  return true;
}

TEST(Utf8, replaces_maximal_subparts) {
  const std::string r = "\ufffd";
  EXPECT_EQ(replace_invalid_utf8(""), "");
  EXPECT_EQ(replace_invalid_utf8("a\u00e9\u4eba\U0001f600"), "a\u00e9\u4eba\U0001f600");
  // Tables 3-8 to 3-11 of the Unicode standard: overlong forms, surrogates, other ill-formed
  // sequences, truncated sequences.
  EXPECT_EQ(replace_invalid_utf8("\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41"),
            r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(replace_invalid_utf8("\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41"),
            r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(replace_invalid_utf8("\xf4\x91\x92\x93\xff\x41\x80\xbf\x42"),
            r + r + r + r + r + "A" + r + r + "B");
  EXPECT_EQ(replace_invalid_utf8("\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41"), r + r + r + r + "A");
}

TEST(Utf8, accepts_exactly_the_scalar_values) {
  // Every sequence of 1 to 3 bytes and the edges of 4: decoded and encoded again, it is itself.
  int valid = 0;
  for (int lead = 0; lead < 256; ++lead) {
    for (int second = 0; second < 256; ++second) {
      for (const int third : {0x00, 0x7f, 0x80, 0xbf, 0xc0}) {
        for (const int fourth : {0x7f, 0x80, 0xbf, 0xc0}) {
          const char bytes[] = {static_cast<char>(lead), static_cast<char>(second),
                                static_cast<char>(third), static_cast<char>(fourth)};
          const Utf8Step step = utf8_step({bytes, 4});
          ASSERT_NE(step.state, Utf8State::kIncomplete);
          if (step.state != Utf8State::kValid) continue;
          ++valid;
          const char32_t c = step.point;
          const int length = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
          ASSERT_EQ(step.bytes, length) << "overlong";
          ASSERT_TRUE(c < 0xd800 || (c > 0xdfff && c <= 0x10ffff));
        }
      }
    }
  }
  // Of 20 endings each: 128 * 256 one-byte, 30 * 64 two-byte; 3 bytes need 2 of 5 thirds, 4 bytes
  // also 2 of 4 fourths.
  const int three = 32 + 64 * 12 + 32 + 64 * 2, four = 48 + 64 * 3 + 16;
  EXPECT_EQ(valid, 128 * 256 * 20 + 30 * 64 * 20 + three * 2 * 4 + four * 2 * 2);
}

TEST(StreamDecoder, holds_back_an_incomplete_character) {
  StreamDecoder decoder(tokenizer());
  EXPECT_EQ(decoder.push('a'), "a");
  EXPECT_EQ(decoder.push(0xf0), "");
  EXPECT_EQ(decoder.push(0x9f), "");
  EXPECT_EQ(decoder.push(0x98), "");
  EXPECT_EQ(decoder.held_bytes(), 3);
  EXPECT_EQ(decoder.push(0x80), "\U0001f600");
  EXPECT_EQ(decoder.held_bytes(), 0);
  EXPECT_EQ(decoder.finish(), "");
}

TEST(StreamDecoder, replaces_what_becomes_no_character) {
  StreamDecoder decoder(tokenizer());
  EXPECT_EQ(decoder.push(0xe4), "");
  EXPECT_EQ(decoder.push('b'), "\ufffdb");
  EXPECT_EQ(decoder.push(0xff), "\ufffd");
  EXPECT_EQ(decoder.push(0xe4), "");
  EXPECT_EQ(decoder.push(0xe4), "\ufffd");
  EXPECT_EQ(decoder.finish(), "\ufffd");
  EXPECT_EQ(decoder.finish(), "");
  EXPECT_EQ(decoder.push('c'), "c");
}

TEST(StreamDecoder, shows_or_hides_special_tokens) {
  const int32_t end = *tokenizer().eos();
  StreamDecoder shown(tokenizer());
  EXPECT_EQ(shown.push(0xe4), "");
  EXPECT_EQ(shown.push(end), "\ufffd<|end_of_msg|>");
  StreamDecoder hidden(tokenizer(), SpecialText::kHide);
  EXPECT_EQ(hidden.push('a'), "a");
  EXPECT_EQ(hidden.push(end), "");
  EXPECT_EQ(hidden.push(0xe4), "");
  EXPECT_EQ(hidden.push(end), "\ufffd");
  EXPECT_EQ(hidden.push(0xba), "\ufffd");
}

TEST(StreamDecoder, prints_nothing_for_ids_outside_the_vocabulary) {
  StreamDecoder decoder(tokenizer());
  EXPECT_EQ(decoder.push(0xe4), "");
  EXPECT_EQ(decoder.push(-1), "");
  EXPECT_EQ(decoder.push(tokenizer().size()), "");
  EXPECT_EQ(decoder.push(0xba), "");
  EXPECT_EQ(decoder.push(0xba), "\u4eba");
}

TEST(StreamDecoder, is_a_small_value_that_branches) {
  static_assert(std::is_trivially_copyable_v<StreamDecoder> && sizeof(StreamDecoder) <= 24);
  StreamDecoder decoder(tokenizer());
  EXPECT_EQ(decoder.push(0xc3), "");
  StreamDecoder branch = decoder;
  EXPECT_EQ(branch.push(0xa9), "\u00e9");
  EXPECT_EQ(decoder.push(0xa8), "\u00e8");
}

/// Ids that often join to characters, often break them.
std::vector<int32_t> random_ids(Rng& rng) {
  const std::string_view near = "\xe4\xba\xba\xf0\x9f\x98\x80\xc3\xa9\xcc\x81\xed\xa0\xf4 a";
  std::vector<int32_t> ids(rng.below(24));
  for (int32_t& id : ids) {
    id = rng.below(3) == 0
             ? static_cast<int32_t>(rng.below(static_cast<uint64_t>(tokenizer().size())))
             : static_cast<unsigned char>(near[rng.below(near.size())]);
  }
  return ids;
}

TEST(StreamDecoder, equals_decoding_at_once) {
  Rng rng(21);
  for (int round = 0; round < 20000; ++round) {
    const auto ids = random_ids(rng);
    StreamDecoder decoder(tokenizer());
    std::string text;
    for (const int32_t id : ids) {
      const std::string part = decoder.push(id);
      ASSERT_TRUE(is_valid_utf8(part));
      ASSERT_LE(decoder.held_bytes(), 3);
      text += part;
    }
    text += decoder.finish();
    ASSERT_EQ(text, replace_invalid_utf8(tokenizer().decode(ids)));
  }
}

TEST(StreamDecoder, gives_the_same_for_every_split) {
  Rng rng(22);
  for (int round = 0; round < 1000; ++round) {
    const std::string bytes = tokenizer().decode(random_ids(rng));
    const std::string whole = replace_invalid_utf8(bytes);
    for (size_t cut = 0; cut <= bytes.size(); ++cut) {
      StreamDecoder decoder(tokenizer());
      std::string text = decoder.push_bytes(std::string_view(bytes).substr(0, cut));
      ASSERT_TRUE(is_valid_utf8(text));
      text += decoder.push_bytes(std::string_view(bytes).substr(cut));
      text += decoder.finish();
      ASSERT_EQ(text, whole) << cut;
    }
  }
}

TEST(StreamDecoder, holds_nothing_back_that_is_complete) {
  Rng rng(23);
  for (int round = 0; round < 2000; ++round) {
    const auto ids = random_ids(rng);
    StreamDecoder decoder(tokenizer());
    std::string text;
    for (const int32_t id : ids) text += decoder.push(id);
    // What is held is the beginning of a character, never a whole one.
    const std::string all = tokenizer().decode(ids);
    const std::string_view held =
        std::string_view(all).substr(all.size() - static_cast<size_t>(decoder.held_bytes()));
    if (!held.empty()) {
      ASSERT_EQ(utf8_step(held).state, Utf8State::kIncomplete);
    }
  }
}

}  // namespace
}  // namespace triax::text
