#include "store/redis_link.h"

#include <fmt/core.h>
#include <hiredis/hiredis.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>

namespace triax::store {
namespace {

timeval as_timeval(int ms) { return {ms / 1000, ms % 1000 * 1000}; }

Status error_of(const std::string& where, std::string_view text) {
  const std::string message = fmt::format("redis store: {} answers: {}", where, text);
  if (text.starts_with("OOM")) {
    return Status::resource_exhausted(message);
  }
  if (text.starts_with("WRONGTYPE")) {
    return Status::data_loss(message);
  }
  return Status::unavailable(message);
}

}  // namespace

Result<std::unique_ptr<RedisLink>> RedisLink::create(RedisAddress address) {
  std::unique_ptr<RedisLink> link(new RedisLink(std::move(address)));
  const RedisAddress& a = link->address_;
  const bool local =
      !a.unix_socket.empty() || a.host == "127.0.0.1" || a.host == "localhost" || a.host == "::1";
  if (!local && !a.allow_remote) {
    return Status::invalid_argument(fmt::format(
        "redis store: {} is not this machine and the protocol is not encrypted; allow_remote "
        "permits it",
        a.host));
  }
  link->where_ = a.unix_socket.empty() ? fmt::format("{}:{}", a.host, a.port) : a.unix_socket;
  if (Status status = link->read_password(); !status.ok()) {
    return status;
  }
  return link;
}

Status RedisLink::read_password() {
  if (!address_.password_file.empty() && !address_.password_env.empty()) {
    return Status::invalid_argument("redis store: a password from a file and from a variable");
  }
  if (!address_.password_file.empty()) {
    std::ifstream file(address_.password_file);
    if (!std::getline(file, password_)) {
      return Status::not_found(
          fmt::format("redis store: no password in the file {}", address_.password_file));
    }
  }
  if (!address_.password_env.empty()) {
    const char* value = std::getenv(address_.password_env.c_str());
    if (value == nullptr) {
      return Status::not_found(
          fmt::format("redis store: the variable {} is not set", address_.password_env));
    }
    password_ = value;
  }
  return {};
}

RedisLink::~RedisLink() {
  if (reply_ != nullptr) {
    ::freeReplyObject(reply_);
  }
  if (context_ != nullptr) {
    ::redisFree(context_);
  }
}

// Closes the connection: what the server still sends would be taken for other replies.
Status RedisLink::lose(const std::string& what) {
  if (context_ != nullptr) {
    ::redisFree(context_);
    context_ = nullptr;
  }
  backoff_ms_ = std::clamp(backoff_ms_ * 2, address_.backoff_ms_min, address_.backoff_ms_max);
  lost_at_ = Steady::now();
  next_attempt_ = lost_at_ + std::chrono::milliseconds(backoff_ms_);
  return Status::unavailable(fmt::format("redis store: {}: {}", where_, what));
}

Status RedisLink::ensure() {
  if (context_ != nullptr) {
    return {};
  }
  if (Steady::now() < next_attempt_) {
    return Status::unavailable(
        fmt::format("redis store: {}: not reachable; waiting before the next attempt", where_));
  }
  const timeval limit = as_timeval(address_.connect_timeout_ms);
  context_ = address_.unix_socket.empty()
                 ? ::redisConnectWithTimeout(address_.host.c_str(), address_.port, limit)
                 : ::redisConnectUnixWithTimeout(address_.unix_socket.c_str(), limit);
  if (context_ == nullptr || context_->err != 0) {
    return lose(context_ == nullptr ? std::string("out of memory")
                                    : fmt::format("cannot connect: {}", context_->errstr));
  }
  if (::redisSetTimeout(context_, as_timeval(address_.reply_timeout_ms)) != REDIS_OK) {
    return lose("cannot set a time limit");
  }
  ++generation_;
  timed_out_ = false;
  return authenticate();
}

Status RedisLink::retry_now() {
  if (context_ != nullptr) {
    return {};
  }
  next_attempt_ = {};
  return ensure();
}

Status RedisLink::authenticate() {
  if (!password_.empty()) {
    if (Status status = send({"AUTH", password_}); !status.ok()) {
      return status;
    }
    const Result<const redisReply*> reply = receive();
    if (!reply.ok()) {
      // The server's words might repeat what it was sent.
      return context_ == nullptr ? reply.status() : lose("the password was refused");
    }
  }
  return {};
}

Status RedisLink::send(const std::vector<std::string_view>& args) {
  if (context_ == nullptr) {
    return Status::unavailable(fmt::format("redis store: {}: no connection", where_));
  }
  std::vector<const char*> texts;
  std::vector<size_t> sizes;
  for (const std::string_view arg : args) {
    texts.push_back(arg.data());
    sizes.push_back(arg.size());
  }
  if (::redisAppendCommandArgv(context_, static_cast<int>(args.size()), texts.data(),
                               sizes.data()) != REDIS_OK) {
    return lose("out of memory");
  }
  return {};
}

Result<const redisReply*> RedisLink::receive() {
  if (context_ == nullptr) {
    return Status::unavailable(fmt::format("redis store: {}: no connection", where_));
  }
  if (reply_ != nullptr) {
    ::freeReplyObject(reply_);
    reply_ = nullptr;
  }
  void* reply = nullptr;
  if (::redisGetReply(context_, &reply) != REDIS_OK || reply == nullptr) {
    const int error = errno;
    timed_out_ = context_->err == REDIS_ERR_IO && (error == EAGAIN || error == EWOULDBLOCK);
    return lose(timed_out_ ? fmt::format("no answer within {} ms", address_.reply_timeout_ms)
                           : fmt::format("connection lost: {}", context_->errstr));
  }
  reply_ = static_cast<redisReply*>(reply);
  backoff_ms_ = 0;
  if (reply_->type == REDIS_REPLY_ERROR) {
    return error_of(where_, {reply_->str, static_cast<size_t>(reply_->len)});
  }
  return reply_;
}

Status RedisPipeline::take_one() {
  Waiting waiting = std::move(waiting_.front());
  waiting_.pop_front();
  bytes_ -= waiting.bytes;
  const Result<const redisReply*> reply = link_.receive();
  if (!link_.connected()) {
    waiting_.clear();
    return reply.status();
  }
  Status status =
      waiting.handler ? waiting.handler(reply) : (reply.ok() ? Status() : reply.status());
  if (!status.ok() && first_error_.ok()) {
    first_error_ = std::move(status);
  }
  return {};
}

Status RedisPipeline::add(const std::vector<std::string_view>& args, int64_t bytes,
                          Handler handler) {
  while (!waiting_.empty() && (bytes_ + bytes > kBytesMax || waiting_.size() >= kCommandsMax)) {
    if (Status status = take_one(); !status.ok()) {
      return status;
    }
  }
  if (Status status = link_.send(args); !status.ok()) {
    return status;
  }
  bytes_ += bytes;
  waiting_.push_back({bytes, std::move(handler)});
  return {};
}

Status RedisPipeline::finish() {
  while (!waiting_.empty()) {
    if (Status status = take_one(); !status.ok()) {
      return status;
    }
  }
  return first_error_;
}

}  // namespace triax::store
