// The generator's sequence is pinned: seeds in tests and in users' commands keep their meaning.
#include "base/rng.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>

namespace triax {
namespace {

TEST(Rng, SequenceIsThatOfSplitMix64) {
  // The published test vector of the algorithm for seed 1234567.
  Rng rng(1234567);
  for (uint64_t expected : {6457827717110365317ULL, 3203168211198807973ULL, 9817491932198370423ULL,
                            4593380528125082431ULL, 16408922859458223821ULL}) {
    EXPECT_EQ(rng.next(), expected);
  }
}

TEST(Rng, UniformStaysInsideAndFillsTheRange) {
  Rng rng(1);
  double low = 1.0, high = 0.0, sum = 0.0;
  constexpr int kDraws = 100000;
  for (int i = 0; i < kDraws; ++i) {
    const double x = rng.uniform();
    low = std::min(low, x);
    high = std::max(high, x);
    sum += x;
  }
  EXPECT_GE(low, 0.0);
  EXPECT_LT(low, 1e-3);
  EXPECT_LT(high, 1.0);
  EXPECT_GT(high, 1.0 - 1e-3);
  // Five standard deviations of a mean of uniform draws.
  EXPECT_NEAR(sum / kDraws, 0.5, 5 * std::sqrt(1.0 / 12 / kDraws));
  for (int i = 0; i < 1000; ++i) {
    const double x = rng.uniform(-3.0, -1.0);
    EXPECT_TRUE(x >= -3.0 && x < -1.0);
  }
}

TEST(Rng, BelowHitsEveryValueEquallyOften) {
  Rng rng(2);
  constexpr uint64_t kBound = 7;
  constexpr int kDraws = 70000;
  std::array<int, kBound> hits{};
  for (int i = 0; i < kDraws; ++i) {
    ++hits.at(rng.below(kBound));
  }
  for (int n : hits) {
    EXPECT_NEAR(n, kDraws / 7, 5 * std::sqrt(kDraws / 7.0));
  }
  EXPECT_EQ(rng.below(1), 0U);
}

TEST(Rng, NormalHasMeanZeroAndVarianceOne) {
  Rng rng(3);
  constexpr int kDraws = 200000;
  double sum = 0.0, squares = 0.0, fourth = 0.0;
  for (int i = 0; i < kDraws; ++i) {
    const double x = rng.normal();
    ASSERT_TRUE(std::isfinite(x));
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
  }
  const double root = std::sqrt(static_cast<double>(kDraws));
  EXPECT_NEAR(sum / kDraws, 0.0, 5 / root);
  EXPECT_NEAR(squares / kDraws, 1.0, 5 * std::sqrt(2.0) / root);
  EXPECT_NEAR(fourth / kDraws, 3.0, 5 * std::sqrt(96.0) / root);
}

}  // namespace
}  // namespace triax
