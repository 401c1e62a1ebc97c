#define XXH_INLINE_ALL
#include "store/blob.h"

#include <fmt/core.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <utility>

namespace triax::store {
namespace {

constexpr std::array<std::pair<BlobKind, std::string_view>, 5> kKindNames = {{
    {BlobKind::kPage, "page"},
    {BlobKind::kConv, "conv"},
    {BlobKind::kState, "state"},
    {BlobKind::kBoundary, "boundary"},
    {BlobKind::kOther, "other"},
}};

constexpr char kMagic[8] = {'T', 'R', 'X', 'B', 'N', 'D', '1', '\n'};
constexpr size_t kHeadBytes = 8 + 32 + 16;  // magic, key, counts
constexpr size_t kPartBytes = 32;
constexpr size_t kSumBytes = 8;

void put_u64(std::vector<std::byte>& out, uint64_t value) {
  for (int shift = 0; shift < 64; shift += 8) {
    out.push_back(static_cast<std::byte>(value >> shift));
  }
}

uint64_t get_u64(const std::byte* in) {
  uint64_t value = 0;
  for (int i = 0; i < 8; ++i) {
    value |= static_cast<uint64_t>(in[i]) << (8 * i);
  }
  return value;
}

void put_ref(std::vector<std::byte>& out, const BlobKey& key, uint64_t bytes) {
  put_u64(out, key.low);
  put_u64(out, key.high);
  put_u64(out, static_cast<uint64_t>(key.kind));
  put_u64(out, bytes);
}

// False for a kind that does not exist or a size that no blob has.
bool get_ref(const std::byte* in, BlobRef* ref) {
  const uint64_t kind = get_u64(in + 16);
  const uint64_t bytes = get_u64(in + 24);
  if (kind < 1 || kind > 5 || bytes > (uint64_t{1} << 62)) {
    return false;
  }
  *ref = {{get_u64(in), get_u64(in + 8), static_cast<BlobKind>(kind)}, static_cast<int64_t>(bytes)};
  return true;
}

template <typename P>
int64_t sum_bytes(const P& pieces) {
  int64_t sum = 0;
  for (const auto& piece : pieces) {
    sum += static_cast<int64_t>(piece.size());
  }
  return sum;
}

}  // namespace

std::string_view kind_name(BlobKind kind) {
  for (const auto& [value, name] : kKindNames) {
    if (value == kind) {
      return name;
    }
  }
  return "?";
}

Result<BlobKind> parse_kind(std::string_view name) {
  for (const auto& [value, known] : kKindNames) {
    if (known == name) {
      return value;
    }
  }
  return Status::invalid_argument(
      fmt::format("'{}' is no kind of blob; expected page, conv, state, boundary or other", name));
}

std::string to_string(const BlobKey& key) {
  return fmt::format("{:016x}{:016x}-{}", key.high, key.low, kind_name(key.kind));
}

Result<BlobKey> parse_key(std::string_view text) {
  BlobKey key;
  const auto hex = [](std::string_view digits, uint64_t* value) {
    const bool lower = std::all_of(digits.begin(), digits.end(), [](char c) {
      return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
    });
    return lower && std::from_chars(digits.data(), digits.data() + digits.size(), *value, 16).ec ==
                        std::errc();
  };
  if (text.size() < 34 || text[32] != '-' || !hex(text.substr(0, 16), &key.high) ||
      !hex(text.substr(16, 16), &key.low)) {
    return Status::invalid_argument(fmt::format(
        "'{}' is no key of a blob; expected 32 hexadecimal digits, '-' and the kind", text));
  }
  Result<BlobKind> kind = parse_kind(text.substr(33));
  if (!kind.ok()) {
    return kind.status();
  }
  key.kind = *kind;
  return key;
}

int64_t total_bytes(const ConstPieces& pieces) { return sum_bytes(pieces); }
int64_t total_bytes(const Pieces& pieces) { return sum_bytes(pieces); }
ConstPieces as_const(const Pieces& pieces) { return {pieces.begin(), pieces.end()}; }

int64_t total_bytes(const Boundary& boundary) {
  int64_t sum = 0;
  for (const BlobRef& part : boundary.parts) {
    sum += part.bytes;
  }
  return sum;
}

std::vector<std::byte> encode_boundary(const Boundary& boundary) {
  std::vector<std::byte> out(sizeof(kMagic));
  std::memcpy(out.data(), kMagic, sizeof(kMagic));
  out.reserve(kHeadBytes + kPartBytes * boundary.parts.size() + boundary.note.size() + kSumBytes);
  put_ref(out, boundary.key, 0);
  put_u64(out, boundary.parts.size());
  put_u64(out, boundary.note.size());
  for (const BlobRef& part : boundary.parts) {
    put_ref(out, part.key, static_cast<uint64_t>(part.bytes));
  }
  out.insert(out.end(), boundary.note.begin(), boundary.note.end());
  put_u64(out, XXH3_64bits(out.data(), out.size()));
  return out;
}

Result<Boundary> decode_boundary(std::span<const std::byte> bytes) {
  const auto bad = [](const char* what) {
    return Status::data_loss(fmt::format("commit record of a boundary: {}", what));
  };
  if (bytes.size() < kHeadBytes + kSumBytes ||
      std::memcmp(bytes.data(), kMagic, sizeof(kMagic)) != 0) {
    return bad("no such record, or of another version");
  }
  const size_t body = bytes.size() - kSumBytes;
  if (get_u64(bytes.data() + body) != XXH3_64bits(bytes.data(), body)) {
    return bad("checksum differs");
  }
  Boundary boundary;
  BlobRef own;
  const uint64_t parts = get_u64(bytes.data() + 40);
  const uint64_t note = get_u64(bytes.data() + 48);
  if (!get_ref(bytes.data() + 8, &own) || own.bytes != 0 || parts > kPartsMax ||
      note > kNoteBytesMax || kHeadBytes + kPartBytes * parts + note != body) {
    return bad("sizes do not fit");
  }
  boundary.key = own.key;
  boundary.parts.resize(parts);
  const std::byte* at = bytes.data() + kHeadBytes;
  for (BlobRef& part : boundary.parts) {
    if (!get_ref(at, &part)) {
      return bad("a part has an unknown kind or size");
    }
    at += kPartBytes;
  }
  boundary.note.assign(at, at + note);
  const Status fits = check_boundary(boundary);
  return fits.ok() ? Result<Boundary>(std::move(boundary)) : bad(fits.message().c_str());
}

Status check_boundary(const Boundary& boundary) {
  const auto bad = [&](std::string_view what) {
    return Status::invalid_argument(fmt::format("boundary {}: {}", to_string(boundary.key), what));
  };
  if (boundary.key.kind != BlobKind::kBoundary) {
    return bad("its key is not of the kind 'boundary'");
  }
  if (boundary.parts.size() > kPartsMax || boundary.note.size() > kNoteBytesMax) {
    return bad(fmt::format("{} parts and {} bytes of note, at most {} and {}",
                           boundary.parts.size(), boundary.note.size(), kPartsMax, kNoteBytesMax));
  }
  std::vector<BlobKey> keys;
  keys.reserve(boundary.parts.size());
  for (const BlobRef& part : boundary.parts) {
    if (part.key.kind == BlobKind::kBoundary || part.bytes < 0) {
      return bad(fmt::format("part {} of {} bytes cannot be one", to_string(part.key), part.bytes));
    }
    keys.push_back(part.key);
  }
  std::sort(keys.begin(), keys.end());
  const auto twice = std::adjacent_find(keys.begin(), keys.end());
  return twice == keys.end() ? Status() : bad(fmt::format("part {} twice", to_string(*twice)));
}

}  // namespace triax::store
