// Blobs in Redis. A blob's head holds its header and first chunk and is written after all others.
#define XXH_INLINE_ALL
#include "store/redis_store.h"

#include <fmt/core.h>
#include <hiredis/hiredis.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "store/redis_values.h"

namespace triax::store {
namespace {

using Seconds = std::chrono::duration<double>;
using Steady = std::chrono::steady_clock;

// Appends bytes [offset, offset + count) of the pieces.
void gather(const ConstPieces& pieces, int64_t offset, int64_t count, std::string& out) {
  for (const std::span<const std::byte> piece : pieces) {
    const int64_t size = static_cast<int64_t>(piece.size());
    if (offset < size && count > 0) {
      const int64_t take = std::min(count, size - offset);
      out.append(reinterpret_cast<const char*>(piece.data()) + offset, static_cast<size_t>(take));
      count -= take;
      offset = size;
    }
    offset -= size;
  }
}

void scatter(std::string_view in, int64_t offset, const Pieces& pieces) {
  for (const std::span<std::byte> piece : pieces) {
    const int64_t size = static_cast<int64_t>(piece.size());
    if (offset < size && !in.empty()) {
      const size_t take = std::min(in.size(), static_cast<size_t>(size - offset));
      std::memcpy(piece.data() + offset, in.data(), take);
      in.remove_prefix(take);
      offset = size;
    }
    offset -= size;
  }
}

uint64_t checksum_of(const ConstPieces& pieces) {
  XXH3_state_t* state = XXH3_createState();
  XXH3_64bits_reset(state);
  for (const std::span<const std::byte> piece : pieces) {
    XXH3_64bits_update(state, piece.data(), piece.size());
  }
  const uint64_t sum = XXH3_64bits_digest(state);
  XXH3_freeState(state);
  return sum;
}

Status check_request(const PutRequest& request) {
  for (const BlobSource& source : request.blobs) {
    if (source.key.kind == BlobKind::kBoundary) {
      return Status::invalid_argument("redis store: a boundary is put as such, not as a blob");
    }
  }
  return request.boundary ? check_boundary(*request.boundary) : Status();
}

}  // namespace

/// A blob on its way: chunks come in order.
struct RedisStore::Reading {
  const BlobTarget* target = nullptr;
  Status* status = nullptr;
  int64_t bytes = 0;
  BlobHeader header;
};

Result<std::unique_ptr<RedisStore>> RedisStore::create(RedisOptions options) {
  const bool plain = std::all_of(options.prefix.begin(), options.prefix.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '-' || c == ':';
  });
  if (!plain || options.prefix.empty() || options.ttl_ms < 0) {
    return Status::invalid_argument(
        fmt::format("redis store: prefix '{}', TTL {} ms; expected letters, digits, '_', '.', '-', "
                    "':' and a TTL of at least 0",
                    options.prefix, options.ttl_ms));
  }
  Result<std::unique_ptr<RedisLink>> reads = RedisLink::create(options.address);
  Result<std::unique_ptr<RedisLink>> writes = RedisLink::create(options.address);
  if (!reads.ok() || !writes.ok()) {
    return reads.ok() ? writes.status() : reads.status();
  }
  return std::unique_ptr<RedisStore>(
      new RedisStore(std::move(options), *std::move(reads), *std::move(writes)));
}

RedisStore::RedisStore(RedisOptions options, std::unique_ptr<RedisLink> reads,
                       std::unique_ptr<RedisLink> writes)
    : options_(std::move(options)), reads_(std::move(reads)), writes_(std::move(writes)) {}

Status RedisStore::on_link(RedisLink& link, const std::function<Status()>& operation) {
  const int64_t before = link.generation();
  // The other connection has worked since this one was lost: no reason to go on waiting.
  Status status = last_answer_.load() > link.lost_at() ? link.retry_now() : link.ensure();
  if (status.ok()) {
    status = operation();
  }
  const bool was_old = link.generation() == before;
  if (!link.connected() && was_old && !link.timed_out() && !status.ok() && before > 0) {
    if (link.retry_now().ok()) {
      status = operation();
    }
  }
  if (link.connected()) {
    last_answer_ = Steady::now();
  }
  count_error(status);
  return status;
}

void RedisStore::count_error(const Status& status) {
  const std::lock_guard lock(mutex_);
  if (status.code() == StatusCode::kUnavailable || status.code() == StatusCode::kInternal) {
    ++stats_.errors;
  } else if (status.code() == StatusCode::kResourceExhausted) {
    ++stats_.refused_writes;
  }
}

std::string RedisStore::head_key(const BlobKey& key) const {
  return options_.prefix + ":" + to_string(key);
}

std::string RedisStore::chunk_key(const BlobKey& key, int64_t chunk) const {
  return chunk == 0 ? head_key(key) : fmt::format("{}:{}", head_key(key), chunk);
}

void RedisStore::put(PutRequest request, Done done) {
  if (Status status = check_request(request); !status.ok()) {
    done(std::move(status));
    return;
  }
  auto shared = std::make_shared<PutRequest>(std::move(request));
  writes_.enqueue([this, shared, done = std::move(done)](RedisLink& link) {
    Status status = on_link(link, [&] { return put_all(link, *shared); });
    *shared = {};
    done(std::move(status));
  });
}

Status RedisStore::put_all(RedisLink& link, const PutRequest& request) {
  const int64_t ttl_ms = request.ttl_ms != 0 ? request.ttl_ms : options_.ttl_ms;
  std::vector<BlobRef> own;
  for (const BlobSource& source : request.blobs) {
    own.push_back({source.key, total_bytes(source.pieces)});
  }
  std::vector<bool> there;
  if (Status status = missing_of(link, own, &there); !status.ok()) {
    return status;
  }
  std::vector<BlobSource> missing;
  std::vector<BlobRef> known;
  for (size_t i = 0; i < own.size(); ++i) {
    if (there[i]) {
      known.push_back(own[i]);
    } else {
      missing.push_back(request.blobs[i]);
    }
  }
  if (Status status = write_blobs(link, missing, ttl_ms); !status.ok()) {
    return status;
  }
  {
    const std::lock_guard lock(mutex_);
    stats_.known_blobs += static_cast<int64_t>(known.size());
    stats_.written_blobs += static_cast<int64_t>(missing.size());
  }
  if (!request.boundary) {
    return refresh(link, known, ttl_ms);
  }
  // The parts live as long as their record, and are all there: only now may it be written.
  const std::vector<BlobRef>& parts = request.boundary->parts;
  if (Status status = refresh(link, parts, ttl_ms); !status.ok()) {
    return status;
  }
  if (Status status = missing_of(link, parts, &there); !status.ok()) {
    return status;
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!there[i]) {
      return Status::not_found(fmt::format("boundary {}: part {} is not there",
                                           to_string(request.boundary->key),
                                           to_string(parts[i].key)));
    }
  }
  const std::vector<std::byte> record = encode_boundary(*request.boundary);
  return write_blobs(link, {{request.boundary->key, {record}}}, ttl_ms);
}

// Whether all keys of each blob exist.
Status RedisStore::missing_of(RedisLink& link, const std::vector<BlobRef>& blobs,
                              std::vector<bool>* there) {
  there->assign(blobs.size(), false);
  RedisPipeline pipeline(link);
  for (size_t i = 0; i < blobs.size(); ++i) {
    const int64_t chunks = chunks_of(blobs[i].bytes);
    std::vector<std::string> keys;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      keys.push_back(chunk_key(blobs[i].key, chunk));
    }
    std::vector<std::string_view> args = {"EXISTS"};
    args.insert(args.end(), keys.begin(), keys.end());
    Status status = pipeline.add(args, kCommandBytes * chunks,
                                 [there, i, chunks](const Result<const redisReply*>& reply) {
                                   (*there)[i] = reply.ok() && (*reply)->integer == chunks;
                                   return reply.ok() ? Status() : reply.status();
                                 });
    if (!status.ok()) {
      return status;
    }
  }
  return pipeline.finish();
}

// The later of both expiries.
Status RedisStore::refresh(RedisLink& link, const std::vector<BlobRef>& blobs, int64_t ttl_ms) {
  RedisPipeline pipeline(link);
  const std::string ttl = std::to_string(ttl_ms);
  for (const BlobRef& blob : blobs) {
    for (int64_t chunk = 0; chunk < chunks_of(blob.bytes); ++chunk) {
      const std::string key = chunk_key(blob.key, chunk);
      const std::vector<std::string_view> args =
          ttl_ms == 0 ? std::vector<std::string_view>{"PERSIST", key}
                      : std::vector<std::string_view>{"PEXPIRE", key, ttl, "GT"};
      if (Status status = pipeline.add(args, kCommandBytes, nullptr); !status.ok()) {
        return status;
      }
    }
  }
  return pipeline.finish();
}

Status RedisStore::set(RedisPipeline& pipeline, const std::string& key, std::string_view value,
                       int64_t ttl_ms) {
  const std::string ttl = std::to_string(ttl_ms);
  std::vector<std::string_view> args = {"SET", key, value};
  if (ttl_ms != 0) {
    args.insert(args.end(), {"PX", ttl});
  }
  return pipeline.add(args, static_cast<int64_t>(value.size()) + kCommandBytes, nullptr);
}

Status RedisStore::write_blobs(RedisLink& link, const std::vector<BlobSource>& sources,
                               int64_t ttl_ms) {
  const Steady::time_point begin = Steady::now();
  int64_t bytes = 0;
  std::string value;
  {
    RedisPipeline pipeline(link);
    for (const BlobSource& source : sources) {
      const int64_t size = total_bytes(source.pieces);
      bytes += size;
      for (int64_t chunk = 1; chunk < chunks_of(size); ++chunk) {
        value.clear();
        gather(source.pieces, chunk * kChunkBytes, chunk_bytes(size, chunk), value);
        Status status = set(pipeline, chunk_key(source.key, chunk), value, ttl_ms);
        if (!status.ok()) {
          return status;
        }
      }
    }
    if (Status status = pipeline.finish(); !status.ok()) {
      return status;
    }
  }
  RedisPipeline heads(link);
  for (const BlobSource& source : sources) {
    const int64_t size = total_bytes(source.pieces);
    const auto head = encode_blob_header({{source.key, size}, 0, checksum_of(source.pieces)});
    value.assign(reinterpret_cast<const char*>(head.data()), head.size());
    gather(source.pieces, 0, chunk_bytes(size, 0), value);
    if (Status status = set(heads, head_key(source.key), value, ttl_ms); !status.ok()) {
      return status;
    }
  }
  Status status = heads.finish();
  if (status.ok() && bytes > 0) {
    write_meter_.add(bytes, Seconds(Steady::now() - begin).count());
    const std::lock_guard lock(mutex_);
    stats_.written_bytes += bytes;
  }
  return status;
}

void RedisStore::get(std::vector<BlobTarget> targets, GetDone done) {
  auto shared = std::make_shared<std::vector<BlobTarget>>(std::move(targets));
  reads_.enqueue([this, shared, done = std::move(done)](RedisLink& link) {
    std::vector<Status> statuses;
    const Status status = on_link(link, [&] {
      statuses.assign(shared->size(), Status());
      return get_all(link, *shared, statuses);
    });
    if (!status.ok()) {  // the connection: nothing is known of any
      statuses.assign(shared->size(), status);
    } else {
      const std::lock_guard lock(mutex_);
      for (size_t i = 0; i < statuses.size(); ++i) {
        stats_.read_blobs += statuses[i].ok() ? 1 : 0;
        stats_.read_bytes += statuses[i].ok() ? total_bytes((*shared)[i].pieces) : 0;
        stats_.missed_blobs += statuses[i].code() == StatusCode::kNotFound ? 1 : 0;
        stats_.damaged_blobs += statuses[i].code() == StatusCode::kDataLoss ? 1 : 0;
      }
    }
    done(std::move(statuses));
  });
}

Status RedisStore::get_all(RedisLink& link, const std::vector<BlobTarget>& targets,
                           std::vector<Status>& statuses) {
  const Steady::time_point begin = Steady::now();
  std::vector<Reading> readings(targets.size());
  RedisPipeline pipeline(link);
  int64_t bytes = 0;
  for (size_t i = 0; i < targets.size(); ++i) {
    Reading& reading = readings[i];
    reading = {&targets[i], &statuses[i], total_bytes(targets[i].pieces), {}};
    bytes += reading.bytes;
    for (int64_t chunk = 0; chunk < chunks_of(reading.bytes); ++chunk) {
      const std::string key = chunk_key(targets[i].key, chunk);
      Status status = pipeline.add({"GET", key}, chunk_bytes(reading.bytes, chunk) + kCommandBytes,
                                   [this, &reading, chunk](const Result<const redisReply*>& reply) {
                                     if (!reply.ok()) {
                                       *reading.status =
                                           reading.status->ok() ? reply.status() : *reading.status;
                                     } else if (reading.status->ok()) {
                                       take_chunk(reading, chunk, **reply);
                                     }
                                     return Status();
                                   });
      if (!status.ok()) {
        return status;
      }
    }
  }
  if (Status status = pipeline.finish(); !status.ok()) {
    return status;
  }
  for (Reading& reading : readings) {
    if (reading.status->ok() &&
        checksum_of(as_const(reading.target->pieces)) != reading.header.checksum) {
      *reading.status = Status::data_loss(
          fmt::format("redis store: {}: its checksum differs", to_string(reading.target->key)));
    }
  }
  if (bytes > 0 && std::all_of(statuses.begin(), statuses.end(),
                               [](const Status& status) { return status.ok(); })) {
    read_meter_.add(bytes, Seconds(Steady::now() - begin).count());
  }
  return drop_damaged(link, targets, statuses);
}

void RedisStore::take_chunk(Reading& reading, int64_t chunk, const redisReply& reply) {
  const BlobKey& key = reading.target->key;
  if (reply.type != REDIS_REPLY_STRING) {
    *reading.status = chunk == 0 ? not_there(key)
                                 : Status::data_loss(fmt::format(
                                       "redis store: {}: chunk {} is gone", to_string(key), chunk));
    return;
  }
  std::string_view value = text_of(&reply);
  if (chunk == 0) {
    const Result<BlobHeader> header = decode_blob_header(bytes_of(value));
    if (!header.ok() || header->blob.key != key) {
      *reading.status =
          Status::data_loss(fmt::format("redis store: {}: its head is not one", to_string(key)));
      return;
    }
    if (header->blob.bytes != reading.bytes) {
      *reading.status =
          Status::invalid_argument(fmt::format("redis store: {} has {} bytes, the target {}",
                                               to_string(key), header->blob.bytes, reading.bytes));
      return;
    }
    reading.header = *header;
    value.remove_prefix(kBlobHeaderBytes);
  }
  if (static_cast<int64_t>(value.size()) != chunk_bytes(reading.bytes, chunk)) {
    *reading.status = Status::data_loss(
        fmt::format("redis store: {}: chunk {} has {} bytes, expected {}", to_string(key), chunk,
                    value.size(), chunk_bytes(reading.bytes, chunk)));
    return;
  }
  scatter(value, chunk * kChunkBytes, reading.target->pieces);
}

// A head without its chunks, or with wrong ones, would keep others from writing the blob anew.
Status RedisStore::drop_damaged(RedisLink& link, const std::vector<BlobTarget>& targets,
                                const std::vector<Status>& statuses) {
  RedisPipeline pipeline(link);
  for (size_t i = 0; i < targets.size(); ++i) {
    if (statuses[i].code() == StatusCode::kDataLoss) {
      Status status = pipeline.add({"DEL", head_key(targets[i].key)}, kCommandBytes, nullptr);
      if (!status.ok()) {
        return status;
      }
    }
  }
  return pipeline.finish();
}

StoreStats RedisStore::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

LinkRates RedisStore::link_rates() const { return {read_meter_.rate(), write_meter_.rate()}; }

}  // namespace triax::store
