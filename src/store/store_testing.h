// What the tests and benches of this module share.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "base/rng.h"
#include "store/blob_store.h"

namespace triax::store {

/// A folder that goes away with this object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = std::filesystem::temp_directory_path() / "triax_store_XXXXXX";
    path_ = ::mkdtemp(name.data());
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

/// Bytes that follow from the key alone: a reader knows what it must see.
inline std::vector<std::byte> bytes_of(const BlobKey& key, int64_t count) {
  Rng rng(key.low * 31 + key.high * 7 + static_cast<uint64_t>(key.kind));
  std::vector<std::byte> bytes(static_cast<size_t>((count + 7) / 8 * 8));
  for (size_t i = 0; i < bytes.size(); i += 8) {
    const uint64_t word = rng.next();
    std::memcpy(bytes.data() + i, &word, 8);
  }
  bytes.resize(static_cast<size_t>(count));
  return bytes;
}

inline BlobKey page(uint64_t n) { return {n, n * 0x9e3779b97f4a7c15ULL + 1, BlobKind::kPage}; }
inline BlobKey state(uint64_t n) { return {n, n * 0x9e3779b97f4a7c15ULL + 1, BlobKind::kState}; }
inline BlobKey boundary_key(uint64_t n) {
  return {n, n * 0x9e3779b97f4a7c15ULL + 1, BlobKind::kBoundary};
}

/// A request that owns its bytes.
inline PutRequest blobs_request(const std::vector<BlobRef>& blobs) {
  auto owner = std::make_shared<std::vector<std::vector<std::byte>>>();
  PutRequest request;
  for (const BlobRef& blob : blobs) {
    owner->push_back(bytes_of(blob.key, blob.bytes));
  }
  for (size_t i = 0; i < blobs.size(); ++i) {
    // Two pieces, cut at an odd place.
    const std::span<const std::byte> bytes = (*owner)[i];
    const size_t cut = bytes.size() / 3;
    request.blobs.push_back({blobs[i].key, {bytes.first(cut), bytes.subspan(cut)}});
  }
  request.owner = owner;
  return request;
}

inline PutRequest blob_request(const BlobKey& key, int64_t bytes) {
  return blobs_request({{key, bytes}});
}

inline PutRequest boundary_request(const BlobKey& key, const std::vector<BlobRef>& parts) {
  PutRequest request = blobs_request(parts);
  request.boundary = Boundary{key, parts, {std::byte{1}, std::byte{2}}};
  return request;
}

/// Reads a blob; checks that what is returned as ok has the right bytes.
inline Status read_back(BlobStore& store, const BlobKey& key, int64_t bytes) {
  std::vector<std::byte> into(static_cast<size_t>(bytes));
  const std::span<std::byte> all = into;
  const size_t cut = into.size() / 2;
  Status status = store.get_now(BlobTarget{key, {all.first(cut), all.subspan(cut)}});
  if (status.ok()) {
    EXPECT_EQ(into, bytes_of(key, bytes)) << to_string(key) << ": a wrong answer";
  }
  return status;
}

/// Finds a boundary and reads every part of it.
inline Status read_boundary(BlobStore& store, const BlobKey& key) {
  Result<Found> found = store.find_now(key);
  if (!found.ok()) {
    return found.status();
  }
  for (const BlobRef& part : found->boundary->parts) {
    if (Status status = read_back(store, part.key, part.bytes); !status.ok()) {
      return status;
    }
  }
  return {};
}

}  // namespace triax::store
