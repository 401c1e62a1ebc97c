// What the CPU is said to run.
#include "base/cpu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace triax {
namespace {

TEST(Cpu, SupportedSetsAscendFromPortableToTheBest) {
  const std::vector<Isa> isas = supported_isas();
  ASSERT_FALSE(isas.empty());
  EXPECT_EQ(isas.front(), Isa::kPortable);
  EXPECT_EQ(isas.back(), best_isa());
  EXPECT_TRUE(std::is_sorted(isas.begin(), isas.end()));
  EXPECT_EQ(std::adjacent_find(isas.begin(), isas.end()), isas.end());
}

TEST(Cpu, NamesOfInstructionSetsParseBack) {
  for (Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    const Result<Isa> parsed = parse_isa(isa_name(isa));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, isa);
  }
}

TEST(Cpu, AnUnknownSetIsNamedWithTheChoices) {
  for (const char* name : {"", "AVX2", "avx", "avx5122"}) {
    const Result<Isa> parsed = parse_isa(name);
    ASSERT_FALSE(parsed.ok()) << name;
    EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(parsed.status().message(),
              "instruction set '" + std::string(name) + "' is not one of portable, avx2, avx512");
  }
}

TEST(Cpu, MachineFactsArePlausible) {
  EXPECT_FALSE(cpu_name().empty());
  const Memory memory = system_memory();
  EXPECT_GT(memory.total_bytes, int64_t{64} << 20);
  EXPECT_GT(memory.available_bytes, 0);
  EXPECT_LE(memory.available_bytes, memory.total_bytes);
}

}  // namespace
}  // namespace triax
