// Names and descriptions of what a store keeps: immutable blobs, and boundaries made of them.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace triax::store {

/// What a blob holds. Part of its name, so that one prefix names its page, its state and so on.
/// The numbers are those of the formats at rest; add, never change.
enum class BlobKind : uint16_t {
  kPage = 1,      // latents of one page of tokens
  kConv = 2,      // convolution windows
  kState = 3,     // recurrent states
  kBoundary = 4,  // a commit record: written by a store itself, last
  kOther = 5,
};

/// "page", "conv", "state", "boundary", "other".
std::string_view kind_name(BlobKind kind);
Result<BlobKind> parse_kind(std::string_view name);

/// The name of a blob: a hash of all that its bytes depend on (tokens, model, layout, generation),
/// computed by the owner, and the kind. Equal keys mean equal bytes.
struct BlobKey {
  uint64_t low = 0;
  uint64_t high = 0;
  BlobKind kind = BlobKind::kOther;
  auto operator<=>(const BlobKey&) const = default;
};

struct BlobKeyHash {
  size_t operator()(const BlobKey& key) const {
    return static_cast<size_t>(key.low ^ (key.high * 0x9e3779b97f4a7c15ULL) ^
                               (static_cast<uint64_t>(key.kind) << 56));
  }
};

/// "0123456789abcdef0123456789abcdef-state": high, then low, then kind.
std::string to_string(const BlobKey& key);
Result<BlobKey> parse_key(std::string_view text);

using ConstPieces = std::vector<std::span<const std::byte>>;
using Pieces = std::vector<std::span<std::byte>>;

int64_t total_bytes(const ConstPieces& pieces);
int64_t total_bytes(const Pieces& pieces);
ConstPieces as_const(const Pieces& pieces);

/// A blob to be written: the pieces, one after the other, are its bytes.
struct BlobSource {
  BlobKey key;
  ConstPieces pieces;
};

/// Where a blob is to be read to. The sum of the pieces is its exact size.
struct BlobTarget {
  BlobKey key;
  Pieces pieces;
};

struct BlobRef {
  BlobKey key;
  int64_t bytes = 0;
  bool operator==(const BlobRef&) const = default;
};

/// A place where a sequence can be resumed: every blob that this needs. It is in a store only when
/// all parts are: the record is written last and goes first.
struct Boundary {
  BlobKey key;                  // kind kBoundary
  std::vector<BlobRef> parts;   // distinct, none of kind kBoundary
  std::vector<std::byte> note;  // the owner's own words, e.g. tokens and encoding; at most 64 KiB
  bool operator==(const Boundary&) const = default;
};

inline constexpr int64_t kPartsMax = 1 << 20;
inline constexpr int64_t kNoteBytesMax = 64 << 10;

int64_t total_bytes(const Boundary& boundary);

/// The commit record: what docs/formats/store.md describes, little-endian, with a checksum.
std::vector<std::byte> encode_boundary(const Boundary& boundary);

/// Errors     kDataLoss for anything that encode_boundary did not write
Result<Boundary> decode_boundary(std::span<const std::byte> bytes);

/// Errors     kInvalidArgument: wrong kinds, a part twice, too many, a negative size
Status check_boundary(const Boundary& boundary);

}  // namespace triax::store
