#include "cache/key.h"

#include <algorithm>
#include <array>
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/check.h"

namespace triax::cache {
namespace {

Key hash_of(const void* data, size_t bytes) {
  const XXH128_hash_t hash = XXH3_128bits(data, bytes);
  return {hash.low64, hash.high64};
}

}  // namespace

Key chained(Key parent, uint64_t content) {
  const std::array<uint64_t, 3> input = {parent.low, parent.high, content};
  return hash_of(input.data(), sizeof input);
}

Key chained(Key parent, std::span<const int32_t> tokens) {
  check(!tokens.empty() && tokens.size() <= kBlock, "a block holds 1..64 tokens");
  struct {
    uint64_t low, high;
    int32_t ids[kBlock];
  } input;
  input.low = parent.low;
  input.high = parent.high;
  std::copy(tokens.begin(), tokens.end(), input.ids);
  return hash_of(&input, 2 * sizeof(uint64_t) + tokens.size_bytes());
}

Key root_key(uint64_t fingerprint, uint64_t salt) {
  const std::array<uint64_t, 2> input = {fingerprint, salt};
  return hash_of(input.data(), sizeof input);
}

void BlockHasher::append(std::span<const int32_t> tokens) {
  ids_.insert(ids_.end(), tokens.begin(), tokens.end());
  for (size_t begin = blocks_.size() * kBlock; begin + kBlock <= ids_.size(); begin += kBlock) {
    const Key parent = blocks_.empty() ? root_ : blocks_.back();
    blocks_.push_back(chained(parent, std::span(ids_).subspan(begin, kBlock)));
  }
}

Key key_of(const Prompt& prompt, int64_t tokens) {
  check(tokens >= 0 && tokens <= prompt.tokens, "key_of: beyond the prompt");
  const auto whole = static_cast<size_t>(tokens / kBlock);
  const auto rows = static_cast<size_t>(tokens % kBlock);
  check(rows == 0 || !prompt.ids.empty(), "key_of: a boundary within a block needs the tokens");
  const Key parent = whole == 0 ? prompt.root : prompt.blocks[whole - 1];
  return rows == 0 ? parent : chained(parent, prompt.ids.subspan(whole * kBlock, rows));
}

}  // namespace triax::cache
