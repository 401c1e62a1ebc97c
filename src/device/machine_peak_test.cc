#include "device/machine_peak.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace triax {
namespace {

TEST(MachinePeak, EveryInstructionSetGivesAPositiveRate) {
  ThreadPool pool(2);
  const std::vector<std::byte> buffer(size_t{9} << 20);
  for (Isa isa : supported_isas()) {
    const double read = read_bytes_per_second(pool, isa, buffer);
    const double flops = fp32_flops_per_second(pool, isa, 1'000'000);
    EXPECT_TRUE(std::isfinite(read) && read > 1e6) << isa_name(isa) << " " << read;
    EXPECT_TRUE(std::isfinite(flops) && flops > 1e6) << isa_name(isa) << " " << flops;
  }
}

}  // namespace
}  // namespace triax
