// How a blob is cut into values of Redis, and how replies are read.
#pragma once

#include <fmt/core.h>
#include <hiredis/hiredis.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>

#include "store/blob.h"

namespace triax::store {

inline constexpr int64_t kChunkBytes = 512 << 10;
inline constexpr int64_t kCommandBytes = 128;  // about a command without a value

inline int64_t chunks_of(int64_t bytes) {
  return std::max<int64_t>(1, (bytes + kChunkBytes - 1) / kChunkBytes);
}

inline int64_t chunk_bytes(int64_t bytes, int64_t chunk) {
  return std::min(kChunkBytes, bytes - chunk * kChunkBytes);
}

inline std::string_view text_of(const redisReply* reply) {
  return reply->type == REDIS_REPLY_STRING || reply->type == REDIS_REPLY_STATUS
             ? std::string_view(reply->str, static_cast<size_t>(reply->len))
             : std::string_view();
}

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

inline Status not_there(const BlobKey& key) {
  return Status::not_found(fmt::format("redis store: {} is not there", to_string(key)));
}

}  // namespace triax::store
