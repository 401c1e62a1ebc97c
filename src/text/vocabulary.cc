// See vocabulary.h. Loading is on the path to the first token: one pass, one arena, one table.
#include "text/vocabulary.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <charconv>
#include <cstring>

namespace triax::text {
namespace {

constexpr uint32_t kTokensMax = 1U << 24;

constexpr std::array<int8_t, 256> base64_values() {
  std::array<int8_t, 256> values{};
  for (int8_t& value : values) value = -1;
  constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t i = 0; i < kAlphabet.size(); ++i) {
    values[static_cast<unsigned char>(kAlphabet[i])] = static_cast<int8_t>(i);
  }
  return values;
}
constexpr std::array<int8_t, 256> kBase64 = base64_values();

/// Decodes canonical base64 to `out`, which has room for 3/4 of it; the number of bytes, or -1.
int64_t decode_base64(std::string_view text, char* out) {
  if (text.empty() || text.size() % 4 != 0) {
    return -1;
  }
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  char* const begin = out;
  uint32_t group = 0;
  const size_t digits = text.size() - padding;
  for (size_t i = 0; i < digits; ++i) {
    const int8_t value = kBase64[static_cast<unsigned char>(text[i])];
    if (value < 0) {
      return -1;
    }
    group = (group << 6) | static_cast<uint32_t>(value);
    if (i % 4 == 3) {
      *out++ = static_cast<char>(group >> 16);
      *out++ = static_cast<char>(group >> 8);
      *out++ = static_cast<char>(group);
      group = 0;
    }
  }
  // The bits that padding leaves over are zero in canonical text.
  if (padding == 1) {
    if ((group & 3) != 0) return -1;
    *out++ = static_cast<char>(group >> 10);
    *out++ = static_cast<char>(group >> 2);
  } else if (padding == 2) {
    if ((group & 15) != 0) return -1;
    *out++ = static_cast<char>(group >> 4);
  }
  return out - begin;
}

/// Text of a damaged file, made fit for a message.
std::string quoted(std::string_view text) {
  constexpr size_t kShown = 32;
  std::string shown = "'";
  for (const char c : text.substr(0, kShown)) {
    if (c >= ' ' && c <= '~') {
      shown += c;
    } else {
      shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return shown + (text.size() > kShown ? "...'" : "'");
}

Status damaged(const std::string& name, uint32_t rank, const std::string& what) {
  return Status::data_loss(
      fmt::format("tokenizer: {}: line {}: {}; the file is damaged or no tiktoken vocabulary", name,
                  uint64_t{rank} + 1, what));
}

uint64_t mix(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t hash(std::string_view bytes) {
  constexpr uint64_t kA = 0x9e3779b97f4a7c15ULL, kB = 0xd6e8feb86659fd93ULL;
  uint64_t state = kA ^ bytes.size();
  while (bytes.size() > 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data(), 8);
    state = mix(state ^ word, kB);
    bytes.remove_prefix(8);
  }
  uint64_t word = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    word |= uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  }
  return mix(state ^ word, kA);
}

}  // namespace

Result<Vocabulary> Vocabulary::parse(std::string_view text, const std::string& name) {
  Vocabulary vocabulary;
  if (Status status = vocabulary.parse_lines(text, name); !status.ok()) {
    return status;
  }
  if (Status status = vocabulary.index(name); !status.ok()) {
    return status;
  }
  return vocabulary;
}

Status Vocabulary::parse_lines(std::string_view text, const std::string& name) {
  if (text.empty()) {
    return Status::data_loss(fmt::format("tokenizer: {}: the file is empty", name));
  }
  if (text.size() > 0xffffffffU) {
    return Status::data_loss(fmt::format(
        "tokenizer: {}: {} bytes, expected less than 4 GiB; this is no tiktoken vocabulary", name,
        text.size()));
  }
  arena_.resize(text.size());
  starts_.reserve(text.size() / 12);
  uint32_t end = 0;
  while (!text.empty()) {
    const uint32_t rank = size();
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (rank == kTokensMax) {
      return damaged(name, rank, fmt::format("more than {} tokens", kTokensMax));
    }
    const size_t space = line.find(' ');
    if (space == std::string_view::npos) {
      return damaged(name, rank, "expected 'base64 rank', found " + quoted(line));
    }
    const int64_t bytes = decode_base64(line.substr(0, space), arena_.data() + end);
    if (bytes < 0) {
      return damaged(name, rank, "expected base64, found " + quoted(line.substr(0, space)));
    }
    const std::string_view digits = line.substr(space + 1);
    uint32_t found = 0;
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), found);
    if (parsed.ec != std::errc() || parsed.ptr != digits.data() + digits.size() || found != rank) {
      return damaged(name, rank, fmt::format("expected rank {}, found {}", rank, quoted(digits)));
    }
    end += static_cast<uint32_t>(bytes);
    starts_.push_back(end);
    longest_bytes_ = std::max(longest_bytes_, static_cast<uint32_t>(bytes));
  }
  arena_.resize(end);
  arena_.shrink_to_fit();
  return {};
}

Status Vocabulary::index(const std::string& name) {
  slots_.resize(std::bit_ceil(uint64_t{size()} * 2));
  const size_t mask = slots_.size() - 1;
  for (uint32_t rank = 0; rank < size(); ++rank) {
    const uint64_t key = hash(bytes(rank));
    const auto tag = static_cast<uint32_t>(key >> 32);
    size_t at = key & mask;
    for (; slots_[at].rank != kNoRank; at = (at + 1) & mask) {
      if (slots_[at].tag == tag && bytes(slots_[at].rank) == bytes(rank)) {
        return damaged(name, rank,
                       fmt::format("the token {} is that of line {} again", quoted(bytes(rank)),
                                   uint64_t{slots_[at].rank} + 1));
      }
    }
    slots_[at] = {rank, tag};
  }
  byte_ranks_.resize(256);
  for (unsigned byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    byte_ranks_[byte] = find({&c, 1});
    if (byte_ranks_[byte] == kNoRank) {
      return Status::data_loss(fmt::format(
          "tokenizer: {}: {} tokens, but none for the byte 0x{:02x}; the file is truncated or no "
          "byte-level vocabulary",
          name, size(), byte));
    }
  }
  return {};
}

uint32_t Vocabulary::find(std::string_view bytes) const {
  if (bytes.size() > longest_bytes_) {
    return kNoRank;
  }
  const uint64_t key = hash(bytes);
  const auto tag = static_cast<uint32_t>(key >> 32);
  const size_t mask = slots_.size() - 1;
  for (size_t at = key & mask; slots_[at].rank != kNoRank; at = (at + 1) & mask) {
    if (slots_[at].tag == tag && this->bytes(slots_[at].rank) == bytes) {
      return slots_[at].rank;
    }
  }
  return kNoRank;
}

}  // namespace triax::text
