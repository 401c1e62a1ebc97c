// The tier that several processes share: blobs in a Redis server, in chunks, the head last.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "store/blob_file.h"
#include "store/blob_store.h"
#include "store/redis_lane.h"
#include "store/redis_link.h"

namespace triax::store {

struct RedisOptions {
  RedisAddress address = {};
  std::string prefix = "triax";       // of every key; letters, digits, '_', '.', '-', ':'
  int64_t ttl_ms = 24 * 3600 * 1000;  // of what is put without one; 0: none
};

/// Keys and values: docs/formats/store.md. Budget and eviction are the server's (maxmemory,
/// allkeys-lru); whatever it drops in between is found out, by EXISTS and by the checksum.
/// Erasing a boundary removes its record; its parts stay until their TTL ends, since other
/// processes may need them. Two connections with a thread each, so that looking does not wait for
/// writing: puts and erases run in order on one, all else in order on the other. Operations are
/// idempotent: a lost connection is made anew once within one; after a time limit it is not.
class RedisStore final : public BlobStore {
 public:
  /// Needs no server yet.
  /// Errors     kInvalidArgument, kNotFound: those of RedisLink::create, or a bad prefix
  static Result<std::unique_ptr<RedisStore>> create(RedisOptions options);

  const std::string& name() const override { return name_; }
  void put(PutRequest request, Done done) override;
  void get(std::vector<BlobTarget> targets, GetDone done) override;
  void find(BlobKey key, FindDone done) override;
  /// The first of these boundaries that is there, in one pipeline of EXISTS and what it takes to
  /// be sure. kNotFound: none is.
  void find_first(std::vector<BlobKey> boundaries, FindDone done);
  void erase(BlobKey key, Done done) override;
  void list(BlobKind kind, ListDone done) override;
  void set_value(BlobKey, double) override {}
  StoreStats stats() const override;
  LinkRates link_rates() const override;

 private:
  struct Reading;

  RedisStore(RedisOptions options, std::unique_ptr<RedisLink> reads,
             std::unique_ptr<RedisLink> writes);
  /// Runs an operation on a connection, once more when an old one turns out to be lost.
  Status on_link(RedisLink& link, const std::function<Status()>& operation);

  Status put_all(RedisLink& link, const PutRequest& request);
  Status missing_of(RedisLink& link, const std::vector<BlobRef>& blobs, std::vector<bool>* there);
  Status refresh(RedisLink& link, const std::vector<BlobRef>& blobs, int64_t ttl_ms);
  Status write_blobs(RedisLink& link, const std::vector<BlobSource>& sources, int64_t ttl_ms);
  Status set(RedisPipeline& pipeline, const std::string& key, std::string_view value,
             int64_t ttl_ms);
  Status get_all(RedisLink& link, const std::vector<BlobTarget>& targets,
                 std::vector<Status>& statuses);
  void take_chunk(Reading& reading, int64_t chunk, const redisReply& reply);
  Status drop_damaged(RedisLink& link, const std::vector<BlobTarget>& targets,
                      const std::vector<Status>& statuses);
  Status header_of(RedisLink& link, const BlobKey& key, Result<BlobHeader>* header);
  Status find_one(RedisLink& link, const BlobKey& key, Result<Found>* found);
  Status find_first_of(RedisLink& link, const std::vector<BlobKey>& keys, Result<Found>* found);
  Status list_all(RedisLink& link, BlobKind kind, std::vector<Found>* found);
  void count_error(const Status& status);

  std::string head_key(const BlobKey& key) const;
  std::string chunk_key(const BlobKey& key, int64_t chunk) const;

  const std::string name_ = "redis";
  RedisOptions options_;
  LinkMeter read_meter_, write_meter_;
  mutable std::mutex mutex_;
  StoreStats stats_;
  std::atomic<std::chrono::steady_clock::time_point> last_answer_{};  // of either connection
  RedisLane reads_, writes_;  // end first: their threads use what is above
};

}  // namespace triax::store
