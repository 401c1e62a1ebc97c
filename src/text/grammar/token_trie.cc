// Sorts the vocabulary and writes its tree in preorder.
#include "text/grammar/token_trie.h"

#include <algorithm>

#include "text/grammar/form.h"
#include "text/utf8.h"

namespace triax::text::internal {
namespace {

/// How many plain characters the bytes are; 0 when there are others, or more than kPlainMax.
uint32_t plain_characters_of(std::string_view bytes) {
  uint32_t count = 0;
  for (; !bytes.empty(); ++count) {
    const Utf8Step step = utf8_step(bytes);
    if (step.state != Utf8State::kValid || count == TokenTrie::kPlainMax ||
        !plain_characters().contains(step.point)) {
      return 0;
    }
    bytes.remove_prefix(static_cast<size_t>(step.bytes));
  }
  return count;
}

}  // namespace

TokenTrie::TokenTrie(const Tokenizer& tokenizer)
    : ranks_(tokenizer.ranks()), size_(tokenizer.size()), starts_({0}) {
  for (std::vector<uint64_t>& mask : plain_) {
    mask.assign(static_cast<size_t>(mask_words()), 0);
  }
  std::vector<int32_t> every, others;
  for (int32_t rank = 0; rank < ranks_; ++rank) {
    const std::string_view bytes = tokenizer.bytes(rank);
    arena_.insert(arena_.end(), bytes.begin(), bytes.end());
    starts_.push_back(arena_.size());
    every.push_back(rank);
    const uint32_t characters = plain_characters_of(bytes);
    if (characters == 0) {
      others.push_back(rank);
      continue;
    }
    for (uint32_t n = characters; n <= kPlainMax; ++n) {
      plain_[n][static_cast<size_t>(rank) / 64] |= uint64_t{1} << (rank % 64);
    }
  }
  all_ = build(std::move(every));
  others_ = build(std::move(others));
}

std::vector<TrieNode> TokenTrie::build(std::vector<int32_t> ranks) {
  std::sort(ranks.begin(), ranks.end(), [&](int32_t a, int32_t b) { return bytes(a) < bytes(b); });
  std::vector<TrieNode> nodes;
  std::vector<uint32_t> open;  // the nodes on the way to the last one
  std::string_view last;
  const auto close_to = [&](size_t depth) {
    for (; open.size() > depth; open.pop_back()) {
      nodes[open.back()].skip = static_cast<uint32_t>(nodes.size());
    }
  };
  for (const int32_t rank : ranks) {
    const std::string_view text = bytes(rank);
    const auto shared = static_cast<size_t>(
        std::mismatch(text.begin(), text.end(), last.begin(), last.end()).first - text.begin());
    close_to(shared);
    for (size_t depth = shared; depth < text.size(); ++depth) {
      open.push_back(static_cast<uint32_t>(nodes.size()));
      nodes.push_back({.byte = static_cast<uint8_t>(text[depth]),
                       .depth = static_cast<uint16_t>(depth),
                       .token = depth + 1 == text.size() ? rank : -1,
                       .skip = 0});
    }
    depth_max_ = std::max(depth_max_, static_cast<uint32_t>(text.size()));
    last = text;
  }
  close_to(0);
  return nodes;
}

}  // namespace triax::text::internal
