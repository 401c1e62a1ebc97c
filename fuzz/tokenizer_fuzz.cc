// Bytes as a vocabulary file, and as text: encoding, decoding and streaming must agree.
// The first byte chooses: odd = the rest is a vocabulary, even = the rest is text.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "text/stream_decoder.h"
#include "text/test_vocabulary.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace {

using namespace triax;
using namespace triax::text;

const Tokenizer& tokenizer() {
  static const Tokenizer made = test_tokenizer();
  return made;
}

void check_round_trip(const Tokenizer& with, std::string_view text) {
  const std::vector<int32_t> ids = with.encode(text);
  for (const int32_t id : ids) {
    check(id >= 0 && id < with.ranks(), "text became a special token");
  }
  check(with.decode(ids) == text, "decoding gives other bytes than were encoded");

  StreamDecoder decoder(with);
  std::string streamed;
  for (const int32_t id : ids) {
    const std::string part = decoder.push(id);
    check(replace_invalid_utf8(part) == part, "the stream has invalid UTF-8");
    streamed += part;
  }
  streamed += decoder.finish();
  check(streamed == replace_invalid_utf8(text), "the stream gives other text than the whole");
}

/// A vocabulary that parses finds each of its tokens and encodes.
void check_vocabulary(std::string_view file) {
  const auto parsed = Tokenizer::from_vocabulary_text(file, "fuzz", SpecialSet::kKimiK2);
  if (!parsed.ok()) {
    check(!parsed.status().message().empty(), "an error without a message");
    return;
  }
  std::string all;
  for (int32_t id = 0; id < parsed->ranks(); ++id) {
    all += parsed->bytes(id);
  }
  check_round_trip(*parsed, all);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) {
    return 0;
  }
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 1) {
    check_vocabulary(rest);
    // Most mutations break a byte's own line; with these lines before it, the rest matters too.
    check_vocabulary(vocabulary_text(test_tokens()) + std::string(rest));
  } else {
    check_round_trip(tokenizer(), rest);
  }
  return 0;
}
