// rms_norm in double: the truth.
#include <cmath>

#include "dense/norm/norm_kernels.h"

namespace triax::dense::internal {

void rms_norm_reference(const RmsNormArgs& args) {
  const int64_t size = args.in.size(1);
  const float* weight = args.weight.data<float>();
  for (int64_t t = 0; t < args.in.size(0); ++t) {
    const float* in = args.in.data<float>() + t * args.in.stride(0);
    float* out = args.out.data<float>() + t * args.out.stride(0);
    double sum = 0.0;
    for (int64_t d = 0; d < size; ++d) {
      sum += static_cast<double>(in[d]) * static_cast<double>(in[d]);
    }
    const double mean = sum / static_cast<double>(size);
    const double norm = std::sqrt(mean + static_cast<double>(args.eps));
    for (int64_t d = 0; d < size; ++d) {
      out[d] =
          static_cast<float>(static_cast<double>(in[d]) / norm * static_cast<double>(weight[d]));
    }
  }
}

}  // namespace triax::dense::internal
