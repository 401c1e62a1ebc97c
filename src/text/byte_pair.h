// Byte-pair merging of one piece of text: lowest rank first, leftmost among equals.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/vocabulary.h"

namespace triax::text {

/// Encodes pieces one after the other and reuses its memory between them.
/// Ownership  refers to the vocabulary
/// Threads    one object, one thread
class BytePairEncoder {
 public:
  explicit BytePairEncoder(const Vocabulary& vocabulary) : vocabulary_(&vocabulary) {}

  /// Appends the ranks of `piece`, which is not empty: one rank when the piece is a token, else
  /// single bytes merged while two neighbours form a token. O(n^2) up to a small constant length,
  /// O(n log n) beyond.
  void encode(std::string_view piece, std::vector<int32_t>& ids);

 private:
  struct Part {
    uint32_t start;
    uint32_t rank;  // of this part joined with the next
  };
  struct Node {
    uint32_t previous, next;  // starts of the neighbours; the piece's size past the end
    uint32_t rank;            // of this part joined with the next
  };

  void encode_short(std::string_view piece, std::vector<int32_t>& ids);
  void encode_long(std::string_view piece, std::vector<int32_t>& ids);
  /// Sets the rank of the node at `start` from its present neighbours and queues it.
  void queue_node(std::string_view piece, uint32_t start);

  const Vocabulary* vocabulary_;
  std::vector<Part> parts_;
  std::vector<Node> nodes_;      // by start; only starts of present parts are meaningful
  std::vector<uint64_t> queue_;  // a heap of rank << 32 | start, least first; may hold old entries
};

}  // namespace triax::text
