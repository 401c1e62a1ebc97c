#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>

#include "base/check.h"

namespace triax {
namespace {

// A step of a model is a few hundred short parallel regions: workers spin this many times between
// them before they sleep, some 50 to 200 microseconds of a core at the end of a step.
constexpr int kSpins = 4000;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  check(threads >= 1, "a thread pool needs at least one thread");
  // With more threads than cores, who spins keeps others from working.
  spins_ = threads <= hardware_threads() ? kSpins : 0;
  workers_.reserve(static_cast<size_t>(threads - 1));
  for (int worker = 1; worker < threads; ++worker) {
    workers_.emplace_back([this, worker] { work(worker); });
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& worker : workers_) {
    worker.join();
  }
}

void ThreadPool::run(int64_t count, FunctionRef<void(int64_t, int)> task) {
  check(task_ == nullptr, "thread pool: run() is already running");
  task_ = &task;
  if (workers_.empty() || count <= 1) {
    for (int64_t i = 0; i < count; ++i) {
      task(i, 0);
    }
    task_ = nullptr;
    return;
  }
  count_ = count;
  next_.store(0, std::memory_order_relaxed);
  busy_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  drain(0);
  for (int spins = 0; busy_.load(std::memory_order_acquire) != 0; ++spins) {
    spins < spins_ ? pause() : std::this_thread::yield();
  }
  task_ = nullptr;
}

void ThreadPool::run_ranges(int64_t count, int64_t grain,
                            FunctionRef<void(int64_t, int64_t, int)> range) {
  grain = std::max<int64_t>(grain, 1);
  run(count / grain + (count % grain != 0 ? 1 : 0), [&](int64_t task, int worker) {
    const int64_t begin = task * grain;
    range(begin, begin + std::min(grain, count - begin), worker);
  });
}

void ThreadPool::drain(int worker) {
  for (int64_t i = next_.fetch_add(1, std::memory_order_relaxed); i < count_;
       i = next_.fetch_add(1, std::memory_order_relaxed)) {
    (*task_)(i, worker);
  }
}

void ThreadPool::work(int worker) {
  uint32_t seen = 0;
  while (true) {
    for (int spins = 0; generation_.load(std::memory_order_acquire) == seen; ++spins) {
      if (spins < spins_) {
        pause();
      } else {
        generation_.wait(seen, std::memory_order_acquire);
      }
    }
    ++seen;
    if (stop_.load(std::memory_order_relaxed)) {
      return;
    }
    drain(worker);
    busy_.fetch_sub(1, std::memory_order_release);
  }
}

int hardware_threads() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) {
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  }
  return std::max(1, CPU_COUNT(&set));
}

}  // namespace triax
