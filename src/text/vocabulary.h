// The ranks of a byte-level BPE vocabulary in tiktoken's text format: bytes <-> rank.
// Knows nothing of special tokens or of how text is split.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace triax::text {

/// Token strings by rank, and the reverse.
/// Ownership  views point into this object and live as long as it does (moves keep them valid)
/// Threads    const members may be called from several threads
class Vocabulary {
 public:
  static constexpr uint32_t kNoRank = 0xffffffffU;

  /// Reads `text`: one line `base64 SPACE rank` a token, rank = number of the line from 0. The last
  /// line may lack its line break. `name` stands for the file in messages.
  /// Errors     kDataLoss, with the line (from 1): bad base64, an empty token, a rank out of order,
  ///            a token given twice, one of the 256 single bytes missing, more than 2^24 tokens
  static Result<Vocabulary> parse(std::string_view text, const std::string& name);

  Vocabulary() = default;
  Vocabulary(Vocabulary&&) = default;
  Vocabulary& operator=(Vocabulary&&) = default;

  uint32_t size() const { return static_cast<uint32_t>(starts_.size()) - 1; }

  /// The token's bytes; rank < size().
  std::string_view bytes(uint32_t rank) const {
    return {arena_.data() + starts_[rank], starts_[rank + 1] - starts_[rank]};
  }

  /// The rank of exactly these bytes, or kNoRank.
  uint32_t find(std::string_view bytes) const;

  /// The rank of a single byte; there always is one.
  uint32_t byte_rank(unsigned char byte) const { return byte_ranks_[byte]; }

  /// Bytes of the longest token.
  uint32_t longest_bytes() const { return longest_bytes_; }

 private:
  struct Slot {
    uint32_t rank = kNoRank;
    uint32_t tag = 0;
  };

  Status parse_lines(std::string_view text, const std::string& name);
  Status index(const std::string& name);

  std::vector<char> arena_;             // all tokens, one after the other
  std::vector<uint32_t> starts_ = {0};  // starts_[rank] .. starts_[rank + 1]
  std::vector<Slot> slots_;             // open addressing, a power of two
  std::vector<uint32_t> byte_ranks_;    // 256
  uint32_t longest_bytes_ = 0;
};

}  // namespace triax::text
