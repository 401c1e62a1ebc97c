// What this machine reaches at best: the roofline that operations are compared with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/cpu.h"
#include "base/thread_pool.h"

namespace triax {

/// Bytes a second that all threads of `pool` together read from `buffer`, once from end to end.
/// `buffer` should be larger than the last-level cache by far (1 GiB), and touched before. One
/// sample: take the largest or the median of several.
double read_bytes_per_second(ThreadPool& pool, Isa isa, std::span<const std::byte> buffer);

/// float32 operations a second (a multiply-add counts as two) of all threads together, in registers
/// only, measured over about `operations` of each thread. One sample, as above.
double fp32_flops_per_second(ThreadPool& pool, Isa isa, int64_t operations = 200'000'000);

}  // namespace triax
