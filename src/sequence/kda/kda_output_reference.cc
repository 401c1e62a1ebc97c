// The gated norm at the end of a KDA layer in double: the truth of the suite.
#include <cmath>

#include "sequence/kda/kda_kernels.h"

namespace triax::sequence {

void kda_output_reference(const KdaOutputProblem& p, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t t = row / p.heads;
    const int64_t h = row % p.heads;
    const float* in = p.in.data + t * p.in.token + h * p.in.head;
    const float* gate = p.gate.data + t * p.gate.token + h * p.gate.head;
    float* out = p.out + t * p.out_token + h * p.out_head;
    double sum = 0.0;
    for (int64_t i = 0; i < p.values; ++i) {
      sum += static_cast<double>(in[i]) * in[i];
    }
    const double scale = 1.0 / std::sqrt(sum / static_cast<double>(p.values) + p.eps);
    for (int64_t i = 0; i < p.values; ++i) {
      const double g = 1.0 / (1.0 + std::exp(-static_cast<double>(gate[i])));
      out[i] = static_cast<float>(in[i] * scale * p.weight[i] * g);
    }
  }
}

}  // namespace triax::sequence
