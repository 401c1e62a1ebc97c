#include "base/cpu.h"

#include <fmt/core.h>

#include <fstream>

namespace triax {

Isa best_isa() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi2");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512vnni");
  if (avx2 && avx512) {
    return Isa::kAvx512;
  }
  if (avx2) {
    return Isa::kAvx2;
  }
#endif
  return Isa::kPortable;
}

std::vector<Isa> supported_isas() {
  std::vector<Isa> isas;
  for (Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (isa <= best_isa()) {
      isas.push_back(isa);
    }
  }
  return isas;
}

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return "portable";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "unknown";
}

Result<Isa> parse_isa(std::string_view name) {
  for (Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (isa_name(isa) == name) {
      return isa;
    }
  }
  return Status::invalid_argument(
      fmt::format("instruction set '{}' is not one of portable, avx2, avx512", name));
}

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "unknown";
}

Memory system_memory() {
  std::ifstream info("/proc/meminfo");
  Memory memory;
  std::string key;
  int64_t kib = 0;
  for (std::string unit; info >> key >> kib && std::getline(info, unit);) {
    if (key == "MemTotal:") {
      memory.total_bytes = kib * 1024;
    } else if (key == "MemAvailable:") {
      memory.available_bytes = kib * 1024;
    }
  }
  return memory;
}

}  // namespace triax
