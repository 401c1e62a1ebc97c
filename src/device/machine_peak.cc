#include "device/machine_peak.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "device/machine_peak_kernels.h"

namespace triax {
namespace {

// Large enough that starting a range costs nothing, small enough to even the threads out.
constexpr int64_t kRangeBytes = int64_t{4} << 20;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

double read_bytes_per_second(ThreadPool& pool, Isa isa, std::span<const std::byte> buffer) {
  using namespace machine_peak_internal;
  const auto read = isa == Isa::kAvx512 ? read_avx512
                    : isa == Isa::kAvx2 ? read_avx2
                                        : read_portable;
  const auto bytes = static_cast<int64_t>(buffer.size()) / 512 * 512;
  std::atomic<uint64_t> keep = 0;
  const auto start = std::chrono::steady_clock::now();
  pool.run_ranges(bytes, kRangeBytes, [&](int64_t begin, int64_t end, int) {
    keep.fetch_xor(read(buffer.data() + begin, end - begin), std::memory_order_relaxed);
  });
  return static_cast<double>(bytes) / seconds_since(start);
}

double fp32_flops_per_second(ThreadPool& pool, Isa isa, int64_t operations) {
  using namespace machine_peak_internal;
  const auto run = isa == Isa::kAvx512 ? multiply_add_avx512
                   : isa == Isa::kAvx2 ? multiply_add_avx2
                                       : multiply_add_portable;
  const int64_t flops = isa == Isa::kAvx512 ? kFlopsAvx512
                        : isa == Isa::kAvx2 ? kFlopsAvx2
                                            : kFlopsPortable;
  constexpr int64_t kTasksPerThread = 8;
  const int64_t tasks = kTasksPerThread * pool.threads();
  const int64_t rounds = std::max<int64_t>(1, operations / flops / kTasksPerThread);
  std::atomic<float> keep = 0.0f;
  const auto start = std::chrono::steady_clock::now();
  pool.run(tasks, [&](int64_t task, int) {
    keep.store(run(rounds, static_cast<float>(task)), std::memory_order_relaxed);
  });
  return static_cast<double>(tasks * rounds * flops) / seconds_since(start);
}

}  // namespace triax
