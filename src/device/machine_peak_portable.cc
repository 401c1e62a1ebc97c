// The loops of machine_peak without intrinsics; the compiler makes of them what its target allows.
#include <cstring>

#include "device/machine_peak_kernels.h"

namespace triax::machine_peak_internal {

uint64_t read_portable(const void* p, int64_t bytes) {
  const auto* data = static_cast<const unsigned char*>(p);
  uint64_t sums[8] = {};
  for (int64_t offset = 0; offset < bytes; offset += 64) {
    uint64_t words[8];
    std::memcpy(words, data + offset, sizeof(words));
    for (int i = 0; i < 8; ++i) {
      sums[i] ^= words[i];
    }
  }
  return sums[0] ^ sums[1] ^ sums[2] ^ sums[3] ^ sums[4] ^ sums[5] ^ sums[6] ^ sums[7];
}

float multiply_add_portable(int64_t rounds, float start) {
  float sums[32];
  for (int i = 0; i < 32; ++i) {
    sums[i] = start + static_cast<float>(i);
  }
  for (int64_t round = 0; round < rounds; ++round) {
    for (float& sum : sums) {
      sum = sum * 0.999f + 0.5f;
    }
  }
  float total = 0.0f;
  for (float sum : sums) {
    total += sum;
  }
  return total;
}

}  // namespace triax::machine_peak_internal
