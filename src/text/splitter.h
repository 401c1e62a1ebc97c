// Cuts text into the pieces within which byte-pair merging happens: Kimi's regular expression.
// Knows no vocabulary.
#pragma once

#include <memory>
#include <string_view>

#include "base/function_ref.h"
#include "base/status.h"

struct pcre2_real_code_8;

namespace triax::text {

/// The pre-tokenizer of Kimi K2, Kimi Linear and K3, exact for the Unicode version of PCRE2.
/// Pieces come in order and their concatenation is the input, whatever its bytes are:
///  1. a byte that is no part of a well-formed UTF-8 sequence is a piece of its own;
///  2. each stretch of valid UTF-8 between such bytes is cut every 400,000 characters, and there
///     inside runs of more than 25,000 white-space or other characters, after each 25,000;
///  3. what results is matched alone, leftmost alternative first.
/// Rule 2 is what the vendor's wrapper does (it never sees invalid UTF-8). A piece can have up to
/// 400,000 characters: control characters that only the wrapper takes for white space do that.
/// Threads    const members may be called from several threads
class Splitter {
 public:
  /// Errors     kInternal when PCRE2 cannot compile the expression (built without Unicode)
  static Result<Splitter> create();

  /// Calls piece(bytes) for each piece, none of them empty; views point into `text`.
  /// Never fails: should PCRE2 run out of memory, the next character becomes a piece.
  void split(std::string_view text, FunctionRef<void(std::string_view)> piece) const;

 private:
  struct CodeDeleter {
    void operator()(pcre2_real_code_8* code) const;
  };
  std::unique_ptr<pcre2_real_code_8, CodeDeleter> code_;
  bool jit_ = false;
};

}  // namespace triax::text
