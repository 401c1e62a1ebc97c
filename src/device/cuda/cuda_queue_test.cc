// What of device/cuda needs no GPU: names, absent libraries, staging over a runtime of plain
// memory.
#include "device/cuda/cuda_queue.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "device/cuda/staging.h"

namespace triax {
namespace {

TEST(CudaDevice, NamesAreParsed) {
  EXPECT_EQ(parse_cuda_device("cuda"), 0);
  EXPECT_EQ(parse_cuda_device("cuda:0"), 0);
  EXPECT_EQ(parse_cuda_device("cuda:7"), 7);
  for (const char* name : {"", "cpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cudax", "CUDA"}) {
    EXPECT_FALSE(parse_cuda_device(name).has_value()) << name;
  }
}

TEST(CudaDevice, AnAbsentLibraryIsAMessage) {
  ::setenv("TRIAX_CUDA_LIBRARY", "/nowhere/libtriax_cuda.so", 1);
  const Result<std::unique_ptr<CudaQueue>> queue = CudaQueue::open(0);
  ASSERT_FALSE(queue.ok());
  EXPECT_EQ(queue.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(queue.status().message().find("/nowhere/libtriax_cuda.so"), std::string::npos);
  const CudaSystem system = examine_cuda();
  EXPECT_FALSE(system.library.ok());
  EXPECT_TRUE(system.gpus.empty());
  ::setenv("TRIAX_CUDA_LIBRARY", "/proc/self/exe", 1);
  EXPECT_EQ(CudaQueue::open(0).status().code(), StatusCode::kUnavailable);
  ::unsetenv("TRIAX_CUDA_LIBRARY");
}

/// A runtime whose GPU is this process: copies happen at once and are counted.
struct FakeGpu {
  static inline int copies = 0;
  static inline int waits = 0;
  static inline int live = 0;

  static int allocate(void** memory, int64_t bytes, void*) {
    return allocate_pinned(memory, bytes);
  }
  static int allocate_pinned(void** memory, int64_t bytes) {
    *memory = std::malloc(static_cast<size_t>(bytes));
    ++live;
    return 0;
  }
  static int release(void* memory, void*) { return release_pinned(memory); }
  static int release_pinned(void* memory) {
    std::free(memory);
    --live;
    return 0;
  }
  static int copy(void* to, const void* from, int64_t bytes, void*) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    ++copies;
    return 0;
  }
  static int event_create(void** event) {
    *event = &waits;
    return 0;
  }
  static int event_destroy(void*) { return 0; }
  static int event_record(void*, void*) { return 0; }
  static int event_wait(void*) {
    ++waits;
    return 0;
  }

  static TriaxCudaRuntime runtime() {
    copies = waits = 0;
    TriaxCudaRuntime table{};
    table.allocate = allocate;
    table.release = release;
    table.allocate_pinned = allocate_pinned;
    table.release_pinned = release_pinned;
    table.copy = copy;
    table.event_create = event_create;
    table.event_destroy = event_destroy;
    table.event_record = event_record;
    table.event_wait = event_wait;
    return table;
  }
};

class StagingTest : public ::testing::Test {
 protected:
  ~StagingTest() override {
    arena_.reset();
    EXPECT_EQ(FakeGpu::live, 0);
  }
  const int* stage(const std::vector<int>& values, bool now = true) {
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(int));
    const Result<const void*> staged = arena_->stage(values.data(), bytes, now);
    EXPECT_TRUE(staged.ok()) << staged.status().message();
    return static_cast<const int*>(*staged);
  }

  TriaxCudaRuntime runtime_ = FakeGpu::runtime();
  CudaLibrary library_{nullptr, &runtime_, "fake"};
  std::unique_ptr<StagingArena> arena_ = std::make_unique<StagingArena>(library_, nullptr);
};

TEST_F(StagingTest, AnArrayIsCopiedOnceAStep) {
  std::vector<int> values = {1, 2, 3};
  const int* first = stage(values);
  EXPECT_TRUE(std::equal(values.begin(), values.end(), first));
  EXPECT_EQ(stage(values), first);
  EXPECT_EQ(FakeGpu::copies, 1);
  values[1] = 7;  // the same place with other contents is another array
  const int* second = stage(values);
  EXPECT_NE(second, first);
  EXPECT_EQ(first[1], 2);
  EXPECT_EQ(second[1], 7);
  EXPECT_EQ(FakeGpu::copies, 2);
}

TEST_F(StagingTest, TheSameSizesGetTheSameAddressesInEveryStep) {
  const std::vector<int> a(3, 1), b(1000, 2), c(5, 3), d(1000, 4);
  const int* first[] = {stage(a), stage(b), stage(c)};
  ASSERT_TRUE(arena_->reset().ok());
  EXPECT_EQ(FakeGpu::waits, 1);
  EXPECT_EQ(stage(a), first[0]);
  EXPECT_EQ(stage(d), first[1]);
  EXPECT_EQ(stage(c), first[2]);
  EXPECT_EQ(first[1][999], 4);
}

TEST_F(StagingTest, LargeArraysFindRoom) {
  const std::vector<int> small(10, 1), large(1 << 20, 2);
  const int* first = stage(small);
  EXPECT_EQ(stage(large)[(1 << 20) - 1], 2);
  EXPECT_EQ(first[9], 1);
}

TEST_F(StagingTest, ACapturedStepIsCopiedAsAWhole) {
  ASSERT_TRUE(arena_->reserve(1 << 16).ok());
  std::vector<int> changing = {1, 2};
  const std::vector<int> constant = {3, 4};
  const int* a = stage(changing, false);
  const int* b = stage(constant, false);
  EXPECT_EQ(FakeGpu::copies, 0);
  ASSERT_TRUE(arena_->upload().ok());
  EXPECT_EQ(a[0], 1);
  EXPECT_EQ(b[1], 4);
  changing = {5, 6};
  ASSERT_TRUE(arena_->reset().ok());
  EXPECT_EQ(stage(changing, false), a);
  ASSERT_TRUE(arena_->upload().ok());
  EXPECT_EQ(a[1], 6);
  EXPECT_EQ(b[1], 4);  // what is not staged anew keeps its contents
  const std::vector<int> large(1 << 20, 2);
  EXPECT_EQ(arena_->stage(large.data(), 1 << 22, false).status().code(),
            StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace triax
