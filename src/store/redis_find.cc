// The Redis tier: whether something is there, what there is, and removing it.
#include <algorithm>
#include <utility>

#include "store/redis_store.h"
#include "store/redis_values.h"

namespace triax::store {

void RedisStore::find(BlobKey key, FindDone done) {
  reads_.enqueue([this, key, done = std::move(done)](RedisLink& link) {
    Result<Found> found = not_there(key);
    const Status status = on_link(link, [&] { return find_one(link, key, &found); });
    done(status.ok() ? std::move(found) : Result<Found>(status));
  });
}

Status RedisStore::header_of(RedisLink& link, const BlobKey& key, Result<BlobHeader>* header) {
  const std::string head = head_key(key);
  if (Status status = link.send({"GETRANGE", head, "0", "63"}); !status.ok()) {
    return status;
  }
  const Result<const redisReply*> reply = link.receive();
  if (!reply.ok()) {
    *header = reply.status();
    return reply.status().code() == StatusCode::kDataLoss ? Status() : reply.status();
  }
  const std::string_view text = text_of(*reply);
  *header = text.empty() ? Result<BlobHeader>(not_there(key)) : decode_blob_header(bytes_of(text));
  return {};
}

Status RedisStore::find_one(RedisLink& link, const BlobKey& key, Result<Found>* found) {
  Result<BlobHeader> header = not_there(key);
  if (Status status = header_of(link, key, &header); !status.ok()) {
    return status;
  }
  if (!header.ok()) {
    *found = header.status();
    return {};
  }
  Found result{header->blob, 0, std::nullopt};
  std::vector<BlobRef> needed = {header->blob};
  if (key.kind == BlobKind::kBoundary) {
    std::vector<std::byte> record(static_cast<size_t>(
        std::min<int64_t>(header->blob.bytes, kPartsMax * 32 + kNoteBytesMax + 64)));
    std::vector<Status> statuses(1);
    if (Status status = get_all(link, {{key, {record}}}, statuses); !status.ok()) {
      return status;
    }
    Result<Boundary> boundary = statuses[0].ok() ? decode_boundary(record) : statuses[0];
    if (!boundary.ok() || boundary->key != key) {
      *found = boundary.ok() ? not_there(key) : boundary.status();
      return {};
    }
    needed = boundary->parts;
    result.boundary = *std::move(boundary);
  }
  std::vector<bool> there;
  if (Status status = missing_of(link, needed, &there); !status.ok()) {
    return status;
  }
  const bool whole = std::all_of(there.begin(), there.end(), [](bool b) { return b; });
  *found = whole ? Result<Found>(std::move(result)) : not_there(key);
  return {};
}

void RedisStore::find_first(std::vector<BlobKey> boundaries, FindDone done) {
  reads_.enqueue([this, keys = std::move(boundaries), done = std::move(done)](RedisLink& link) {
    Result<Found> found = Status::not_found("redis store: none of the boundaries is there");
    const Status status = on_link(link, [&] { return find_first_of(link, keys, &found); });
    done(status.ok() ? std::move(found) : Result<Found>(status));
  });
}

Status RedisStore::find_first_of(RedisLink& link, const std::vector<BlobKey>& keys,
                                 Result<Found>* found) {
  std::vector<bool> there(keys.size(), false);
  RedisPipeline pipeline(link);
  for (size_t i = 0; i < keys.size(); ++i) {
    Status status = pipeline.add({"EXISTS", head_key(keys[i])}, kCommandBytes,
                                 [&there, i](const Result<const redisReply*>& reply) {
                                   there[i] = reply.ok() && (*reply)->integer == 1;
                                   return reply.ok() ? Status() : reply.status();
                                 });
    if (!status.ok()) {
      return status;
    }
  }
  if (Status status = pipeline.finish(); !status.ok()) {
    return status;
  }
  for (size_t i = 0; i < keys.size() && !found->ok(); ++i) {
    Result<Found> one = not_there(keys[i]);
    if (Status status = there[i] ? find_one(link, keys[i], &one) : Status(); !status.ok()) {
      return status;
    }
    if (one.ok()) {
      *found = std::move(one);
    }
  }
  return {};
}

void RedisStore::erase(BlobKey key, Done done) {
  writes_.enqueue([this, key, done = std::move(done)](RedisLink& link) {
    done(on_link(link, [&]() -> Status {
      Result<BlobHeader> header = not_there(key);
      if (Status status = header_of(link, key, &header); !status.ok()) {
        return status;
      }
      RedisPipeline pipeline(link);  // the head first: from then on it is not there
      const int64_t chunks = header.ok() ? chunks_of(header->blob.bytes) : 1;
      for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        const std::string name = chunk_key(key, chunk);
        if (Status status = pipeline.add({"DEL", name}, kCommandBytes, nullptr); !status.ok()) {
          return status;
        }
      }
      return pipeline.finish();
    }));
  });
}

void RedisStore::list(BlobKind kind, ListDone done) {
  reads_.enqueue([this, kind, done = std::move(done)](RedisLink& link) {
    std::vector<Found> found;
    const Status status = on_link(link, [&] {
      found.clear();
      return list_all(link, kind, &found);
    });
    done(status.ok() ? Result<std::vector<Found>>(std::move(found))
                     : Result<std::vector<Found>>(status));
  });
}

Status RedisStore::list_all(RedisLink& link, BlobKind kind, std::vector<Found>* found) {
  const std::string pattern = fmt::format("{}:*-{}", options_.prefix, kind_name(kind));
  std::vector<BlobKey> keys;
  std::string cursor = "0";
  do {
    Status status = link.send({"SCAN", cursor, "MATCH", pattern, "COUNT", "1000"});
    const Result<const redisReply*> reply =
        status.ok() ? link.receive() : Result<const redisReply*>(status);
    if (!reply.ok()) {
      return reply.status();
    }
    if ((*reply)->type != REDIS_REPLY_ARRAY || (*reply)->elements != 2) {
      return Status::unavailable("redis store: SCAN answers in an unknown form");
    }
    cursor = text_of((*reply)->element[0]);
    const redisReply* names = (*reply)->element[1];
    for (size_t i = 0; i < names->elements; ++i) {
      Result<BlobKey> key =
          parse_key(text_of(names->element[i]).substr(options_.prefix.size() + 1));
      if (key.ok()) {
        keys.push_back(*key);
      }
    }
  } while (cursor != "0");
  std::sort(keys.begin(), keys.end());  // SCAN may name one twice
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  for (const BlobKey& key : keys) {
    Result<Found> one = not_there(key);
    if (Status status = find_one(link, key, &one); !status.ok()) {
      return status;
    }
    if (one.ok()) {
      found->push_back(*std::move(one));
    }
  }
  return {};
}

}  // namespace triax::store
