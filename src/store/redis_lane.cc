#include "store/redis_lane.h"

#include <csignal>
#include <utility>

namespace triax::store {

RedisLane::RedisLane(std::unique_ptr<RedisLink> link) : link_(std::move(link)) {
  thread_ = std::thread([this] { work(); });
}

RedisLane::~RedisLane() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  queue_filled_.notify_all();
  thread_.join();
}

void RedisLane::enqueue(Work work) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
  }
  queue_filled_.notify_one();
}

void RedisLane::work() {
  // hiredis writes to sockets that the server may have closed; the signal goes to the writing
  // thread, and this one belongs to us.
  sigset_t pipe_signal;
  ::sigemptyset(&pipe_signal);
  ::sigaddset(&pipe_signal, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &pipe_signal, nullptr);
  for (;;) {
    Work work;
    {
      std::unique_lock lock(mutex_);
      queue_filled_.wait(lock, [&] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) {
        return;
      }
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    work(*link_);
  }
}

}  // namespace triax::store
