// See splitter.h.
#include "text/splitter.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <string>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "text/utf8.h"

namespace triax::text {
namespace {

constexpr int kCharactersMax = 400'000;
constexpr int kRunMax = 25'000;

/// The vendor's expression in PCRE2's terms, alternative by alternative.
std::string pattern() {
  // White_Space, spelt out: PCRE2's \s also takes U+180E.
  const std::string space =
      R"(\t-\r \x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
  // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]] and the same with Ll for Lu, Lt, as complements of
  // all other general categories: PCRE2 has no `&&`, and a look-ahead before each character would
  // cost stack for each. `sc:` is the script itself; the bare name would be its extensions.
  const std::string upper = R"([^\p{Ll}\p{C}\p{N}\p{P}\p{S}\p{Z}\p{sc:Han}])";
  const std::string lower = R"([^\p{Lu}\p{Lt}\p{C}\p{N}\p{P}\p{S}\p{Z}\p{sc:Han}])";
  const std::string before = R"([^\r\n\p{L}\p{N}]?)";
  const std::string contraction = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)";
  const std::array<std::string, 8> alternatives = {
      R"(\p{sc:Han}+)",
      before + upper + "*" + lower + "+" + contraction,
      before + upper + "+" + lower + "*" + contraction,
      R"(\p{N}{1,3})",
      " ?[^" + space + R"(\p{L}\p{N}]+[\r\n]*)",
      "[" + space + R"(]*[\r\n]+)",
      "[" + space + "]+(?![^" + space + "])",
      "[" + space + "]+",
  };
  std::string joined;
  for (const std::string& alternative : alternatives) {
    joined += joined.empty() ? alternative : "|" + alternative;
  }
  return joined;
}

/// What Python's str.isspace() takes: White_Space and the four separators U+001C to U+001F.
bool is_python_space(char32_t c) {
  if (c < 0x80) {
    return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20);
  }
  return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
         c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

/// Bytes of valid UTF-8 at the start of `text`.
size_t valid_bytes(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    uint64_t word;
    if (text.size() - i >= sizeof(word)) {
      std::memcpy(&word, text.data() + i, sizeof(word));
      if ((word & 0x8080808080808080ULL) == 0) {
        i += sizeof(word);
        continue;
      }
    }
    const Utf8Step step = utf8_step(text.substr(i));
    if (step.state != Utf8State::kValid) {
      break;
    }
    i += static_cast<size_t>(step.bytes);
  }
  return i;
}

/// Rule 2 of the header on one stretch of valid UTF-8: calls segment(bytes) for each part.
void cut_runs(std::string_view text, FunctionRef<void(std::string_view)> segment) {
  if (text.size() <= kRunMax) {
    segment(text);
    return;
  }
  size_t start = 0, at = 0;
  int characters = 0, run = 0;
  bool space = false;
  const auto cut = [&] {
    segment(text.substr(start, at - start));
    start = at;
    run = 0;
  };
  while (at < text.size()) {
    const Utf8Step step = utf8_step(text.substr(at));
    const bool now = is_python_space(step.point);
    if (characters == kCharactersMax) {
      cut();
      characters = 0;
    } else if (now == space && run == kRunMax) {
      cut();
    }
    run = now == space ? run + 1 : 1;
    space = now;
    ++characters;
    at += static_cast<size_t>(step.bytes);
  }
  cut();
}

/// The state of matching that one call of split() needs.
class Matcher {
 public:
  Matcher(const pcre2_code* code, bool jit)
      : code_(code),
        jit_(jit),
        data_(pcre2_match_data_create(1, nullptr)),
        context_(pcre2_match_context_create(nullptr)) {
    if (context_ != nullptr) {
      pcre2_set_match_limit(context_, UINT32_MAX);
      pcre2_set_depth_limit(context_, UINT32_MAX);
      pcre2_set_heap_limit(context_, UINT32_MAX);
    }
  }
  ~Matcher() {
    pcre2_match_context_free(context_);
    pcre2_match_data_free(data_);
  }
  Matcher(const Matcher&) = delete;
  Matcher& operator=(const Matcher&) = delete;

  /// The piece that starts at `offset` of a valid `text`.
  std::string_view piece(std::string_view text, size_t offset) {
    if (data_ != nullptr) {
      const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
      int found = PCRE2_ERROR_JIT_STACKLIMIT;
      if (jit_) {
        found = pcre2_jit_match(code_, subject, text.size(), offset, 0, data_, context_);
      }
      if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
        found = pcre2_match(code_, subject, text.size(), offset, PCRE2_NO_JIT | PCRE2_NO_UTF_CHECK,
                            data_, context_);
      }
      const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data_);
      if (found >= 0 && range[0] == offset && range[1] > offset) {
        return text.substr(offset, range[1] - offset);
      }
    }
    return text.substr(offset, static_cast<size_t>(utf8_step(text.substr(offset)).bytes));
  }

 private:
  const pcre2_code* code_;
  bool jit_;
  pcre2_match_data* data_;
  pcre2_match_context* context_;
};

}  // namespace

void Splitter::CodeDeleter::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }

Result<Splitter> Splitter::create() {
  const std::string expression = pattern();
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &offset, nullptr);
  if (code == nullptr) {
    PCRE2_UCHAR message[256] = {};
    pcre2_get_error_message(error, message, sizeof(message));
    return Status::internal(fmt::format(
        "tokenizer: PCRE2 cannot compile the splitting expression: {} at offset {}; PCRE2 10.40 or "
        "later with Unicode support is needed",
        reinterpret_cast<const char*>(message), offset));
  }
  Splitter splitter;
  splitter.code_.reset(code);
  splitter.jit_ = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0;
  return splitter;
}

void Splitter::split(std::string_view text, FunctionRef<void(std::string_view)> piece) const {
  Matcher matcher(code_.get(), jit_);
  const auto match_segment = [&](std::string_view segment) {
    for (size_t at = 0; at < segment.size();) {
      const std::string_view found = matcher.piece(segment, at);
      piece(found);
      at += found.size();
    }
  };
  while (!text.empty()) {
    const size_t valid = valid_bytes(text);
    if (valid > 0) {
      cut_runs(text.substr(0, valid), match_segment);
      text.remove_prefix(valid);
    } else {
      piece(text.substr(0, 1));
      text.remove_prefix(1);
    }
  }
}

}  // namespace triax::text
