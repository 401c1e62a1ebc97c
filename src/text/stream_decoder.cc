// See stream_decoder.h.
#include "text/stream_decoder.h"

#include "text/utf8.h"

namespace triax::text {

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, SpecialText special)
    : tokenizer_(&tokenizer), special_(special) {}

std::string StreamDecoder::push(int32_t id) {
  if (special_ == SpecialText::kHide && tokenizer_->is_special(id)) {
    return finish();
  }
  return push_bytes(tokenizer_->bytes(id));
}

std::string StreamDecoder::push_bytes(std::string_view bytes) {
  std::string all(held_, held_bytes_);
  all += bytes;
  held_bytes_ = 0;
  size_t complete = all.size();
  // Only the last three bytes can belong to a character that is cut off.
  for (size_t start = all.size() < 3 ? 0 : all.size() - 3; start < all.size(); ++start) {
    const Utf8Step step = utf8_step(std::string_view(all).substr(start));
    if (step.state == Utf8State::kIncomplete) {
      complete = start;
      break;
    }
  }
  for (size_t i = complete; i < all.size(); ++i) {
    held_[held_bytes_++] = all[i];
  }
  all.resize(complete);
  return replace_invalid_utf8(all);
}

std::string StreamDecoder::finish() {
  const bool incomplete = held_bytes_ > 0;
  held_bytes_ = 0;
  return incomplete ? "\xef\xbf\xbd" : "";
}

}  // namespace triax::text
