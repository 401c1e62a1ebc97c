// The short convolution for AVX2.
#include "sequence/lanes/avx2.h"
#include "sequence/short_conv/short_conv_lanes.h"

namespace triax::sequence {

void short_conv_avx2(const ShortConvProblem& problem, int64_t n, int64_t begin, int64_t end) {
  short_conv_lanes<Avx2Lanes>(problem, n, begin, end);
}

}  // namespace triax::sequence
