// The short convolution in plain C++.
#include "sequence/lanes/portable.h"
#include "sequence/short_conv/short_conv_lanes.h"

namespace triax::sequence {

void short_conv_portable(const ShortConvProblem& problem, int64_t n, int64_t begin, int64_t end) {
  short_conv_lanes<PortableLanes>(problem, n, begin, end);
}

}  // namespace triax::sequence
