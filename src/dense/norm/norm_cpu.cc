// rms_norm of one row in portable code.
#include <cmath>

#include "dense/norm/norm_kernels.h"

namespace triax::dense::internal {

void rms_norm_row(const float* in, const float* weight, float eps, int64_t size, float* out) {
  constexpr int64_t kLanes = 8;
  double lanes[kLanes] = {};
  int64_t d = 0;
  for (; d + kLanes <= size; d += kLanes) {
    for (int64_t i = 0; i < kLanes; ++i) {
      const double x = static_cast<double>(in[d + i]);
      lanes[i] += x * x;
    }
  }
  for (; d < size; ++d) {
    lanes[d % kLanes] += static_cast<double>(in[d]) * static_cast<double>(in[d]);
  }
  double sum = 0.0;
  for (const double lane : lanes) {
    sum += lane;
  }
  const double mean = sum / static_cast<double>(size);
  const auto scale = static_cast<float>(1.0 / std::sqrt(mean + static_cast<double>(eps)));
  for (d = 0; d < size; ++d) {
    out[d] = in[d] * scale * weight[d];
  }
}

}  // namespace triax::dense::internal
