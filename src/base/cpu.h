// What this CPU can do, asked once at start.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace triax {

/// Instruction sets that our kernels are written for, worst first. Each includes the ones before.
/// kAvx512 needs F, BW, DQ, VL and VNNI (Ice Lake, Zen 4 and later).
enum class Isa { kPortable, kAvx2, kAvx512 };

/// The best of them that this CPU and operating system run.
Isa best_isa();

/// All that this CPU runs, worst first: what a test of every backend goes through.
std::vector<Isa> supported_isas();

/// "portable", "avx2", "avx512".
std::string_view isa_name(Isa isa);
Result<Isa> parse_isa(std::string_view name);

/// The CPU's own name ("Intel(R) Xeon(R) ..."), or "unknown".
std::string cpu_name();

/// Physical memory in bytes: of the machine, and what is available now; 0 where unknown.
struct Memory {
  int64_t total_bytes = 0;
  int64_t available_bytes = 0;
};
Memory system_memory();

}  // namespace triax
