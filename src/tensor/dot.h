// The dot product of the references: in double, in a fixed order.
#pragma once

#include <cstdint>

namespace triax {

/// sum_i a[i] b[i] in double: eight running sums, element i in sum i % 8, added pairwise at the
/// end. Types      float or double
template <typename A, typename B>
double dot_in_double(const A* a, const B* b, int64_t count) {
  double sums[8] = {};
  const int64_t whole = count / 8 * 8;
  for (int64_t i = 0; i < whole; i += 8) {
    for (int64_t lane = 0; lane < 8; ++lane) {
      sums[lane] += static_cast<double>(a[i + lane]) * static_cast<double>(b[i + lane]);
    }
  }
  for (int64_t i = whole; i < count; ++i) {
    sums[i - whole] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  }
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

}  // namespace triax
