// The splitting expression: traps of PCRE2 and of Unicode, and an independent matcher.
#include "text/splitter.h"

#include <gtest/gtest.h>

#include <regex>
#include <string>
#include <vector>

#include "base/rng.h"

namespace triax::text {
namespace {

using Pieces = std::vector<std::string>;

const Splitter& splitter() {
  static const Result<Splitter> created = Splitter::create();
  return created.value();
}

Pieces split(const std::string& text) {
  Pieces pieces;
  splitter().split(text, [&](std::string_view piece) { pieces.emplace_back(piece); });
  return pieces;
}

std::string joined(const Pieces& pieces) {
  std::string text;
  for (const std::string& piece : pieces) text += piece;
  return text;
}

TEST(Splitter, gives_nothing_for_nothing) { EXPECT_EQ(split(""), Pieces()); }

TEST(Splitter, keeps_words_with_the_character_before_them) {
  EXPECT_EQ(split("Hello, wORLD (x)"), (Pieces{"Hello", ",", " w", "ORLD", " (", "x", ")"}));
  EXPECT_EQ(split("HTTPServer camelCase"), (Pieces{"HTTPServer", " camel", "Case"}));
  EXPECT_EQ(split("\tx"), (Pieces{"\tx"}));
  EXPECT_EQ(split("\nx"), (Pieces{"\n", "x"}));
}

TEST(Splitter, joins_contractions_in_any_case) {
  EXPECT_EQ(split("I'm you'LL don't'x"), (Pieces{"I'm", " you'LL", " don't", "'x"}));
  // U+017F folds to s.
  EXPECT_EQ(split("it'\u017f x"), (Pieces{"it'\u017f", " x"}));
}

TEST(Splitter, cuts_numbers_by_threes) {
  EXPECT_EQ(split("1234567 12"), (Pieces{"123", "456", "7", " ", "12"}));
  EXPECT_EQ(split("\u0663\u0664\u0665\u0666"), (Pieces{"\u0663\u0664\u0665", "\u0666"}));
}

TEST(Splitter, leaves_the_last_space_to_the_word) {
  EXPECT_EQ(split("  a   b\n\n  c  "), (Pieces{" ", " a", "  ", " b", "\n\n", " ", " c", "  "}));
  EXPECT_EQ(split(" \r\n \n x"), (Pieces{" \r\n \n", " x"}));
  EXPECT_EQ(split("!\n\n?"), (Pieces{"!\n\n", "?"}));
}

TEST(Splitter, takes_han_by_script_not_by_script_extension) {
  // U+3005 and U+3007 are Han; U+3001 and U+30FC are used with Han but Common.
  EXPECT_EQ(split("\u3005\u3007\u4eba"), (Pieces{"\u3005\u3007\u4eba"}));
  EXPECT_EQ(split("\u4eba\u3001\u4eba"), (Pieces{"\u4eba", "\u3001", "\u4eba"}));
  EXPECT_EQ(split("\u4eba\u30fc"), (Pieces{"\u4eba", "\u30fc"}));
  EXPECT_EQ(split("a\u4ebaA"), (Pieces{"a", "\u4eba", "A"}));
}

TEST(Splitter, takes_for_space_what_has_the_property_white_space) {
  for (const std::string space :
       {"\u0085", "\u00a0", "\u1680", "\u2000", "\u2007", "\u200a", "\u2028", "\u2029", "\u202f",
        "\u205f", "\u3000", "\t", "\v", "\f", " "}) {
    SCOPED_TRACE(space);
    EXPECT_EQ(split("1" + space + space + "2"), (Pieces{"1", space, space, "2"}));
    EXPECT_EQ(split("!" + space + "!").front(), "!");
  }
  // These are not: they stay with the punctuation around them.
  for (const std::string other : {"\u180e", "\u200b", "\u2060", "\ufeff", "\x1c", "\x1f"}) {
    SCOPED_TRACE(other);
    EXPECT_EQ(split("!" + other + other + "!"), (Pieces{"!" + other + other + "!"}));
  }
}

TEST(Splitter, makes_every_invalid_byte_a_piece) {
  EXPECT_EQ(split("a\xff\xfe z"), (Pieces{"a", "\xff", "\xfe", " z"}));
  EXPECT_EQ(split("\xe4\xba"), (Pieces{"\xe4", "\xba"}));                    // cut off
  EXPECT_EQ(split("\xed\xa0\x80x"), (Pieces{"\xed", "\xa0", "\x80", "x"}));  // a surrogate
  EXPECT_EQ(split("\xc0\x80"), (Pieces{"\xc0", "\x80"}));                    // overlong
  EXPECT_EQ(split("\xf4\x90\x80\x80"), (Pieces{"\xf4", "\x90", "\x80", "\x80"}));
  EXPECT_EQ(split(std::string("a\0b", 3)), (Pieces{"a", std::string("\0b", 2)}));
}

TEST(Splitter, cuts_long_runs_as_the_wrapper_does) {
  const std::string run(25000, 'a');
  EXPECT_EQ(split(run + run + "a").size(), 3U);
  EXPECT_EQ(split(run + run + "a")[1], run);
  EXPECT_EQ(split(run), Pieces{run});
  EXPECT_EQ(split(run + "b"), (Pieces{run, "b"}));
  // A run of spaces: what is left over starts anew, so the word's space is matched inside it.
  const std::string spaces(25000, ' ');
  EXPECT_EQ(split(spaces + " x"), (Pieces{spaces, " x"}));
  EXPECT_EQ(split(spaces + "x"), (Pieces{std::string(24999, ' '), " x"}));
  // Characters are counted, not bytes.
  std::string accents;
  for (int i = 0; i < 25001; ++i) accents += "\u00e9";
  ASSERT_EQ(split(accents).size(), 2U);
  EXPECT_EQ(split(accents)[1], "\u00e9");
}

TEST(Splitter, cuts_every_400000_characters) {
  std::string text;
  for (int i = 0; i < 100001; ++i) text += "abc ";
  const Pieces pieces = split(text);
  EXPECT_EQ(joined(pieces), text);
  EXPECT_EQ(pieces[99999], " abc");
  EXPECT_EQ(pieces[100000], " ");  // the space is the 400,000th character: no word follows it
  EXPECT_EQ(pieces[100001], "abc");
}

/// A character for each way in which the expression can see one; `letter` is its stand-in.
struct Stand {
  const char* character;
  char letter;
};

constexpr Stand kStands[] = {
    {"\u4eba", 'H'}, {"\u3005", 'H'},     {"\u3007", 'J'}, {"\u2f00", 'K'}, {"A", 'U'},
    {"\u01c5", 'U'}, {"a", 'L'},          {"\u00df", 'L'}, {"\u02b0", 'O'}, {"\u00aa", 'O'},
    {"\u0301", 'M'}, {"1", 'N'},          {"\u0663", 'N'}, {" ", 'S'},      {" ", 'S'},
    {"\u00a0", 'W'}, {"\t", 'W'},         {"\n", 'R'},     {"\r", 'R'},     {"!", 'P'},
    {"\u180e", 'P'}, {"\U0001f600", 'P'}, {"'", 'q'},      {"'", 'q'},      {"s", 's'},
    {"S", 'Z'},
};

TEST(Splitter, agrees_with_a_matcher_over_stand_ins) {
  // The vendor's expression with each class replaced by the stand-ins that belong to it.
  const std::regex expression(
      "[HJK]+"
      "|[^RHULOsZNJ]?[UOMZ]*[LOMs]+(?:q[sZ])?"
      "|[^RHULOsZNJ]?[UOMZ]+[LOMs]*(?:q[sZ])?"
      "|[NJ]{1,3}"
      "|S?[^SWRHULOsZNJ]+R*"
      "|[SWR]*R+"
      "|[SWR]+(?![^SWR])"
      "|[SWR]+");
  Rng rng(7);
  for (int round = 0; round < 20000; ++round) {
    std::string text, letters;
    std::vector<size_t> ends;  // of each character in `text`
    for (uint64_t i = rng.below(14) + 1; i > 0; --i) {
      const Stand& stand = kStands[rng.below(std::size(kStands))];
      text += stand.character;
      letters += stand.letter;
      ends.push_back(text.size());
    }
    Pieces expected;
    size_t from = 0;
    for (auto at = letters.cbegin(); at != letters.cend();) {
      std::smatch match;
      ASSERT_TRUE(std::regex_search(at, letters.cend(), match, expression,
                                    std::regex_constants::match_continuous));
      at += match.length();
      const size_t to = ends[static_cast<size_t>(at - letters.cbegin()) - 1];
      expected.push_back(text.substr(from, to - from));
      from = to;
    }
    ASSERT_EQ(split(text), expected) << text << " = " << letters;
  }
}

TEST(Splitter, gives_back_any_bytes) {
  Rng rng(3);
  for (int round = 0; round < 3000; ++round) {
    std::string text(rng.below(60), ' ');
    for (char& c : text) c = static_cast<char>(rng.next());
    const Pieces pieces = split(text);
    ASSERT_EQ(joined(pieces), text);
    for (const std::string& piece : pieces) ASSERT_FALSE(piece.empty());
  }
}

TEST(Splitter, takes_long_hostile_text) {
  std::string mixed;  // to the wrapper many runs, to the expression one piece
  for (int i = 0; i < 250000; ++i) mixed += "\x1c!";
  EXPECT_EQ(split(mixed).size(), 2U);
  for (const std::string unit : {" ", "a", "A", "\u0301", "\n", "!", "'", "1", "\u4eba", "aA",
                                 "\u0301A", " \u0301", "\u3000\n"}) {
    std::string text;
    while (text.size() < 1000000) text += unit;
    EXPECT_EQ(joined(split(text)).size(), text.size()) << unit;
  }
}

}  // namespace
}  // namespace triax::text
