#define XXH_INLINE_ALL
#include "store/blob_file.h"

#include <fmt/core.h>
#include <xxhash.h>

#include <cstring>

namespace triax::store {
namespace {

constexpr char kMagic[8] = {'T', 'R', 'X', 'B', 'L', 'O', 'B', '1'};
constexpr size_t kSummed = kBlobHeaderBytes - 8;

void store_u64(std::byte* out, uint64_t value) {
  for (int i = 0; i < 8; ++i) {
    out[i] = static_cast<std::byte>(value >> (8 * i));
  }
}

uint64_t load_u64(const std::byte* in) {
  uint64_t value = 0;
  for (int i = 0; i < 8; ++i) {
    value |= static_cast<uint64_t>(in[i]) << (8 * i);
  }
  return value;
}

}  // namespace

std::array<std::byte, kBlobHeaderBytes> encode_blob_header(const BlobHeader& header) {
  std::array<std::byte, kBlobHeaderBytes> out{};
  std::memcpy(out.data(), kMagic, sizeof(kMagic));
  store_u64(&out[8], header.blob.key.low);
  store_u64(&out[16], header.blob.key.high);
  store_u64(&out[24], static_cast<uint64_t>(header.blob.key.kind));
  store_u64(&out[32], static_cast<uint64_t>(header.blob.bytes));
  store_u64(&out[40], static_cast<uint64_t>(header.expires_ms));
  store_u64(&out[48], header.checksum);
  store_u64(&out[kSummed], XXH3_64bits(out.data(), kSummed));
  return out;
}

Result<BlobHeader> decode_blob_header(std::span<const std::byte> bytes) {
  if (bytes.size() < kBlobHeaderBytes || std::memcmp(bytes.data(), kMagic, sizeof(kMagic)) != 0) {
    return Status::data_loss("no header of a blob, or of another version");
  }
  if (load_u64(&bytes[kSummed]) != XXH3_64bits(bytes.data(), kSummed)) {
    return Status::data_loss("the header's checksum differs");
  }
  const uint64_t kind = load_u64(&bytes[24]);
  BlobHeader header;
  header.blob.bytes = static_cast<int64_t>(load_u64(&bytes[32]));
  header.expires_ms = static_cast<int64_t>(load_u64(&bytes[40]));
  header.checksum = load_u64(&bytes[48]);
  if (kind < 1 || kind > 5 || header.blob.bytes < 0 || header.blob.bytes > kBlobBytesMax ||
      header.expires_ms < 0) {
    return Status::data_loss("the header has an unknown kind, an impossible size or expiry");
  }
  header.blob.key = {load_u64(&bytes[8]), load_u64(&bytes[16]), static_cast<BlobKind>(kind)};
  return header;
}

Result<BlobFile> decode_blob_file(std::span<const std::byte> bytes) {
  Result<BlobHeader> header = decode_blob_header(bytes);
  if (!header.ok()) {
    return header.status();
  }
  const int64_t expected = blob_file_bytes(header->blob.bytes);
  if (static_cast<int64_t>(bytes.size()) != expected) {
    return Status::data_loss(
        fmt::format("the file has {} bytes, its header says {}", bytes.size(), expected));
  }
  const std::span<const std::byte> payload =
      bytes.subspan(kBlobHeaderBytes, static_cast<size_t>(header->blob.bytes));
  if (XXH3_64bits(payload.data(), payload.size()) != header->checksum) {
    return Status::data_loss("the payload's checksum differs");
  }
  return BlobFile{*header, payload};
}

}  // namespace triax::store
