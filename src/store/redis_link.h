// One connection to a Redis server: time limits, reconnection with back-off, pipelines.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

struct redisContext;
struct redisReply;

namespace triax::store {

struct RedisAddress {
  std::string host = "127.0.0.1";
  int port = 6379;
  std::string unix_socket;    // used instead of host and port when not empty
  bool allow_remote = false;  // hosts other than this machine: the protocol is not encrypted
  // The password is read from one of these when the store is made; it appears in no message.
  std::string password_file;  // its first line
  std::string password_env;   // a variable's name
  int connect_timeout_ms = 500;
  int reply_timeout_ms = 1000;  // of each reply
  int backoff_ms_min = 50;      // after a failure; doubles
  int backoff_ms_max = 5000;
};

/// Not thread-safe.
class RedisLink {
 public:
  /// Errors     kInvalidArgument: a host that is not this machine without allow_remote, two
  ///            passwords; kNotFound: the file or variable of the password
  static Result<std::unique_ptr<RedisLink>> create(RedisAddress address);
  ~RedisLink();

  /// Connects when there is no connection.
  /// Errors     kUnavailable, at once while the back-off lasts
  Status ensure();

  /// ensure() without the back-off: a connection that lay idle may be lost without a fault.
  Status retry_now();

  /// Puts a command into the buffer that the next receive() sends.
  Status send(const std::vector<std::string_view>& args);

  /// The next reply, valid until the call after. An error reply becomes a Status:
  /// kResourceExhausted (out of memory), kDataLoss (wrong type), else kUnavailable. A lost
  /// connection is closed.
  Result<const redisReply*> receive();

  bool connected() const { return context_ != nullptr; }
  /// When it was lost, or could not be made, the last time.
  std::chrono::steady_clock::time_point lost_at() const { return lost_at_; }
  /// Counts up with every connection made.
  int64_t generation() const { return generation_; }
  /// Whether the last loss was a time limit.
  bool timed_out() const { return timed_out_; }
  /// "127.0.0.1:6379" or the socket's path.
  const std::string& where() const { return where_; }

 private:
  using Steady = std::chrono::steady_clock;
  explicit RedisLink(RedisAddress address) : address_(std::move(address)) {}
  Status read_password();
  Status lose(const std::string& what);
  Status authenticate();

  RedisAddress address_;
  std::string where_;
  std::string password_;
  redisContext* context_ = nullptr;
  redisReply* reply_ = nullptr;
  Steady::time_point next_attempt_{};
  Steady::time_point lost_at_{};
  int backoff_ms_ = 0;
  int64_t generation_ = 0;
  bool timed_out_ = false;
};

/// Many commands on the way at once, bounded; replies are handled in order.
class RedisPipeline {
 public:
  /// Gets the reply, or the Status of an error reply; what it returns counts as the command's.
  using Handler = std::function<Status(const Result<const redisReply*>&)>;

  explicit RedisPipeline(RedisLink& link) : link_(link) {}

  /// `bytes`: about the size of command and reply, for the bound.
  /// Errors     that of the connection; the pipeline is dead then
  Status add(const std::vector<std::string_view>& args, int64_t bytes, Handler handler);

  /// Waits for all replies. The first error of connection or handlers.
  Status finish();

 private:
  static constexpr int64_t kBytesMax = 4 << 20;
  static constexpr size_t kCommandsMax = 512;
  struct Waiting {
    int64_t bytes;
    Handler handler;
  };
  Status take_one();

  RedisLink& link_;
  std::deque<Waiting> waiting_;
  int64_t bytes_ = 0;
  Status first_error_;
};

}  // namespace triax::store
