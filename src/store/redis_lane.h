// A connection with a thread of its own and a queue before it.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "store/redis_link.h"

namespace triax::store {

/// Runs work in order. The destructor waits for all of it.
class RedisLane {
 public:
  using Work = std::function<void(RedisLink&)>;

  explicit RedisLane(std::unique_ptr<RedisLink> link);
  ~RedisLane();
  RedisLane(const RedisLane&) = delete;
  RedisLane& operator=(const RedisLane&) = delete;

  void enqueue(Work work);

 private:
  void work();

  std::unique_ptr<RedisLink> link_;  // used by the thread alone
  std::mutex mutex_;
  std::condition_variable queue_filled_;
  std::deque<Work> queue_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace triax::store
