// A vocabulary as a tree of bytes, laid out for one walk in order.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace triax::text::internal {

/// Tokens sorted by their bytes, in preorder: a node's children follow it up to `skip`.
struct TrieNode {
  uint8_t byte;
  uint16_t depth;  // bytes before this one
  int32_t token;   // that ends here, -1: none
  uint32_t skip;   // the first node behind this one's subtree
};

class TokenTrie {
 public:
  /// Tokens of at most so many plain characters (form.h) and nothing else are kept apart, by their
  /// number: where all plain characters are alike, as within a string, they need no look each.
  static constexpr uint32_t kPlainMax = 16;

  explicit TokenTrie(const Tokenizer& tokenizer);

  std::span<const TrieNode> all() const { return all_; }
  std::span<const TrieNode> others() const { return others_; }  // but the plain ones
  /// Those of 1 to `characters` characters.
  std::span<const uint64_t> plain_mask(uint32_t characters) const { return plain_[characters]; }
  uint32_t depth_max() const { return depth_max_; }

  int32_t ranks() const { return ranks_; }
  int32_t size() const { return size_; }
  int64_t mask_words() const { return (size_ + 63) / 64; }
  std::string_view bytes(int32_t rank) const {
    const auto i = static_cast<size_t>(rank);
    return {arena_.data() + starts_[i], starts_[i + 1] - starts_[i]};
  }

 private:
  std::vector<TrieNode> build(std::vector<int32_t> ranks);

  int32_t ranks_ = 0;
  int32_t size_ = 0;
  uint32_t depth_max_ = 0;
  std::vector<char> arena_;
  std::vector<size_t> starts_;
  std::vector<TrieNode> all_, others_;
  std::array<std::vector<uint64_t>, kPlainMax + 1> plain_;
};

}  // namespace triax::text::internal
