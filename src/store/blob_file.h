// The header of a blob at rest in a file (docs/formats/store.md).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "store/blob.h"

namespace triax::store {

struct BlobHeader {
  BlobRef blob;
  int64_t expires_ms = 0;  // since 1970; 0: never
  uint64_t checksum = 0;   // XXH3-64 of the payload
  bool operator==(const BlobHeader&) const = default;
};

inline constexpr int64_t kBlobHeaderBytes = 64;
inline constexpr int64_t kBlobFileAlign = 4096;
inline constexpr int64_t kBlobBytesMax = int64_t{1} << 40;

/// Bytes that a file takes: header, payload, zeros to the next multiple of kBlobFileAlign.
constexpr int64_t blob_file_bytes(int64_t payload_bytes) {
  return (kBlobHeaderBytes + payload_bytes + kBlobFileAlign - 1) / kBlobFileAlign * kBlobFileAlign;
}

std::array<std::byte, kBlobHeaderBytes> encode_blob_header(const BlobHeader& header);

/// Errors     kDataLoss: torn, or of another version
Result<BlobHeader> decode_blob_header(std::span<const std::byte> bytes);

/// A whole file: its header and its payload, checked.
/// Errors     kDataLoss
struct BlobFile {
  BlobHeader header;
  std::span<const std::byte> payload;  // into the bytes given
};
Result<BlobFile> decode_blob_file(std::span<const std::byte> bytes);

}  // namespace triax::store
