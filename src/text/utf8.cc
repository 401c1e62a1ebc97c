// See utf8.h. The ranges are table 3-7 of the Unicode standard.
#include "text/utf8.h"

namespace triax::text {
namespace {

struct Lead {
  int bytes;                             // of the whole sequence; 0: starts none
  unsigned char second_min, second_max;  // the second byte's range
};

Lead lead_of(unsigned char byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xc2) return {0, 0, 0};
  if (byte < 0xe0) return {2, 0x80, 0xbf};
  if (byte == 0xe0) return {3, 0xa0, 0xbf};
  if (byte == 0xed) return {3, 0x80, 0x9f};
  if (byte < 0xf0) return {3, 0x80, 0xbf};
  if (byte == 0xf0) return {4, 0x90, 0xbf};
  if (byte < 0xf4) return {4, 0x80, 0xbf};
  if (byte == 0xf4) return {4, 0x80, 0x8f};
  return {0, 0, 0};
}

}  // namespace

Utf8Step utf8_step(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  const Lead lead = lead_of(first);
  if (lead.bytes == 0) {
    return {Utf8State::kInvalid, 1, 0};
  }
  if (lead.bytes == 1) {
    return {Utf8State::kValid, 1, first};
  }
  char32_t point = first & (0x7fU >> lead.bytes);
  for (int i = 1; i < lead.bytes; ++i) {
    if (static_cast<size_t>(i) == text.size()) {
      return {Utf8State::kIncomplete, i, 0};
    }
    const auto byte = static_cast<unsigned char>(text[static_cast<size_t>(i)]);
    const unsigned char low = i == 1 ? lead.second_min : 0x80;
    const unsigned char high = i == 1 ? lead.second_max : 0xbf;
    if (byte < low || byte > high) {
      return {Utf8State::kInvalid, i, 0};
    }
    point = (point << 6) | (byte & 0x3fU);
  }
  return {Utf8State::kValid, lead.bytes, point};
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string valid;
  valid.reserve(text.size());
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    const auto bytes = static_cast<size_t>(step.bytes);
    valid += step.state == Utf8State::kValid ? text.substr(0, bytes) : "\xef\xbf\xbd";
    text.remove_prefix(bytes);
  }
  return valid;
}

}  // namespace triax::text
