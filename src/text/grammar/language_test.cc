// Regular expressions and grammars: what they take, what they refuse, what is said of bad ones.
#include <gtest/gtest.h>

#include <functional>
#include <regex>

#include "text/grammar/grammar_testing.h"

namespace triax::text {
namespace {

TEST(Regex, TakesWhatItSays) {
  ConstraintRig rig(test_tokenizer());
  const auto takes_whole = [&](const char* pattern, const char* text) {
    return matches(rig.tokenizer, rig.compile(Kind::kRegex, pattern), text);
  };
  EXPECT_TRUE(takes_whole(R"((?:\+49|0)\d{2,4}[ -]?\d+)", "+4930 123456"));
  EXPECT_TRUE(takes_whole(R"(^a|b$)", "b"));
  EXPECT_TRUE(takes_whole(R"([^\d\s]+?)", "\xe4\xba\xba!"));
  EXPECT_FALSE(takes_whole(R"([^\d\s]+)", "a1"));
  EXPECT_TRUE(takes_whole(R"(\u4eba{2}\u{1F600}\x41)",
                          "\xe4\xba\xba\xe4\xba\xba\xf0\x9f\x98\x80"
                          "A"));
  EXPECT_TRUE(takes_whole(R"([a\-z]+)", "a-z"));
  EXPECT_FALSE(takes_whole(R"([a\-z]+)", "b"));
  EXPECT_TRUE(takes_whole(R"([a-]{3})", "a-a"));
  EXPECT_TRUE(takes_whole(R"(x{a})", "x{a}"));
  EXPECT_TRUE(takes_whole(R"((?<year>[0-9]{4})?)", ""));
  EXPECT_FALSE(takes_whole(".", "\n"));
  EXPECT_TRUE(takes_whole("", ""));
}

TEST(Regex, AgreesWithTheStandardLibraryOnRandomExpressions) {
  ConstraintRig rig(test_tokenizer());
  Rng rng(5);
  const auto pick = [&](const std::vector<std::string>& list) {
    return list[rng.next() % list.size()];
  };
  const std::function<std::string(int)> make = [&](int depth) -> std::string {
    if (depth == 0) {
      return pick({"a", "b", "c", "[ab]", "[^a]", "a?", "b*", "c+", "[b-c]{1,2}"});
    }
    const std::string x = make(depth - 1);
    const std::string y = make(depth - 1);
    return pick(
        {x + y, "(" + x + "|" + y + ")", "(" + x + ")" + pick({"*", "+", "?", "{2}", "{0,2}"})});
  };
  int64_t compared = 0;
  for (int i = 0; i < 150; ++i) {
    const std::string pattern = make(3);
    const SharedConstraint constraint = rig.compile(Kind::kRegex, pattern);
    const std::regex judge(pattern);
    for (int j = 0; j < 60; ++j) {
      std::string text;
      for (uint64_t n = rng.next() % 7; n-- > 0;) {
        text += "abc"[rng.next() % 3];
      }
      EXPECT_EQ(matches(rig.tokenizer, constraint, text), std::regex_match(text, judge))
          << pattern << " " << text;
      ++compared;
    }
  }
  EXPECT_EQ(compared, 9000);
}

TEST(Regex, ErrorsNameThePlace) {
  ConstraintRig rig(test_tokenizer());
  const std::pair<const char*, const char*> list[] = {
      {"ab(", "regex:3: "},          {"a)", "regex:1: ')' without '('"},
      {"a**", "regex:2: "},          {"*a", "regex:0: '*' has nothing"},
      {R"(\1)", "back-reference"},   {R"(a\b)", "word boundaries"},
      {"(?!a)", "look-around"},      {"(?i)a", "flags"},
      {"a{3,2}", "out of order"},    {"[z-a]", "out of order"},
      {"[a", "'[' without ']'"},     {R"(\p{L})", "\\p"},
      {"a$b", "'$' may only"},       {"(^a)", "'^' is only"},
      {"a{999999}", "count above"},  {"((a{90000}){90000}){9}", "states"},
      {R"(\ud800)", "no character"}, {"\xff", "not UTF-8"},
  };
  for (const auto& [pattern, message] : list) {
    EXPECT_NE(rig.error(Kind::kRegex, pattern).find(message), std::string::npos)
        << pattern << " says: " << rig.error(Kind::kRegex, pattern);
  }
  EXPECT_NE(rig.error(Kind::kRegex, std::string(100'000, '(')).find("nested"), std::string::npos);
}

TEST(Regex, AmbiguousRepetitionCostsNoMoreThanItsStates) {
  ConstraintRig rig(test_tokenizer());
  const SharedConstraint constraint = rig.compile(Kind::kRegex, "((a|aa)+)+b");
  EXPECT_TRUE(matches(rig.tokenizer, constraint, std::string(2000, 'a') + "b"));
  EXPECT_LT(constraint->bytes(), 1 << 20);
}

TEST(Grammar, TakesWhatItSays) {
  ConstraintRig rig(test_tokenizer());
  const SharedConstraint sum = rig.compile(Kind::kGrammar, R"x(
# sums and products
root   ::= term (ws [-+] ws term)*
term   ::= factor ("*" factor)*    # binds tighter
factor ::= [0-9]{1,3} |
           "(" root ")"
ws     ::= " "?
)x");
  EXPECT_TRUE(matches(rig.tokenizer, sum, "1+(2*300 - 4)*5"));
  EXPECT_FALSE(matches(rig.tokenizer, sum, "1+"));
  EXPECT_FALSE(matches(rig.tokenizer, sum, "1000"));
  EXPECT_FALSE(matches(rig.tokenizer, sum, "(1"));
  const SharedConstraint text = rig.compile(
      Kind::kGrammar, "root ::= \"\\\"\\u00e9\\n\" .{2,} x+\nx ::= \"1\" \"2\" | \"ab\"");
  EXPECT_TRUE(matches(rig.tokenizer, text, "\"\xc3\xa9\nzzzab12"));
  EXPECT_FALSE(matches(rig.tokenizer, text, "\"\xc3\xa9\nzzz"));
}

TEST(Grammar, ErrorsNameLineAndColumn) {
  ConstraintRig rig(test_tokenizer());
  const std::pair<const char*, const char*> list[] = {
      {"root ::= x", "grammar:1:10: the rule 'x' is not defined"},
      {"root ::= \"a\"\nroot ::= \"b\"", "grammar:2:1: the rule 'root' is defined twice"},
      {"a ::= \"a\"", "there is no rule 'root'"},
      {"root ::= \"a", "grammar:1:10: "},
      {"root ::= (\"a\"", "'(' without ')'"},
      {"root ::= [a", "'[' without ']'"},
      {"root = \"a\"", "expected 'name ::='"},
      {"root ::= root \"a\" | \"b\"", "left recursion"},
      {"root ::= x x root \"a\" | \"b\"\nx ::= \"c\"?", "left recursion"},
      {"root ::= \"a\" root", "nothing has this form"},
      {"root ::= \"a\"{2,1}", "expected {n}"},
      {"root ::= \"\\q\"", "not supported"},
      {"", "there is no rule 'root'"},
  };
  for (const auto& [grammar, message] : list) {
    EXPECT_NE(rig.error(Kind::kGrammar, grammar).find(message), std::string::npos)
        << grammar << " says: " << rig.error(Kind::kGrammar, grammar);
  }
  EXPECT_NE(rig.error(Kind::kGrammar, "root ::= " + std::string(100'000, '(')).find("nested"),
            std::string::npos);
}

}  // namespace
}  // namespace triax::text
