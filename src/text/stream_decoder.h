// Token ids -> text, token by token, never breaking a character.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "text/tokenizer.h"

namespace triax::text {

/// What a special token prints.
enum class SpecialText { kShow, kHide };

/// Turns a stream of ids into valid UTF-8. Bytes of a character that is not complete yet are held
/// back (at most 3); bytes that can become no character give U+FFFD, one for each maximal invalid
/// subpart. The pieces, joined, equal replace_invalid_utf8(tokenizer.decode(ids)) when special
/// tokens are shown. A hidden special token still ends a character: what is held becomes U+FFFD.
/// Ownership  refers to the tokenizer; a value of 16 bytes, copied to branch or to retry
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, SpecialText special = SpecialText::kShow);

  /// The text that becomes certain with this token; often empty. Ids outside the vocabulary print
  /// nothing.
  std::string push(int32_t id);

  /// The same for bytes that come from elsewhere.
  std::string push_bytes(std::string_view bytes);

  /// Ends the stream: U+FFFD when a character is incomplete, else nothing. Ready for a new stream.
  std::string finish();

  /// Bytes held back.
  int held_bytes() const { return held_bytes_; }

 private:
  const Tokenizer* tokenizer_;
  char held_[3] = {};
  uint8_t held_bytes_ = 0;
  SpecialText special_;
};

}  // namespace triax::text
