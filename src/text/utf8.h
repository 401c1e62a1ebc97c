// UTF-8, one sequence at a time: valid, broken or cut off.
#pragma once

#include <string>
#include <string_view>

namespace triax::text {

enum class Utf8State {
  kValid,       // a character
  kInvalid,     // bytes that can start no character: one U+FFFD stands for them
  kIncomplete,  // the text ends inside a character
};

struct Utf8Step {
  Utf8State state = Utf8State::kInvalid;
  int bytes = 0;       // how many belong to it: 1 to 4
  char32_t point = 0;  // the character, when valid
};

/// What `text` starts with; `text` is not empty. No surrogates, no overlong forms, nothing above
/// U+10FFFF. Invalid bytes are grouped into maximal subparts, as the Unicode standard (3.9) and
/// WHATWG do, so the result depends on the bytes before the fault only and holds for any split.
Utf8Step utf8_step(std::string_view text);

/// `text` with one U+FFFD for each maximal invalid subpart, an incomplete end included.
std::string replace_invalid_utf8(std::string_view text);

}  // namespace triax::text
