// Names of token prefixes: chained hashes of blocks of 64 tokens. Knows tokens, no model.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace triax::cache {

/// Tokens a page holds, and the unit of matching.
inline constexpr int64_t kBlock = 64;

/// The name of a token prefix: a hash of every token up to its end, of the model and of the layout.
/// Equal keys mean equal prefixes: 128 bits make an accidental collision among 10^12 prefixes less
/// likely than 10^-14. Not made against attackers: give tenants that distrust each other salts.
struct Key {
  uint64_t low = 0;
  uint64_t high = 0;
  bool operator==(const Key&) const = default;
  auto operator<=>(const Key&) const = default;
};

/// The key of a prefix that goes on from `parent` with content of that number; for traces, whose
/// blocks have ids and no tokens.
Key chained(Key parent, uint64_t content);

/// The key of `parent`'s prefix and 1..64 more tokens. Fewer than 64: the key of exactly that many.
Key chained(Key parent, std::span<const int32_t> tokens);

/// The key of the empty prefix. Whatever changes the meaning of a stored state belongs in here:
/// model, quantisation and layout in the fingerprint, the tenant in the salt.
Key root_key(uint64_t fingerprint, uint64_t salt = 0);

/// A token sequence as the cache sees it. A view: it and what it refers to live through the call.
struct Prompt {
  std::span<const Key> blocks;   // blocks[i] names the prefix of 64 (i + 1) tokens
  int64_t tokens = 0;            // in all; blocks.size() == tokens / 64
  std::span<const int32_t> ids;  // all tokens, or empty: only boundaries at multiples of 64 match
  Key root;                      // names the empty prefix; of use with ids only
};

/// The key of a prompt's first `tokens` tokens; within a block it needs ids and root.
Key key_of(const Prompt& prompt, int64_t tokens);

/// Hashes a sequence as it grows; each token is hashed once (a remainder again when asked for).
class BlockHasher {
 public:
  explicit BlockHasher(Key root) : root_(root) {}

  void append(std::span<const int32_t> tokens);

  int64_t tokens() const { return static_cast<int64_t>(ids_.size()); }
  /// Of the whole sequence; valid until the next append.
  Prompt prompt() const { return {blocks_, tokens(), ids_, root_}; }
  /// Of the first `tokens` tokens.
  Key key_at(int64_t tokens) const { return key_of(prompt(), tokens); }

 private:
  Key root_;
  std::vector<Key> blocks_;
  std::vector<int32_t> ids_;
};

}  // namespace triax::cache

template <>
struct std::hash<triax::cache::Key> {
  size_t operator()(const triax::cache::Key& key) const { return key.low; }
};
