// How the engine names and describes what it puts into a store.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "cache/key.h"
#include "store/blob.h"

namespace triax::engine {

/// A boundary, its state, its partial page and its tokens have the key of exactly its tokens; a
/// whole page that of the prefix that it ends. Keys begin with the fingerprint.
inline store::BlobKey blob(const cache::Key& key, store::BlobKind kind) {
  return {key.low, key.high, kind};
}

/// The note of a boundary.
inline std::vector<std::byte> note_of(uint64_t fingerprint) {
  std::vector<std::byte> note(sizeof(fingerprint));
  std::memcpy(note.data(), &fingerprint, sizeof(fingerprint));
  return note;
}

/// Root of the keys, then the tokens.
inline std::vector<std::byte> encode_tokens(const cache::Key& root,
                                            std::span<const int32_t> tokens) {
  std::vector<std::byte> bytes(sizeof(root) + tokens.size_bytes());
  std::memcpy(bytes.data(), &root, sizeof(root));
  std::memcpy(bytes.data() + sizeof(root), tokens.data(), tokens.size_bytes());
  return bytes;
}

/// False: nothing that encode_tokens wrote of at least one token.
inline bool decode_tokens(std::span<const std::byte> bytes, cache::Key* root,
                          std::vector<int32_t>* tokens) {
  if (bytes.size() <= sizeof(*root) || (bytes.size() - sizeof(*root)) % sizeof(int32_t) != 0) {
    return false;
  }
  std::memcpy(root, bytes.data(), sizeof(*root));
  tokens->resize((bytes.size() - sizeof(*root)) / sizeof(int32_t));
  std::memcpy(tokens->data(), bytes.data() + sizeof(*root), tokens->size() * sizeof(int32_t));
  return true;
}

}  // namespace triax::engine
