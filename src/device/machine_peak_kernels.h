// The loops behind machine_peak. Plain types only: files of different instruction sets include it.
#pragma once

#include <cstdint>

namespace triax::machine_peak_internal {

/// Reads `bytes` (a multiple of 512); the value only keeps the loads alive.
uint64_t read_portable(const void* p, int64_t bytes);
uint64_t read_avx2(const void* p, int64_t bytes);
uint64_t read_avx512(const void* p, int64_t bytes);

/// `rounds` of independent multiply-adds, kFlops* operations each. At most 16 chains: what
/// compilers unroll and keep in registers.
float multiply_add_portable(int64_t rounds, float start);
float multiply_add_avx2(int64_t rounds, float start);
float multiply_add_avx512(int64_t rounds, float start);
constexpr int64_t kFlopsPortable = 2 * 8 * 4;
constexpr int64_t kFlopsAvx2 = 2 * 12 * 8;
constexpr int64_t kFlopsAvx512 = 2 * 16 * 16;

}  // namespace triax::machine_peak_internal
