// A fixed set of threads with an explicit count. Knows nothing of what runs on it.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/function_ref.h"

namespace triax {

/// Runs independent tasks on `threads` threads, the caller's among them.
/// Tasks are claimed one by one in ascending order; which thread runs which task is not defined,
/// so a result that depends on it is a bug of the task.
/// One caller at a time: run() is not thread-safe, and a task that calls it aborts.
class ThreadPool {
 public:
  /// threads >= 1; threads - 1 are started here.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  /// Calls task(i, worker) for every i in [0, count) and returns when all are done.
  /// worker in [0, threads()) names the thread: an index for scratch memory of its own.
  void run(int64_t count, FunctionRef<void(int64_t task, int worker)> task);

  /// Splits [0, count) into ranges of about `grain` and calls range(begin, end, worker) for each.
  void run_ranges(int64_t count, int64_t grain,
                  FunctionRef<void(int64_t begin, int64_t end, int worker)> range);

 private:
  using Task = FunctionRef<void(int64_t, int)>;
  void work(int worker);
  void drain(int worker);

  int spins_ = 0;
  std::vector<std::thread> workers_;
  const Task* task_ = nullptr;
  int64_t count_ = 0;
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<int> busy_{0};
  std::atomic<bool> stop_{false};
};

/// Threads that this machine can run at once (affinity mask respected), at least 1.
int hardware_threads();

}  // namespace triax
