// The pool runs every task once, on any number of threads, however short the regions are.
#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

namespace triax {
namespace {

class ThreadPoolOf : public ::testing::TestWithParam<int> {};

TEST_P(ThreadPoolOf, RunsEveryTaskExactlyOnce) {
  ThreadPool pool(GetParam());
  EXPECT_EQ(pool.threads(), GetParam());
  for (int64_t count : {0, 1, 2, 3, 7, 8, 64, 1000}) {
    std::vector<std::atomic<int>> runs(static_cast<size_t>(count));
    pool.run(count, [&](int64_t task, int) { ++runs.at(static_cast<size_t>(task)); });
    for (const auto& n : runs) {
      EXPECT_EQ(n.load(), 1) << "of " << count;
    }
  }
}

TEST_P(ThreadPoolOf, WorkerNamesOneThreadAtATime) {
  ThreadPool pool(GetParam());
  std::vector<std::atomic<int>> inside(static_cast<size_t>(GetParam()));
  std::atomic<int> clashes{0};
  pool.run(2000, [&](int64_t, int worker) {
    std::atomic<int>& mine = inside.at(static_cast<size_t>(worker));
    clashes += mine.fetch_add(1) == 0 ? 0 : 1;
    mine.fetch_sub(1);
  });
  EXPECT_EQ(clashes.load(), 0);
}

TEST_P(ThreadPoolOf, AWorkerTakesTasksInAscendingOrder) {
  ThreadPool pool(GetParam());
  std::vector<int64_t> last(static_cast<size_t>(GetParam()), -1);
  std::atomic<int> backward{0};
  pool.run(2000, [&](int64_t task, int worker) {
    int64_t& before = last.at(static_cast<size_t>(worker));
    backward += task > before ? 0 : 1;
    before = task;
  });
  EXPECT_EQ(backward.load(), 0);
}

TEST_P(ThreadPoolOf, ManyShortRegionsSeeEachOthersWrites) {
  ThreadPool pool(GetParam());
  constexpr int kRegions = 2000;
  // Plain memory: a missing happens-before edge is a wrong sum, and an error of the sanitizer.
  std::vector<int64_t> values(16, 0);
  std::vector<int64_t> next(16, 0);
  for (int region = 0; region < kRegions; ++region) {
    pool.run(16, [&](int64_t task, int) {
      const size_t i = static_cast<size_t>(task);
      next[i] = values[(i + 5) % 16] + 1;
    });
    values.swap(next);
  }
  for (int64_t value : values) {
    EXPECT_EQ(value, kRegions);
  }
}

TEST_P(ThreadPoolOf, SleepingThreadsWakeUp) {
  ThreadPool pool(GetParam());
  for (int round = 0; round < 3; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    std::atomic<int> runs{0};
    pool.run(100, [&](int64_t, int) { ++runs; });
    EXPECT_EQ(runs.load(), 100);
  }
}

TEST_P(ThreadPoolOf, RangesCoverTheWholeOnceAndKeepTheGrain) {
  ThreadPool pool(GetParam());
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  for (int64_t count : {0, 1, 63, 64, 65, 1000}) {
    for (int64_t grain : {int64_t{-1}, int64_t{0}, int64_t{1}, int64_t{7}, int64_t{64}, kHuge}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(count));
      std::atomic<int> bad{0};
      pool.run_ranges(count, grain, [&](int64_t begin, int64_t end, int worker) {
        bad += begin < end && end - begin <= std::max<int64_t>(grain, 1) ? 0 : 1;
        bad += worker >= 0 && worker < pool.threads() ? 0 : 1;
        for (int64_t i = begin; i < end; ++i) {
          ++runs.at(static_cast<size_t>(i));
        }
      });
      EXPECT_EQ(bad.load(), 0);
      for (const auto& n : runs) {
        EXPECT_EQ(n.load(), 1) << count << " by " << grain;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolOf, ::testing::Values(1, 2, 3, 4, 8));

TEST(ThreadPool, AllThreadsTakePart) {
  ThreadPool pool(3);
  std::vector<std::atomic<int>> runs(3);
  std::atomic<int> arrived{0};
  // Each task waits for the others, so no thread can do two of them.
  pool.run(3, [&](int64_t, int worker) {
    ++runs.at(static_cast<size_t>(worker));
    for (++arrived; arrived.load() < 3;) {
      std::this_thread::yield();
    }
  });
  for (const auto& n : runs) {
    EXPECT_EQ(n.load(), 1);
  }
}

TEST(ThreadPool, ASingleTaskStaysOnTheCallersThread) {
  ThreadPool pool(4);
  const std::thread::id caller = std::this_thread::get_id();
  pool.run(1, [&](int64_t, int worker) {
    EXPECT_EQ(worker, 0);
    EXPECT_EQ(std::this_thread::get_id(), caller);
  });
}

TEST(ThreadPool, IsDestroyedWithoutEverHavingRun) {
  for (int i = 0; i < 50; ++i) {
    const ThreadPool pool(4);
  }
}

TEST(ThreadPool, HardwareThreadsRespectTheAffinityMask) {
  EXPECT_GE(hardware_threads(), 1);
  int seen = 0;
  std::thread([&seen] {
    cpu_set_t all, one;
    ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
    CPU_ZERO(&one);
    int cpu = 0;
    while (!CPU_ISSET(cpu, &all)) {
      ++cpu;
    }
    CPU_SET(cpu, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    seen = hardware_threads();
  }).join();
  EXPECT_EQ(seen, 1);
}

TEST(ThreadPoolDeathTest, NeedsAThread) { EXPECT_DEATH(ThreadPool(0), "at least one thread"); }

TEST(ThreadPoolDeathTest, ARegionInsideARegionAborts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (int threads : {1, 2}) {
    for (int64_t tasks : {1, 2}) {
      EXPECT_DEATH(
          {
            ThreadPool pool(threads);
            pool.run(tasks, [&](int64_t, int) { pool.run(tasks, [](int64_t, int) {}); });
          },
          "already running");
    }
  }
}

TEST(FunctionRef, CallsWhatItRefersTo) {
  int calls = 0;
  auto count = [&calls](int by) { return calls += by; };
  const FunctionRef<int(int)> ref = count;
  EXPECT_EQ(ref(2), 2);
  const FunctionRef<int(int)> copy = ref;
  EXPECT_EQ(copy(3), 5);
}

}  // namespace
}  // namespace triax
