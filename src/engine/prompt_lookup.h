// Drafts by prompt lookup: what followed the last few tokens when they came before.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace triax::engine {

/// An index of one sequence's tokens by their last three and last two. Costs a few bytes a token;
/// knows no model.
class PromptLookup {
 public:
  void append(std::span<const int32_t> tokens);

  /// At most `count` tokens that followed the latest earlier place where the last three tokens, or
  /// else the last two, stood. Empty when there is none.
  std::vector<int32_t> propose(int64_t count) const;

 private:
  static constexpr size_t kLongest = 3;
  static constexpr size_t kShortest = 2;

  std::vector<int32_t> tokens_;
  // By the hash of `n` tokens: the index behind them, where they stood last and before that.
  struct Places {
    size_t last = 0;
    size_t before = 0;
  };
  std::unordered_map<uint64_t, Places> places_;
};

/// How many tokens to draft: doubles while whole drafts are accepted, halves when none of one is.
class DraftLength {
 public:
  explicit DraftLength(int64_t longest) : longest_(longest), length_(longest) {}
  int64_t length() const { return length_; }
  void observe(int64_t drafted, int64_t accepted);

 private:
  int64_t longest_;
  int64_t length_;
};

}  // namespace triax::engine
