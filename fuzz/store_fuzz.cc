// Bytes as what a store finds on disk: a file of a blob, a boundary's record, an encoded state.
// Whatever is accepted is what our own writers would have written. Each input is tried as it is and
// with its checksums made right, so that what lies behind them is reached too.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/check.h"
#include "store/blob.h"
#include "store/blob_file.h"
#include "store/state_codec.h"

namespace {

using namespace triax;
using namespace triax::store;

bool equal(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

void try_record(std::span<const std::byte> bytes) {
  const Result<Boundary> boundary = decode_boundary(bytes);
  if (boundary.ok()) {
    check(check_boundary(*boundary).ok(), "a record of what is no boundary");
    check(equal(encode_boundary(*boundary), bytes), "a record that we would write otherwise");
  }
}

void try_file(std::span<const std::byte> bytes) {
  const Result<BlobFile> file = decode_blob_file(bytes);
  if (file.ok()) {
    check(equal(encode_blob_header(file->header), bytes.first(kBlobHeaderBytes)),
          "a header that we would write otherwise");
    check(static_cast<int64_t>(file->payload.size()) == file->header.blob.bytes, "another size");
    const Result<BlobKey> key = parse_key(to_string(file->header.blob.key));
    check(key.ok() && *key == file->header.blob.key, "a key that has no name");
    try_record(file->payload);
  }
}

void set_sum(std::vector<std::byte>& bytes, size_t at) {
  const uint64_t sum = XXH3_64bits(bytes.data(), at);
  for (size_t i = 0; i < 8; ++i) {
    bytes[at + i] = static_cast<std::byte>(sum >> (8 * i));
  }
}

void try_with_right_sums(std::span<const std::byte> bytes) {
  std::vector<std::byte> copy(bytes.begin(), bytes.end());
  if (copy.size() >= 8) {
    set_sum(copy, copy.size() - 8);
    try_record(copy);
  }
  if (copy.size() >= kBlobHeaderBytes) {
    copy.assign(bytes.begin(), bytes.end());
    set_sum(copy, kBlobHeaderBytes - 8);
    const Result<BlobHeader> header = decode_blob_header(copy);
    check(!header.ok() || equal(encode_blob_header(*header), std::span(copy).first(64)),
          "a header that we would write otherwise");
    try_file(copy);
  }
}

void try_state(std::span<const std::byte> bytes) {
  const StateShape shape{2, 3, 5};
  std::vector<float> state(static_cast<size_t>(shape.elements()));
  for (const Isa isa : supported_isas()) {
    const Status status = decode_state(bytes, shape, isa, state);
    check(status.ok() || status.code() == StatusCode::kDataLoss, "another error than damage");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  try_record(bytes);
  try_file(bytes);
  try_with_right_sums(bytes);
  try_state(bytes);
  (void)parse_key(std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
